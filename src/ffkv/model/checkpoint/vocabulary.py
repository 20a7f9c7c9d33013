"""`model/vocabulary.h5`: the text of every token id, so that later steps need no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffkv.files import datasets, hdf5
from ffkv.files.datasets import texts
from ffkv.model.anatomy import Anatomy

if TYPE_CHECKING:  # transformers is slow to import, and readers do not need it
    from transformers import PreTrainedTokenizerBase

FILE = "vocabulary.h5"


@dataclass(frozen=True)
class Vocabulary:
    """What `model/vocabulary.h5` holds."""

    token: Sequence[str] = texts("token", about="the text of each id")


def write_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, anatomy: Anatomy) -> None:
    """Writes the texts of all ids into the model's folder."""
    with hdf5.create(folder / FILE, "vocabulary", anatomy.identity) as file:
        datasets.write(file, Vocabulary(token_texts(tokenizer, anatomy.vocabulary)))


def read_vocabulary(folder: Path | str) -> Sequence[str]:
    """The text of every id, from the model's folder.

    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(Path(folder) / FILE, "vocabulary") as file:
        return datasets.read(file, Vocabulary).token


def token_texts(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> list[str]:
    """The text of every id. A special token's text is its name; an id that the tokenizer does not know is `<id 17>`."""
    known = min(len(tokenizer), vocabulary)
    decoded = tokenizer.batch_decode(np.arange(known)[:, None].tolist(), clean_up_tokenization_spaces=False)
    names = tokenizer.convert_ids_to_tokens(list(range(known)))
    # A piece of a character that takes several bytes has no text of its own: its name in the vocabulary says more.
    decoded = [str(name) if "\ufffd" in text or not text else text for text, name in zip(decoded, names, strict=True)]
    return decoded + [f"<id {number}>" for number in range(known, vocabulary)]
