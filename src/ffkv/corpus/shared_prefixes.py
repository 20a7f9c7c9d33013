"""Prefixes that several sentences begin with.

Only proper prefixes count: a token of the sentence follows them. In sorted order, sentences that begin alike are
neighbours. So the lengths of the common beginnings of neighbours tell every shared prefix.
"""

import functools
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


class _Sorted(NamedTuple):
    """Sentences without their last tokens, in the order of their ids: a prefix of another one directly precedes it."""

    sentence: np.ndarray  # number of the sentence [place]
    start: np.ndarray  # where it starts among the tokens [place]
    length: np.ndarray  # its length, without the last token [place]
    common: np.ndarray  # number of tokens that it has in common with the one before it; -1 for the first [place]


def find_shared_prefixes(tokens: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, SharedPrefixes]:
    """Finds the prefixes that several sentences begin with, from the ids of all sentences and where each starts.

    Each sentence has two tokens or more. Each distinct prefix is read in one sentence. A sentence whose prefixes are
    all prefixes of another one is not read. Of the sentences that are read, the first one in the corpus counts. Returns
    for each sentence the length of its shortest prefix that is read in it, more than any of its prefixes has if it is not
    read [sentence]; and the shared prefixes.
    """
    ordered = _sort(tokens, offsets)
    read = np.ones(len(ordered.sentence), bool)
    read[:-1] = ordered.common[1:] < ordered.length[:-1]
    first_new = np.zeros(len(ordered.sentence), np.int32)
    parts: list[_OneLength] = []
    pairs = np.arange(1, len(ordered.sentence))  # places that begin like the one before
    position = 0
    while len(pairs):
        parts.append(_of_length(tokens, ordered, read, pairs, position, first_new))
        position += 1
        pairs = pairs[ordered.common[pairs] >= position]
    first_new[ordered.sentence[~read]] = ordered.length[~read] + 1
    return first_new, _collect(parts)


def _sort(tokens: np.ndarray, offsets: np.ndarray) -> _Sorted:
    """Sorts token by token, and only sentences that are alike up to there, so that no copy of their ids is needed."""
    start, length = offsets[:-1], np.diff(offsets) - 1
    # Of identical rows the first in the corpus is the last here: it is the one that is read.
    order = np.arange(len(start))[::-1].copy()
    common = np.full(len(order), -1, np.int64)
    places, group, position = np.arange(len(order)), np.zeros(len(order), np.int64), 0
    while len(places):
        sentence = order[places]
        token = np.where(length[sentence] > position, tokens[start[sentence] + position], -1)  # -1: it ends here
        by = np.lexsort((token, group))
        order[places], token = sentence[by], token[by]
        neighbours = group[1:] == group[:-1]
        alike = neighbours & (token[1:] == token[:-1]) & (token[1:] >= 0)
        common[places[1:][neighbours & ~alike]] = position
        group = np.cumsum(np.concatenate([[True], ~alike]))
        tied = np.concatenate([alike, [False]]) | np.concatenate([[False], alike])
        places, group, position = places[tied], group[tied], position + 1
    return _Sorted(order, start[order], length[order], common)


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
    tokens: np.ndarray, ordered: _Sorted, read: np.ndarray, pairs: np.ndarray, position: int, first_new: np.ndarray
) -> _OneLength:
    """Returns the shared prefixes of the length `position`. Notes in `first_new` which sentences do not read theirs."""
    begins = np.diff(pairs, prepend=-1) != 1  # the place before such a pair belongs to the group, too
    places = np.concatenate([pairs[begins] - 1, pairs])
    prefix = np.concatenate([np.arange(begins.sum()), np.cumsum(begins) - 1])  # which one each place begins with
    count, sentences = int(begins.sum()), ordered.sentence[places]
    reader = np.full(count, len(ordered.sentence), np.int64)
    np.minimum.at(reader, prefix[read[places]], sentences[read[places]])
    first_new[sentences[sentences != reader[prefix]]] = position + 1
    owner, next_token, next_count = _count_tokens(prefix, tokens[ordered.start[places] + position], sentences)
    return _OneLength(
        sentence=reader,
        position=np.full(count, position),
        multiplicity=np.bincount(prefix, minlength=count),
        in_histogram=np.bincount(prefix, sentences % HISTOGRAM_EVERY == 0, minlength=count),
        different=np.bincount(owner, minlength=count),
        next_token=next_token,
        next_count=next_count,
    )


def _count_tokens(
    prefix: np.ndarray, following: np.ndarray, sentences: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns prefix, next token and count [pair], ordered by prefix, then frequency, then the first sentence."""
    keys = prefix << 32 | following.astype(np.int64)
    different, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
    first = np.full(len(different), sentences.max() + 1, np.int64)
    np.minimum.at(first, which, sentences)
    order = np.lexsort((first, -counts, different >> 32))
    return different >> 32, different[order] & 0xFFFFFFFF, counts[order]


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
