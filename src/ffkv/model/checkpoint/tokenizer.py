"""Loads the tokenizer of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError
from ffkv.base.files.checksums import verify_sum
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import choose_files_of, choose_tokenizer_files, local_model
from ffkv.model.checkpoint.config import reading
from ffkv.model.checkpoint.failures import explain_failure, words_of
from ffkv.model.checkpoint.forms import keep_own_tokens
from ffkv.model.fairseq.dictionary import dictionary_tokenizer, is_fairseq, read_dictionary

if TYPE_CHECKING:  # a tokenizer is loaded without the code of models, which takes seconds to import
    from transformers import PreTrainedTokenizerFast


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
    if not gguf and is_fairseq(source):
        return dictionary_tokenizer(read_dictionary(Path(source)))
    verify_sum(Path(source))
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()
    commit = commit or Commit("model", str(source), "main")
    folder = local_model(commit, choose_files_of(gguf) if gguf else choose_tokenizer_files)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **reading(commit, trust_remote_code, gguf))
    except Exception as error:  # the library raises many classes for a wrong name or file
        remedy = "" if commit.commit else " Put the tokenizer's files beside the model's."
        reason = explain_failure(error, commit)
        raise UserError(f"The tokenizer of {source} cannot be loaded: {reason}{remedy}") from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{source} has a {type(tokenizer).__name__}, which does not tell the characters of each token. ffkv needs a fast tokenizer (tokenizer.json)."
        )
    if gguf:
        keep_own_tokens(tokenizer)
    _try_out(source, tokenizer)
    return tokenizer


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
