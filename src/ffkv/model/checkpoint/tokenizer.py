"""Loads the tokenizer of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError
from ffkv.base.files.checksums import verify_sum
from ffkv.base.files.looks import looks_told
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import choose_files_of, choose_tokenizer_files, hub_cache, local_model
from ffkv.base.lookup import is_file
from ffkv.base.process.remarks import listening, remark
from ffkv.model.checkpoint.config import reading
from ffkv.model.checkpoint.failures import explain_failure, words_of
from ffkv.model.checkpoint.forms import keep_own_tokens
from ffkv.model.fairseq.dictionary import dictionary_tokenizer, is_fairseq, read_dictionary

if TYPE_CHECKING:  # a tokenizer is loaded without the code of models, which takes seconds to import
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

# Options of a tokenizer's model that make an encoding random: BPE dropout, and sampling by a Unigram model.
CHANCE = ("dropout", "alpha", "nbest_size")
WHOLE = ("truncation", "padding")  # options that cut and fill texts
# Texts of many kinds: two tokenizers that encode all of them alike are one.
SAMPLES = (
    "The harbour was QUIET when the first boats came in; it's 1,897 miles to São Paulo, isn't it?",
    "  def f(x):\n\tif x >= 3.14:\n\t\treturn [x**2 for _ in range(10)]  # naïve\r\n",
    "Ü ü ﬁ ½ ① Ａ é é Straße İstanbul ΑΒγ Привет мир שלום नमस्ते 你好，世界。 こんにちは 안녕 🙂👩‍👩‍👧",
)


def load_tokenizer(
    source: Path | str, commit: Commit | None = None, trust_remote_code: bool = False, gguf: str = ""
) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a checkpoint or of the model step's folder.

    Args:
        source: checkpoint or folder.
        commit: the commit of a checkpoint on the hub that is read.
        trust_remote_code: run the Python code that the checkpoint brings.
        gguf: the setting `model.gguf`: the file that the tokenizer is read from.
    Raises:
        UserError: there is none, or it is not a fast one (a fast one knows the characters of each token).
    """
    with looks_told(source, hub_cache()):
        return _load(source, commit, trust_remote_code, gguf)


def _load(source: Path | str, commit: Commit | None, trust_remote_code: bool, gguf: str) -> PreTrainedTokenizerFast:
    if not gguf and is_fairseq(source):
        return dictionary_tokenizer(read_dictionary(Path(source)))
    verify_sum(Path(source))
    from transformers import AutoTokenizer

    commit = commit or Commit("model", str(source), "main")
    folder = local_model(commit, choose_files_of(gguf) if gguf else choose_tokenizer_files)
    try:
        with listening("transformers"):
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, **reading(commit, trust_remote_code, gguf))
    except Exception as error:  # the library raises many classes for a wrong name or file
        remedy = "" if commit.commit else " Put the tokenizer's files beside the model's."
        reason = explain_failure(error, commit)
        raise UserError(f"The tokenizer of {source} cannot be loaded: {reason}{remedy}") from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{source} has a {type(tokenizer).__name__}, which does not tell the characters of each token. ffkv needs a fast tokenizer (tokenizer.json)."
        )
    _make_steady(tokenizer.backend_tokenizer)
    if gguf:
        keep_own_tokens(tokenizer)
    _try_out(source, tokenizer)
    if not gguf and is_file(file := Path(folder) / "tokenizer.json"):
        _keep_to_file(tokenizer, file)
    return tokenizer


def _make_steady(tokenizer: Tokenizer) -> None:
    """Switches off what makes an encoding random, or cuts and fills it."""
    for name in CHANCE:
        if getattr(tokenizer.model, name, None):
            setattr(tokenizer.model, name, None)
    tokenizer.no_truncation()
    tokenizer.no_padding()


def _keep_to_file(tokenizer: Any, file: Path) -> None:
    """Gives a tokenizer the parts of tokenizer.json that encode a text, if those of its class encode otherwise."""
    from tokenizers import Tokenizer

    stored = json.loads(file.read_text(encoding="utf-8"))
    of_model = {name: value for name in CHANCE if (value := (stored.get("model") or {}).get(name))}
    for name, value in {**of_model, **{name: "set" for name in WHOLE if stored.get(name)}}.items():
        remark(f"tokenizer.json has an option for training, {name} ({value}), which is off: a text has one encoding.")
    own = Tokenizer.from_file(str(file))
    _make_steady(own)
    if all(own.encode(text, add_special_tokens=False).ids == _plain_ids(tokenizer, text) for text in SAMPLES):
        if own.encode("a").ids != tokenizer("a")["input_ids"]:
            remark(
                f"A {type(tokenizer).__name__} puts other special tokens around a text than tokenizer.json says. corpus.bos"
                " chooses what precedes a sentence."
            )
        return
    backend, changed = tokenizer.backend_tokenizer, []
    for name in ("normalizer", "pre_tokenizer", "model", "decoder"):
        if repr(getattr(own, name)) != repr(getattr(backend, name)):
            setattr(backend, name, getattr(own, name))
            changed.append(name)
    remark(
        f"transformers makes a {type(tokenizer).__name__} with another {' and '.join(changed)} than tokenizer.json has."
        " The text is encoded as tokenizer.json says."
    )


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _try_out(source: Path | str, tokenizer: PreTrainedTokenizerFast) -> None:
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
