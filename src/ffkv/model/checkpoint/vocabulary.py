"""`model/vocabulary.h5`: the text of every token id, so that later stages need no tokenizer."""

from pathlib import Path

import numpy as np

from ffkv.files import hdf5
from ffkv.files.lazy import Texts
from ffkv.model.anatomy import Anatomy

FILE = "vocabulary.h5"


def write_vocabulary(folder: Path, tokenizer, anatomy: Anatomy) -> None:
    """Writes the texts of all ids."""
    with hdf5.create(folder / FILE, "vocabulary", anatomy.identity) as file:
        hdf5.put_texts(file, "token", token_texts(tokenizer, anatomy.vocabulary), "token", "the text of each id")


def read_vocabulary(folder: Path) -> Texts:
    """The text of every id.

    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(Path(folder) / FILE, "vocabulary") as file:
        return hdf5.texts(file, "token")


def token_texts(tokenizer, vocabulary: int) -> list[str]:
    """The text of every id, special tokens by name; of ids that the tokenizer does not know, their number."""
    known = min(len(tokenizer), vocabulary)
    decoded = tokenizer.batch_decode(np.arange(known)[:, None].tolist(), clean_up_tokenization_spaces=False)
    names = tokenizer.convert_ids_to_tokens(list(range(known)))
    # A piece of a character that takes several bytes has no text of its own: its name in the vocabulary says more.
    texts = [str(name) if "\ufffd" in text or not text else text for text, name in zip(decoded, names, strict=True)]
    return texts + [f"<id {number}>" for number in range(known, vocabulary)]
