"""Prefixes that several sentences begin with.

Only proper prefixes count: a token of the sentence follows them. They are found length by length, among the sentences
that were alike so far.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ffkv.base.files.datasets import dataset
from ffkv.base.files.hdf5 import Pieces

HISTOGRAM_EVERY = 8  # the histogram of coefficients counts the prefixes of every eighth sentence
PREFIX: dict[str, Any] = {"dimensions": "shared_prefix", "dtype": "int32", "lazy": True}
NEXT: dict[str, Any] = {"dimensions": "next_token", "dtype": "int32", "lazy": True}


@dataclass(frozen=True, kw_only=True)
class SharedPrefixes:
    """The prefixes that several sentences begin with, ordered by sentence and position."""

    sentence: Pieces | np.ndarray = dataset(
        **PREFIX, unit="sentence", about="sentence that the prefix is read in", of="sentence"
    )
    position: Pieces | np.ndarray = dataset(**PREFIX, unit="token", about="length of the prefix, BOS not counted")
    multiplicity: Pieces | np.ndarray = dataset(
        **PREFIX, unit="sentence", about="number of sentences that begin with the prefix"
    )
    in_histogram: Pieces | np.ndarray = dataset(
        **PREFIX, unit="sentence", about="how many of these sentences the histogram of coefficients counts"
    )
    next_offset: Pieces | np.ndarray = dataset(
        "shared_prefix_boundary",
        "int64",
        unit="1",
        about="where the part of `next_token` of a prefix starts",
        of="next_token",
        lazy=True,
    )
    next_token: Pieces | np.ndarray = dataset(
        **NEXT,
        unit="token",
        about="tokens that follow a prefix: the most frequent first, equally frequent ones in the order of the corpus",
    )
    next_count: Pieces | np.ndarray = dataset(
        **NEXT, unit="sentence", about="how many sentences have this token after the prefix"
    )

    def __len__(self) -> int:
        """Returns the number of shared prefixes."""
        return len(self.sentence)

    def find(self, sentence: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Looks up prefixes by the sentence that they are read in and their length; arrays of one shape.

        Returns whether each prefix is shared, and its number (0 if it is not), both of that shape.
        """
        if not len(self):
            return np.zeros(np.shape(sentence), bool), np.zeros(np.shape(sentence), np.int64)
        wanted = prefix_number(sentence, position)
        number = np.minimum(np.searchsorted(self._places, wanted), len(self) - 1)
        shared = self._places[number] == wanted
        return shared, np.where(shared, number, 0)

    def of_sentences(self, sentences: np.ndarray) -> np.ndarray:
        """Numbers of the shared prefixes that are read in some sentences [prefix]."""
        starts, ends = (np.searchsorted(self._places, prefix_number(sentences + after, 0)) for after in (0, 1))
        return np.concatenate([np.empty(0, np.int64), *map(np.arange, starts, ends)])

    @functools.cached_property
    def _places(self) -> np.ndarray:
        return prefix_number(np.asarray(self.sentence), np.asarray(self.position))


def prefix_number(sentence: np.ndarray, position: np.ndarray | int) -> np.ndarray:
    """Prefixes, by their sentence and their length in tokens, as numbers that sort as both do."""
    return np.asarray(sentence, np.int64) << 32 | np.asarray(position, np.int64)


def find_shared_prefixes(tokens: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, SharedPrefixes]:
    """Finds the prefixes that several sentences begin with, from the ids of all sentences and where each starts.

    Each sentence has two tokens or more. Each distinct prefix is read in one sentence. A sentence whose prefixes are
    all prefixes of another one is not read. Of the sentences that are read, the first one in the corpus counts. Returns
    for each sentence the length of its shortest prefix that is read in it, more than any of its prefixes has if it is not
    read [sentence]; and the shared prefixes.
    """
    length = np.diff(offsets) - 1
    read, first_new = np.ones(len(length), bool), np.zeros(len(length), np.int32)
    for position, sentences, prefix in _alike(tokens, offsets):
        goes_on, repeats = length[sentences] > position, np.ones(len(sentences), bool)
        repeats[np.unique(prefix, return_index=True)[1]] = False  # all but the first sentence of each prefix
        read[sentences[~goes_on & (repeats | np.isin(prefix, prefix[goes_on]))]] = False
    parts: list[_OneLength] = []
    for position, sentences, prefix in _alike(tokens, offsets):
        parts.append(_of_length(position, sentences, prefix, read[sentences], tokens[offsets[sentences] + position]))
        first_new[sentences[sentences != parts[-1].sentence[prefix]]] = position + 1
    first_new[~read] = length[~read] + 1
    return first_new, _collect(parts)


def _alike(tokens: np.ndarray, offsets: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields, for each length from 0, the sentences whose proper prefix of this length others have, too, ascending; and
    the number of the prefix of each, from 0.
    """
    length = np.diff(offsets) - 1
    sentences, prefix, position = np.arange(len(length)), np.zeros(len(length), np.int64), 0
    while len(sentences) > 1:
        yield position, sentences, prefix
        longer = length[sentences] > position
        sentences, prefix = sentences[longer], prefix[longer]
        following = prefix << 32 | tokens[offsets[sentences] + position]
        _, number, counts = np.unique(following, return_inverse=True, return_counts=True)
        shared = counts[number] > 1
        sentences, prefix = sentences[shared], (np.cumsum(counts > 1) - 1)[number[shared]]
        position += 1


class _OneLength(NamedTuple):
    """The shared prefixes of one length. Fields without a comment are as in `SharedPrefixes`."""

    sentence: np.ndarray
    position: np.ndarray
    multiplicity: np.ndarray
    in_histogram: np.ndarray
    different: np.ndarray  # number of different tokens that follow [prefix]
    next_token: np.ndarray
    next_count: np.ndarray


def _of_length(
    position: int, sentences: np.ndarray, prefix: np.ndarray, read: np.ndarray, following: np.ndarray
) -> _OneLength:
    """Returns the shared prefixes of one length, from `_alike`. `read`: whether each sentence is read; `following`: the token behind
    the prefix in it.
    """
    count = int(prefix.max()) + 1
    _, readers = np.unique(prefix[read], return_index=True)
    pairs, first, counts = np.unique(prefix << 32 | following, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts, pairs >> 32))  # by prefix, then frequency, then the first sentence
    return _OneLength(
        sentence=sentences[read][readers],
        position=np.full(count, position),
        multiplicity=np.bincount(prefix),
        in_histogram=np.bincount(prefix, sentences % HISTOGRAM_EVERY == 0),
        different=np.bincount(pairs >> 32),
        next_token=pairs[order] & 0xFFFFFFFF,
        next_count=counts[order],
    )


def _collect(parts: list[_OneLength]) -> SharedPrefixes:
    """Puts the prefixes of all lengths into order."""
    empty = np.empty(0, np.int64)
    columns = zip(*parts, strict=True) if parts else [()] * len(_OneLength._fields)
    together = _OneLength(*(np.concatenate([empty, *column]).astype(np.int64) for column in columns))
    order = np.lexsort((together.position, together.sentence))
    sizes = together.different[order]
    starts = (np.cumsum(together.different) - together.different)[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    moved = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
    of_prefixes = ("sentence", "position", "multiplicity", "in_histogram")
    return SharedPrefixes(
        **{name: getattr(together, name)[order].astype(np.int32) for name in of_prefixes},
        next_offset=offsets,
        next_token=together.next_token[moved].astype(np.int32),
        next_count=together.next_count[moved].astype(np.int32),
    )
