"""Sentences to token ids."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from ffkv.corpus.document import Document
from ffkv.corpus.sentences import split_sentences
from ffkv.errors import UserError

TOGETHER = 4096  # sentences handed to the tokenizer at a time,
CHARACTERS = 1_000_000  # and characters; a sentence of more is cut, at a blank where there is one
COUNTED = (
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

    ids: token ids by sentence, BOS not among them.
    ends: for each token, the end (exclusive) of its characters in the sentence's text.
    text, document, multiplicity: by sentence; how many identical sentences each one stands for.
    counts: what was read and what was left out, by `COUNTED`.
    """

    ids: list[np.ndarray] = field(default_factory=list)
    ends: list[np.ndarray] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    multiplicity: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=lambda: Counter(dict.fromkeys(COUNTED, 0)))


def encode(
    documents: Iterable[Document],
    tokenizer,
    longest: int,
    splitter: str,
    pretokenized: bool,
    long_sentences: str,
    deduplicate: bool,
) -> Encoded:
    """Splits and tokenizes documents.

    Args:
        tokenizer: a fast tokenizer of transformers (it knows each token's characters).
        longest: most tokens a sentence may have. Longer ones are cut into `windows` or dropped, as `long_sentences` says.
        deduplicate: identical sentences (same ids) count once.
    """
    encoded, seen = Encoded(), {}
    sentences = _sentences(documents, encoded, splitter, pretokenized, long_sentences)
    for batch in _batches(sentences):
        tokens = tokenizer(
            [text for _, text in batch], add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for (document, text), ids, offsets in zip(batch, tokens["input_ids"], tokens["offset_mapping"], strict=True):
            ends = np.fromiter((end for _, end in offsets), np.int32, len(ids))
            for window in _windows(
                np.asarray(ids, np.int32), np.maximum.accumulate(ends), text, longest, long_sentences, encoded.counts
            ):
                _add(encoded, seen if deduplicate else None, document, *window)
    return encoded


def _sentences(
    documents: Iterable[Document], encoded: Encoded, splitter: str, pretokenized: bool, long_sentences: str
) -> Iterator[tuple[int, str]]:
    counts = encoded.counts
    for number, document in enumerate(documents):
        text = _decodable(document.text)
        encoded.names.append(_decodable(document.name))
        counts["documents"] += 1
        counts["empty_documents"] += not text.strip()
        counts["undecodable_documents"] += "\ufffd" in text
        for sentence in split_sentences(text, splitter, pretokenized):
            if not sentence:
                counts["empty_sentences"] += 1
                continue
            counts["sentences"] += 1
            if len(sentence) > CHARACTERS and long_sentences == "drop":
                counts["long_sentences"] += 1
                continue
            yield from ((number, part) for part in _parts(sentence))


def _parts(sentence: str) -> Iterator[str]:
    """The sentence itself, or parts that a tokenizer can take."""
    while len(sentence) > CHARACTERS:
        end = sentence.rfind(" ", 1, CHARACTERS)
        end = end if end > 0 else CHARACTERS
        yield sentence[:end]
        sentence = sentence[end:].lstrip(" ")
    yield sentence


def _batches(sentences: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """The sentences in their order, some at a time."""
    batch, characters = [], 0
    for sentence in sentences:
        if batch and (len(batch) == TOGETHER or characters + len(sentence[1]) > CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(sentence)
        characters += len(sentence[1])
    if batch:
        yield batch


def _decodable(text: str) -> str:
    """The text with U+FFFD for what no UTF-8 file can hold (lone surrogates)."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _windows(
    ids: np.ndarray, ends: np.ndarray, text: str, longest: int, long_sentences: str, counts: Counter
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """The sentence itself, or its windows where it is too long; parts of one token have no proper prefix and are counted."""
    too_long = len(ids) > longest
    counts["long_sentences"] += too_long
    if too_long and long_sentences == "drop":
        return
    for start in range(0, max(len(ids), 1), longest):
        part = slice(start, start + longest)
        if len(ids[part]) < 2:
            counts["one_token_sentences"] += 1
            continue
        begin = ends[start - 1] if start else 0
        yield ids[part], ends[part] - begin, text[begin : ends[part][-1]] if too_long else text


def _add(
    encoded: Encoded, seen: dict[bytes, int] | None, document: int, ids: np.ndarray, ends: np.ndarray, text: str
) -> None:
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


def bos_ids(tokenizer, bos: str) -> list[int]:
    """The ids that stand in front of every sentence.

    Args:
        bos: "auto" does what the tokenizer does by itself; "always" puts its BOS token; "never" nothing.
    Raises:
        UserError: "always", and the tokenizer has no BOS token.
    """
    if bos == "never":
        return []
    if bos == "always":
        if tokenizer.bos_token_id is None:
            raise UserError("corpus.bos is 'always', but the tokenizer has no BOS token: use 'auto' or 'never'.")
        return [tokenizer.bos_token_id]
    plain, special = (tokenizer("a", add_special_tokens=wanted)["input_ids"] for wanted in (False, True))
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return special[:start]
    raise UserError("The tokenizer changes a text when it adds special tokens: set corpus.bos to 'always' or 'never'.")


def flatten(parts: list[np.ndarray]) -> np.ndarray:
    """Arrays one behind the other, as int32; empty for none."""
    return (
        np.fromiter(chain.from_iterable(parts), np.int32) if len(parts) < 2 else np.concatenate(parts).astype(np.int32)
    )
