"""`corpus/<split>.h5`: the sentences of a split."""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.base.characters import BYTE, read_bytes, unfinished, write_bytes
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import dataset, group
from ffkv.base.files.hdf5 import OTHERS, NotThere, Pieces
from ffkv.base.settings.common import ENGLISH
from ffkv.corpus.encode import Encoded, behind
from ffkv.corpus.shared_prefixes import SharedPrefixes, find_shared_prefixes

LONGEST_BEGINNING = 3  # bytes of a character without its last one
NONE = -1  # stands for no token
LAZY: dict[str, Any] = {"dtype": "int32", "lazy": True}


@dataclass(frozen=True, kw_only=True)
class TokenPieces:
    """Tokens of the vocabulary that are no whole characters, such as a byte of one."""

    id: np.ndarray = dataset("piece", "int32", unit="token", about="their ids", of="token_id")
    spelling: Sequence[str] = datasets.texts("piece", about="their texts, with bytes as `<0xE6>`")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The sentences of a split. They are read piece by piece, so that memory does not grow with the text."""

    tokens: Pieces | np.ndarray = dataset(
        "token", **LAZY, unit="token", about="ids of all sentences, one behind the other, without BOS", of="token_id"
    )
    token_end: Pieces | np.ndarray = dataset(
        "token",
        **LAZY,
        unit="character",
        about="how many characters of its sentence's text the model has read whole with it",
    )
    offsets: np.ndarray = dataset(
        "sentence_boundary",
        "int64",
        unit="token",
        about="where each sentence starts in `tokens`",
        of="token",
        name="sentence_offset",
    )
    document: Pieces | np.ndarray = dataset(
        "sentence", **LAZY, unit="document", about="which document a sentence is from", of="document"
    )
    multiplicity: Pieces | np.ndarray = dataset(
        "sentence", **LAZY, unit="sentence", about="how many identical sentences it stands for"
    )
    first_new: np.ndarray = dataset(
        "sentence",
        "int32",
        unit="token",
        about="length of the shortest prefix that is read in this sentence and in no other one; shorter ones are read in"
        " an earlier sentence. The sentence's own length if none is read in it",
    )
    shared: SharedPrefixes = group(SharedPrefixes, about="prefixes that several sentences begin with")
    piece: TokenPieces | None = group(TokenPieces, about="tokens that are no whole characters")
    texts: Sequence[str] = datasets.texts("sentence", about="the sentences", name="text", lazy=True)
    document_names: Sequence[str] = datasets.texts(
        "document", about="the documents' names", name="document_name", lazy=True
    )
    document_titles: Sequence[str] | None = datasets.texts(
        "document", about="what the source calls the documents", name="document_title", lazy=True, optional=True
    )
    bos: list[int]  # ids in front of every sentence when the model reads it
    pretokenized: bool  # whether words are separated by blanks
    language: str  # code of the language of the text
    attributes: dict[str, Any]  # what the file says of itself (identities, counts)

    def __repr__(self) -> str:
        return f"<Corpus: {len(self):,} sentences, {self.offsets[-1]:,} tokens>"

    def __len__(self) -> int:
        """Returns the number of sentences."""
        return len(self.offsets) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each sentence [sentence]."""
        return np.diff(self.offsets)

    def ids(self, sentence: int) -> np.ndarray:
        """Token ids of a sentence [token]."""
        return self.tokens[self.offsets[sentence] : self.offsets[sentence + 1]]

    def prefix_ids(self, sentence: int, position: int) -> np.ndarray:
        """Token ids of a prefix, behind those that precede every sentence, int64 [token]."""
        return behind(self.bos, self.ids(sentence)[:position])

    def prefix_text(self, sentence: int, position: int) -> str:
        """Text of the first `position` tokens of a sentence. It ends with bytes if they end inside a character."""
        return self.texts[sentence][: self.character(sentence, position)] + self.unfinished(sentence, position)

    def character(self, sentence: int, position: int) -> int:
        """Returns how many characters of its sentence the first `position` tokens hold whole."""
        return int(self.token_end[self.offsets[sentence] + position - 1]) if position else 0

    def unfinished(self, sentence: int, position: int) -> str:
        """Returns the bytes of a character that the first `position` tokens begin and do not end: `<0xE6>`; often ""."""
        data = b""
        for token in reversed(self.ids(sentence)[max(0, position - LONGEST_BEGINNING) : position].tolist()):
            if token not in self._pieces:
                break
            data = read_bytes(self._pieces[token]) + data
        return write_bytes(unfinished(data))

    def rest(self, sentence: int, position: int) -> str:
        """Returns the text of a sentence behind its first `position` tokens."""
        begun = len(read_bytes(self.unfinished(sentence, position)))
        return write_bytes(self.texts[sentence][self.character(sentence, position) :].encode()[begun:])

    def token_texts(self, sentence: int) -> list[str]:
        """Returns the text of each token of a sentence [token]."""
        ends = self.token_end[self.offsets[sentence] : self.offsets[sentence + 1]]
        return self.texts_of(self.texts[sentence], self.ids(sentence), ends)

    def texts_of(self, text: str, ids: np.ndarray, ends: np.ndarray) -> list[str]:
        """Returns the text of each token of a text, from what `tokenize` says of it [token]."""
        places = zip(ids.tolist(), [0, *ends.tolist()], ends.tolist())
        return [self._pieces.get(token) or text[start:end] for token, start, end in places]

    @functools.cached_property
    def _pieces(self) -> dict[int, str]:
        """Texts of the tokens that are no whole characters, by id."""
        return dict(zip(self.piece.id.tolist(), self.piece.spelling)) if self.piece else {}

    def prefix_texts(self, sentence: np.ndarray, position: np.ndarray) -> tuple[list[str], list[str]]:
        """Returns the texts of prefixes, and of their last tokens, both [prefix]."""
        if (position < 0).any() or (position > self.offsets[sentence + 1] - self.offsets[sentence]).any():
            raise NotThere(f"A file names longer prefixes than the corpus has: {OTHERS}")
        texts, last_tokens = list[str](), list[str]()
        for number, tokens in zip(sentence.tolist(), position.tolist()):
            texts.append(self.prefix_text(number, tokens))
            token = int(self.tokens[self.offsets[number] + tokens - 1]) if tokens else NONE
            last_tokens.append(self._pieces.get(token) or texts[-1][self.character(number, max(tokens - 1, 0)) :])
        return texts, last_tokens

    def next_token(self, sentence: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Id of the token that follows each prefix, from the stored sentence. The prefixes must be proper."""
        return self.tokens[self.offsets[sentence] + position]


def write_corpus(
    path: Path,
    encoded: Encoded,
    bos: list[int],
    pretokenized: bool,
    attributes: dict[str, Any],
    language: str = ENGLISH,
    vocabulary: Sequence[str] = (),
) -> None:
    """Writes `corpus/<split>.h5`. `vocabulary`: the text of every token id."""
    pieces = {number: text for number, text in enumerate(vocabulary) if re.search(BYTE, text)}
    _write(
        path,
        {**attributes, "counts": dict(encoded.counts)},
        tokens=encoded.ids.joined(),
        token_end=encoded.ends.joined(),
        offsets=np.cumsum([0, *map(len, encoded.ids)], dtype=np.int64),
        document=np.asarray(encoded.document, np.int32),
        multiplicity=np.asarray(encoded.multiplicity, np.int32),
        piece=TokenPieces(id=np.array(list(pieces), np.int32), spelling=list(pieces.values())),
        texts=encoded.text,
        document_names=encoded.names,
        document_titles=encoded.titles if any(encoded.titles) else None,
        own={"bos": bos, "pretokenized": pretokenized, "language": language},
    )


def write_part(path: Path, corpus: Corpus, sentences: np.ndarray) -> None:
    """Writes `corpus/<split>.h5` with some sentences of a corpus that was read, by their numbers [sentence]."""
    offsets = np.concatenate([[0], np.cumsum(corpus.lengths[sentences])])
    places = np.repeat(corpus.offsets[sentences] - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
    counts = {**json.loads(corpus.attributes["counts"]), "not_copied_sentences": len(corpus) - len(sentences)}
    _write(
        path,
        {**corpus.attributes, "counts": counts},
        tokens=corpus.tokens[places],
        token_end=corpus.token_end[places],
        offsets=offsets,
        document=corpus.document[sentences],
        multiplicity=corpus.multiplicity[sentences],
        piece=corpus.piece,
        texts=[corpus.texts[sentence] for sentence in sentences.tolist()],
        document_names=corpus.document_names,
        document_titles=corpus.document_titles,
        own={"bos": corpus.bos, "pretokenized": corpus.pretokenized, "language": corpus.language},
    )


def _write(path: Path, attributes: dict[str, Any], own: dict[str, Any], **columns: Any) -> None:
    """Writes a corpus from its datasets. `own`: what it says of itself beside them."""
    tokens, offsets = columns["tokens"], columns["offsets"]
    first_new, shared = find_shared_prefixes(tokens, offsets)
    digest = hashlib.sha256(tokens.data)
    digest.update(offsets.data)
    digest.update(str(own["bos"]).encode())
    sizes = {"tokens": len(tokens), "sentences": len(offsets) - 1}
    attributes = {**attributes, "corpus_hash": digest.hexdigest()[:16], **sizes, **own}
    corpus = Corpus(**columns, first_new=first_new, shared=shared, **own, attributes=attributes)
    with hdf5.create(path, "corpus", attributes) as file:
        datasets.write(file, corpus)


def read_corpus(path: Path | str, belongs_to: Mapping[str, Any] | None = None, sizes: Mapping[str, int] = {}) -> Corpus:
    """Reads `corpus/<split>.h5`.

    Args:
        path: the file.
        belongs_to: attributes whose identities the file must share, see `hdf5.open`.
        sizes: how many there are of what its numbers name, such as "token_id".
    Raises:
        UserError: see `hdf5.open` and `datasets.read`.
    Examples:
        >>> corpus = ffkv.read_corpus("results/tiny/corpus/train.h5")
        >>> corpus.prefix_text(0, 4) == corpus.texts[0][: corpus.character(0, 4)]  # the first 4 tokens of sentence 0
        True
    """
    with hdf5.open(path, "corpus", belongs_to) as file:
        attributes = dict(file.attrs)
        return datasets.read(
            file,
            Corpus,
            sizes=sizes,
            bos=hdf5.parsed(file, "bos"),
            pretokenized=bool(attributes["pretokenized"]),
            language=attributes.get("language", ENGLISH),  # files of earlier versions are English
            attributes=attributes,
        )


def draw_sentences(corpus: Corpus, tokens: int, generator: np.random.Generator) -> list[int]:
    """Draws documents until their sentences have so many tokens. Returns the sentences, those of a document together."""
    document = np.asarray(corpus.document[:])
    order = np.argsort(generator.permutation(int(document.max()) + 1)[document], kind="stable")
    return order[: 1 + int(np.searchsorted(np.cumsum(corpus.lengths[order]), tokens))].tolist()
