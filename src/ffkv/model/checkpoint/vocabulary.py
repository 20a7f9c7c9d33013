"""`model/vocabulary.h5`: the text of every token id, so that later steps need no tokenizer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ffkv.base.characters import write_bytes
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import texts
from ffkv.model.anatomy import Anatomy

if TYPE_CHECKING:  # transformers is slow to import, and readers do not need it
    from transformers import PreTrainedTokenizerFast

FILE = "vocabulary.h5"
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # SentencePiece's name of a byte


@dataclass(frozen=True)
class Vocabulary:
    """What `model/vocabulary.h5` holds."""

    token: Sequence[str] = texts("token", about="the text of each id")


def write_vocabulary(folder: Path, tokenizer: "PreTrainedTokenizerFast", anatomy: Anatomy) -> None:
    """Writes the texts of all ids into the model's folder."""
    with hdf5.create(folder / FILE, "vocabulary", anatomy.identity) as file:
        datasets.write(file, Vocabulary(token_texts(tokenizer, anatomy.vocabulary)))


def read_vocabulary(folder: Path | str) -> Sequence[str]:
    """Returns the text of every id, from the model's folder. Raises UserError as `hdf5.open`."""
    with hdf5.open(Path(folder) / FILE, "vocabulary") as file:
        return datasets.read(file, Vocabulary).token


def token_texts(tokenizer: "PreTrainedTokenizerFast", vocabulary: int) -> list[str]:
    """Returns the text of every id, with the blanks that belong to it: "he" inside a word is not " he".

    A token's text is what it adds to the text of another token before it. It is the token's name if it has no text of
    its own: special tokens, bytes such as `<0x0A>`, and all tokens of a vocabulary of whole words. Bytes that are no
    whole character are written as `<0xE6>`. An id that the tokenizer does not know is `<id 17>`.
    """
    from tokenizers.models import WordLevel
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    known = min(len(tokenizer), vocabulary)
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(range(known)))]
    unknown = [f"<id {number}>" for number in range(known, vocabulary)]
    # A token with a text of its own, if there is one.
    candidates = (*reversed(tokenizer("a", add_special_tokens=False)["input_ids"]), *range(known))
    ordinary = (number for number in candidates if number not in tokenizer.all_special_ids)
    before = next((number for number in ordinary if str(tokenizer.decode([number])).strip(" \ufffd")), None)
    if before is None or isinstance(tokenizer.backend_tokenizer.model, WordLevel):
        return names + unknown
    pairs = [[before]] + [[before, number] for number in range(known)]
    text_before, *texts = tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)
    special = {*tokenizer.all_special_ids, *(n for n, name in enumerate(names) if BYTE.fullmatch(name))}
    # A blank that is not decoded at the end.
    suffix = getattr(tokenizer.backend_tokenizer.model, "end_of_word_suffix", None)
    added = [
        text.removeprefix(text_before) + " " * bool(suffix and name.endswith(suffix))
        for text, name in zip(texts, names, strict=True)
    ]
    unclear = [
        number in special or not text.startswith(text_before) or not own or "\ufffd" in own
        for number, (text, own) in enumerate(zip(texts, added, strict=True))
    ]
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}  # of a byte-level vocabulary
    of_person = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    for number, (own, name) in enumerate(zip(added, names, strict=True)):
        if "\ufffd" in own and number not in of_person and byte_of.keys() >= set(name):  # of a byte-level tokenizer
            names[number] = write_bytes(bytes(map(byte_of.__getitem__, name)))
    return [name if odd else own for odd, own, name in zip(unclear, added, names, strict=True)] + unknown
