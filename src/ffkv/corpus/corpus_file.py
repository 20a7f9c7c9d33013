"""`corpus/<split>.h5`: the sentences of a split."""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.corpus.encode import Encoded, flatten
from ffkv.files import hdf5
from ffkv.files.lazy import Pieces, Texts


@dataclass(frozen=True)
class Corpus:
    """The sentences of a split, as they stand in its file: read piece by piece, so that memory does not grow with the text.

    tokens: ids of all sentences, one behind the other [token]. BOS is not among them.
    token_end: end (exclusive) of each token's characters in its sentence's text [token].
    offsets: where each sentence's tokens start [sentence + 1].
    document: which document each sentence is from [sentence].
    multiplicity: how many identical sentences it stands for [sentence].
    texts: the sentences' text; document_names: the documents' names.
    bos: ids in front of every sentence when the model reads it.
    pretokenized: whether words are what stands between blanks.
    unigram: how often each id occurs, duplicates counted [vocabulary].
    attributes: what the file says of itself (identities, counts).
    """

    tokens: Pieces
    token_end: Pieces
    offsets: np.ndarray
    document: Pieces
    multiplicity: Pieces
    texts: Texts
    document_names: Texts
    bos: list[int]
    pretokenized: bool
    unigram: np.ndarray
    attributes: dict[str, Any]

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.offsets) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence [sentence]."""
        return np.diff(self.offsets)

    def ids(self, sentence: int) -> np.ndarray:
        """Token ids of a sentence [token]."""
        return self.tokens[self.offsets[sentence] : self.offsets[sentence + 1]]

    def prefix_text(self, sentence: int, position: int) -> str:
        """Text of the first `position` tokens of a sentence."""
        return self.texts[sentence][: self.character(sentence, position)]

    def character(self, sentence: int, position: int) -> int:
        """Where the text of the first `position` tokens ends."""
        return int(self.token_end[self.offsets[sentence] + position - 1]) if position else 0

    def next_token(self, sentence: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Id of the token that follows each prefix, from the stored sentence. The prefixes must be proper."""
        return self.tokens[self.offsets[sentence] + position]


def write_corpus(
    path: Path, encoded: Encoded, bos: list[int], vocabulary: int, pretokenized: bool, attributes: dict[str, Any]
) -> None:
    """Writes `corpus/<split>.h5`."""
    tokens, ends = flatten(encoded.ids), flatten(encoded.ends)
    multiplicity = np.asarray(encoded.multiplicity, np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded.ids])]).astype(np.int64)
    unigram = np.zeros(vocabulary, np.int64)
    np.add.at(unigram, tokens, np.repeat(multiplicity, np.diff(offsets)))
    digest = hashlib.sha256(tokens.tobytes() + offsets.tobytes() + str(bos).encode())
    attributes = {
        **attributes,
        "corpus_hash": digest.hexdigest()[:16],
        "counts": dict(encoded.counts),
        "tokens": len(tokens),
        "sentences": len(encoded.ids),
        "bos": bos,
        "pretokenized": pretokenized,
    }
    with hdf5.create(path, "corpus", attributes) as file:
        hdf5.put(file, "tokens", tokens, ["token"], "token", "ids of all sentences, one behind the other, without BOS")
        hdf5.put(
            file, "token_end", ends, ["token"], "character", "end (exclusive) of each token in its sentence's text"
        )
        hdf5.put(
            file, "sentence_offset", offsets, ["sentence_boundary"], "token", "where each sentence starts in `tokens`"
        )
        hdf5.put(
            file,
            "document",
            np.asarray(encoded.document, np.int32),
            ["sentence"],
            "document",
            "which document a sentence is from",
        )
        hdf5.put(
            file, "multiplicity", multiplicity, ["sentence"], "sentence", "how many identical sentences it stands for"
        )
        hdf5.put(file, "unigram", unigram, ["vocabulary"], "token", "how often each id occurs, duplicates counted")
        hdf5.put_texts(file, "text", encoded.text, "sentence", "the sentences")
        hdf5.put_texts(file, "document_name", encoded.names, "document", "the documents' names")


def read_corpus(path: Path, belongs_to: dict[str, Any] | None = None) -> Corpus:
    """Reads `corpus/<split>.h5`.

    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(path, "corpus", belongs_to) as file:
        attributes, offsets, unigram = dict(file.attrs), file["sentence_offset"][...], file["unigram"][...]
        texts = ["text", "text_offset", "document_name", "document_name_offset"]
        found = hdf5.pieces(path, "tokens", "token_end", "document", "multiplicity", *texts)
    tokens, token_end, document, multiplicity, text, text_offset, name, name_offset = found
    return Corpus(
        tokens=tokens,
        token_end=token_end,
        offsets=offsets,
        document=document,
        multiplicity=multiplicity,
        texts=Texts(text, text_offset),
        document_names=Texts(name, name_offset),
        bos=json.loads(attributes["bos"]),
        pretokenized=bool(attributes["pretokenized"]),
        unigram=unigram,
        attributes=attributes,
    )
