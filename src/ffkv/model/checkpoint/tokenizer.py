"""Loads the tokenizer of a checkpoint."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError
from ffkv.base.files.stored import verify_sum
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import choose_files_of, choose_tokenizer_files, hub_cache, local_model
from ffkv.base.lookup import is_file, looks_told
from ffkv.base.process.libraries import listening, remark
from ffkv.model.checkpoint.checks import explain_failure, words_of
from ffkv.model.checkpoint.config import reading
from ffkv.model.checkpoint.readers import file_reader, reader_of

if TYPE_CHECKING:  # a tokenizer is loaded without the code of models, which takes seconds to import
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

# Options of a tokenizer's model that make an encoding random: BPE dropout, and sampling by a Unigram model.
CHANCE = ("dropout", "alpha", "nbest_size")
WHOLE = ("truncation", "padding")  # options that cut and fill texts
PARTS = ("normalizer", "pre_tokenizer", "model", "decoder")  # what ids follow from, and texts of ids


def load_tokenizer(
    source: Path | str, commit: Commit | None = None, trust_remote_code: bool = False, gguf: str = ""
) -> "PreTrainedTokenizerFast":
    """Loads the tokenizer of a checkpoint or of the model step's folder.

    `commit`: the commit of a checkpoint on the hub that is read. `trust_remote_code`: run the Python code that the checkpoint
    brings. `gguf`: the setting `model.gguf`: the file that the tokenizer is read from. Raises UserError if there is none, or it is
    not a fast one (a fast one knows the characters of each token).
    """
    with looks_told(source, hub_cache()):
        if not gguf and (reader := reader_of(source)):
            return reader.load_tokenizer(Path(source))
        verify_sum(Path(source))
        from transformers import AutoTokenizer

        reader_of_file = file_reader() if gguf else None
        commit = commit or Commit("model", str(source), "main")
        folder = local_model(commit, choose_files_of(gguf) if gguf else choose_tokenizer_files)
        try:
            with listening("transformers"):
                said = reader_of_file.read_entries(Path(folder) / gguf) if reader_of_file else {}
                tokenizer: Any = AutoTokenizer.from_pretrained(folder, **reading(commit, trust_remote_code, gguf))
        except UserError:
            raise
        except Exception as error:  # the library raises many classes for a wrong name or file
            remedy = "" if commit.commit or gguf else " Put the tokenizer's files beside the model's."
            reason = explain_failure(error, commit)
            raise UserError(f"The tokenizer of {source} cannot be loaded: {reason}{remedy}") from error
        if not tokenizer.is_fast:
            raise UserError(
                f"{source} has a {type(tokenizer).__name__}, which does not tell the characters of each token. ffkv needs a fast tokenizer (tokenizer.json)."
            )
        _make_steady(tokenizer.backend_tokenizer)
        if reader_of_file:
            reader_of_file.finish_tokenizer(gguf, said, tokenizer)
        _try_out(source, tokenizer)
        if not gguf and is_file(file := Path(folder) / "tokenizer.json"):
            _keep_to_file(tokenizer, file)
        return tokenizer


def tokenizer_hash(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Returns a hash of the tokenizer's complete definition."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]


def _make_steady(tokenizer: "Tokenizer") -> None:
    """Switches off what makes an encoding random, or cuts and fills it."""
    for name in CHANCE:
        if getattr(tokenizer.model, name, None):
            setattr(tokenizer.model, name, None)
    tokenizer.no_truncation()
    tokenizer.no_padding()


def _keep_to_file(tokenizer: Any, file: Path) -> None:
    """Gives a tokenizer the parts of tokenizer.json, where those of its class are defined otherwise."""
    from tokenizers import Tokenizer

    stored = json.loads(file.read_text(encoding="utf-8"))
    of_model = {name: value for name in CHANCE if (value := (stored.get("model") or {}).get(name))}
    for name, value in {**of_model, **{name: "set" for name in WHOLE if stored.get(name)}}.items():
        remark(f"tokenizer.json has an option for training, {name} ({value}), which is off: a text has one encoding.")
    own = Tokenizer.from_file(str(file))
    _make_steady(own)
    backend = tokenizer.backend_tokenizer
    changed = [name for name in PARTS if _differ(getattr(own, name), getattr(backend, name))]
    for name in changed:
        setattr(backend, name, getattr(own, name))
    if encoding := [name for name in changed if name != "decoder"]:
        remark(
            f"transformers makes a {type(tokenizer).__name__} with another {' and '.join(encoding)} than tokenizer.json has."
            " The text is encoded as tokenizer.json says."
        )
    if own.encode("a").ids != tokenizer("a")["input_ids"]:
        remark(
            f"A {type(tokenizer).__name__} puts other special tokens around a text than tokenizer.json says. corpus.bos"
            " chooses what precedes a sentence."
        )


def _differ(first: Any, second: Any) -> bool:
    """Tells whether the definitions of two parts of tokenizers differ. What one of them leaves out is None in it."""
    one, other = (json.loads(part.__getstate__()) if part else {} for part in (first, second))
    return any(one.get(key) != other.get(key) for key in {**one, **other})


def _try_out(source: Path | str, tokenizer: "PreTrainedTokenizerFast") -> None:
    """Refuses a tokenizer that loads but cannot encode a text."""
    try:
        ids = tokenizer("A first text.", verbose=False)["input_ids"]
        float(tokenizer.model_max_length)
    except Exception as error:  # the library raises plain exceptions here
        reason = words_of(error)
        raise UserError(f"The tokenizer of {source} does not work: {reason}. Fetch its files again.") from error
    if not ids:
        raise UserError(
            f"The tokenizer of {source} makes no token of a text: there is no tokenizer.json, or its vocabulary is empty or damaged."
            " Put the tokenizer's files beside the model's."
        )
