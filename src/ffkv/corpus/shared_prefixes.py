"""Prefixes that several sentences begin with.

Only proper prefixes count: a token of the sentence follows them. They are found length by length, among the sentences
that were alike so far.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
        goes_on = length[sentences] > position
        repeats = np.ones(len(sentences), bool)  # all but the first sentence of each prefix
        repeats[np.unique(prefix, return_index=True)[1]] = False
        read[sentences[~goes_on & (repeats | np.isin(prefix, prefix[goes_on]))]] = False
    shared, following = [np.empty((0, 3), np.int64)], [np.empty((0, 3), np.int64)]
    for position, sentences, prefix in _alike(tokens, offsets):
        # Of each prefix, the first sentence that is read; of each token that follows one, the first sentence, too.
        _, first = np.unique(prefix[read[sentences]], return_index=True)
        reader = sentences[read[sentences]][first]
        pairs = prefix << 32 | tokens[offsets[sentences] + position]
        pairs, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        order = np.lexsort((first, -counts, pairs >> 32))
        number = prefix_number(reader, position)
        in_histogram = np.bincount(prefix, sentences % HISTOGRAM_EVERY == 0).astype(np.int64)
        shared.append(np.column_stack([number, np.bincount(prefix), in_histogram]))
        following.append(np.column_stack([number[pairs >> 32], pairs & 0xFFFFFFFF, counts])[order])
        first_new[sentences[sentences != reader[prefix]]] = position + 1
    first_new[~read] = length[~read] + 1
    prefixes, nexts = (rows[rows[:, 0].argsort(kind="stable")] for rows in map(np.concatenate, (shared, following)))
    number, multiplicity, in_histogram = prefixes.T
    return first_new, SharedPrefixes(
        sentence=(number >> 32).astype(np.int32),
        position=(number & 0xFFFFFFFF).astype(np.int32),
        multiplicity=multiplicity.astype(np.int32),
        in_histogram=in_histogram.astype(np.int32),
        next_offset=np.append(0, np.searchsorted(nexts[:, 0], number, "right")),
        next_token=nexts[:, 1].astype(np.int32),
        next_count=nexts[:, 2].astype(np.int32),
    )


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
