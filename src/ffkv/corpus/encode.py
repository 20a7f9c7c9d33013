"""Encodes sentences as token ids."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ffkv.corpus.document import Document
from ffkv.corpus.sentences import split_sentences

if TYPE_CHECKING:  # readers of a corpus do without transformers, which takes a second to import
    from transformers import PreTrainedTokenizerBase

# The tokenizer gets at most this many sentences and characters per call. A longer sentence is cut, at a blank if possible.
SENTENCES_PER_CALL = 4096
MAX_CHARACTERS = 1_000_000
# What is counted while documents are encoded, in the order of the output.
COUNTS = (
    "documents",
    "empty_documents",
    "undecodable_documents",
    "sentences",
    "empty_sentences",
    "one_token_sentences",
    "long_sentences",
    "duplicate_sentences",
)


@dataclass
class Encoded:
    """The sentences of a split.

    Attributes:
        ids: token ids of each sentence, without BOS [sentence][token].
        ends: end (exclusive) of each token's characters in the sentence's text [sentence][token].
        text: text of each sentence [sentence].
        document: document of each sentence [sentence].
        multiplicity: number of identical sentences that each one stands for [sentence].
        names: name of each document [document].
        counts: number of documents and sentences that were read or left out, by `COUNTS`.
    """

    ids: list[np.ndarray] = field(default_factory=list)
    ends: list[np.ndarray] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    multiplicity: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))


def encode(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    splitter: str,
    pretokenized: bool,
    long_sentences: str,
    deduplicate: bool,
) -> Encoded:
    """Splits documents into sentences, and encodes the sentences.

    Args:
        documents: names and texts.
        tokenizer: a fast tokenizer of transformers, which knows the characters of each token.
        max_tokens: maximum number of tokens per sentence.
        splitter: "sentence", "line" or "document", see `split_sentences`.
        pretokenized: True if blanks already separate the words of the text.
        long_sentences: "windows" cuts longer sentences into windows of `max_tokens` tokens; "drop" leaves them out.
        deduplicate: True if sentences with the same ids are stored once.
    """
    encoded = Encoded()
    seen: dict[bytes, int] | None = {} if deduplicate else None
    sentences = _split_documents(documents, encoded, splitter, pretokenized, long_sentences)
    for batch in _batches(sentences):
        texts = [text for _, text in batch]
        tokens = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for (document, text), ids, offsets in zip(batch, tokens["input_ids"], tokens["offset_mapping"], strict=True):
            ends = np.fromiter((end for _, end in offsets), np.int32, len(ids))
            for window in _windows(
                np.asarray(ids, np.int32), np.maximum.accumulate(ends), text, max_tokens, long_sentences, encoded.counts
            ):
                _add(encoded, seen, document, *window)
    return encoded


def _split_documents(
    documents: Iterable[Document], encoded: Encoded, splitter: str, pretokenized: bool, long_sentences: str
) -> Iterator[tuple[int, str]]:
    """The number of the document and the text of each sentence. Adds the documents' names and the counts to `encoded`."""
    counts = encoded.counts
    for document in documents:
        text = _replace_surrogates(document.text)
        counts["documents"] += 1
        counts["undecodable_documents"] += "\ufffd" in text
        number = len(encoded.names)
        if text.strip():
            encoded.names.append(_replace_surrogates(document.name))
        else:  # costs no memory: a small compressed file can have any number of them
            counts["empty_documents"] += 1
        for sentence in split_sentences(text, splitter, pretokenized):
            if not sentence:
                counts["empty_sentences"] += 1
                continue
            counts["sentences"] += 1
            if len(sentence) > MAX_CHARACTERS and long_sentences == "drop":
                counts["long_sentences"] += 1
                continue
            yield from ((number, piece) for piece in _cut_characters(sentence))


def _cut_characters(sentence: str) -> Iterator[str]:
    """Cuts a sentence into pieces of at most `MAX_CHARACTERS` characters. Nearly every sentence is one piece."""
    while len(sentence) > MAX_CHARACTERS:
        end = sentence.rfind(" ", 1, MAX_CHARACTERS)
        end = end if end > 0 else MAX_CHARACTERS
        yield sentence[:end]
        sentence = sentence[end:].lstrip(" ")
    yield sentence


def _batches(sentences: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Groups the sentences for the calls of the tokenizer, in their order."""
    batch: list[tuple[int, str]] = []
    characters = 0
    for sentence in sentences:
        if batch and (len(batch) == SENTENCES_PER_CALL or characters + len(sentence[1]) > MAX_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(sentence)
        characters += len(sentence[1])
    if batch:
        yield batch


def _replace_surrogates(text: str) -> str:
    """Replaces lone surrogates by U+FFFD, because UTF-8 cannot encode them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _windows(
    ids: np.ndarray, ends: np.ndarray, text: str, max_tokens: int, long_sentences: str, counts: Counter[str]
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Ids, ends and text of a sentence, or of each of its windows if it is too long. A window of one token is left out."""
    too_long = len(ids) > max_tokens
    counts["long_sentences"] += too_long
    if too_long and long_sentences == "drop":
        return
    for start in range(0, max(len(ids), 1), max_tokens):
        window = slice(start, start + max_tokens)
        if len(ids[window]) < 2:
            counts["one_token_sentences"] += 1
            continue
        begin = ends[start - 1] if start else 0
        yield ids[window], ends[window] - begin, text[begin : ends[window][-1]] if too_long else text


def _add(
    encoded: Encoded, seen: dict[bytes, int] | None, document: int, ids: np.ndarray, ends: np.ndarray, text: str
) -> None:
    """Adds a sentence, or counts it if `seen` (hash of the ids to sentence; None to keep duplicates) contains it."""
    if seen is not None:
        digest = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
        first = seen.setdefault(digest, len(encoded.ids))
        if first < len(encoded.ids):
            encoded.multiplicity[first] += 1
            encoded.counts["duplicate_sentences"] += 1
            return
    encoded.ids.append(ids)
    encoded.ends.append(ends)
    encoded.text.append(text)
    encoded.document.append(document)
    encoded.multiplicity.append(1)


def flatten(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenates arrays of integers, int32; empty if there is no array."""
    return np.concatenate([np.empty(0, np.int32), *arrays], dtype=np.int32, casting="same_kind")
