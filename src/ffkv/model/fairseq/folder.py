"""The folder of a fairseq checkpoint, without its model: nothing here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ffkv.model.fairseq import dictionary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MODEL_FILE = "model.pt"


def is_fairseq(checkpoint: Path | str) -> bool:
    """Tells whether a checkpoint is a folder of fairseq, perhaps an incomplete one."""
    folder = Path(checkpoint)
    names = (MODEL_FILE, dictionary.DICTIONARY_FILE)
    return not (folder / "config.json").exists() and any((folder / name).is_file() for name in names)


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a fairseq checkpoint. Errors: see `read_dictionary`."""
    return dictionary.dictionary_tokenizer(dictionary.read_dictionary(Path(folder)))
