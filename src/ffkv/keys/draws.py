"""How similar random prefixes are to each other. Random keys are drawn from a pool of random prefixes.

A drawn key has as many prefixes of each length class as the real key that it is compared with.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from ffkv.keys.topics import Space
from ffkv.streams import Purpose, random_stream

NULL_DRAWS = 4000  # random keys that a key is compared with; enough for a single key among 200 to pass at 5 %
DRAWS_PER_BLOCK = 500  # few enough for the sums of their vectors to fit into the cache


@dataclass(frozen=True)
class Pool:
    """Random prefixes in a latent space, ordered by length class.

    Attributes:
        space: the latent space.
        vectors: the prefixes' vectors, of length 1 [prefix, dimension].
        words: the weights of the words that each vector was computed from [prefix, word].
        starts: the first prefix of each length class, and the number of all prefixes [class + 1].
    """

    space: Space
    vectors: np.ndarray
    words: csr_matrix
    starts: np.ndarray

    def of_class(self, length_class: int) -> np.ndarray:
        """The vectors of one length class [prefix, dimension]."""
        return self.vectors[self.starts[length_class] : self.starts[length_class + 1]]


@dataclass(frozen=True)
class DrawBlock:
    """Some draws of prefixes from a pool.

    Each draw has the same places. The places of one length class are next to each other. A pair is two places of one
    draw whose prefixes share a word.

    Attributes:
        sums: sum of the vectors in the first place, the first two places, and so on [class][place, draw, dimension].
        classes: length class of each place [place].
        ranks: number of each place among those of its class, from 0 [place].
        of_draw: draw of each pair [pair].
        left_prefix: place of the first prefix of each pair [pair].
        right_prefix: place of the second prefix of each pair [pair].
        cosine_change: change of each pair's cosine when the shared words are removed from both prefixes [pair].
        becomes_empty: True if a prefix of the pair has no word left then [pair].
    """

    sums: list[np.ndarray]
    classes: np.ndarray
    ranks: np.ndarray
    of_draw: np.ndarray
    left_prefix: np.ndarray
    right_prefix: np.ndarray
    cosine_change: np.ndarray
    becomes_empty: np.ndarray

    def similarity(self, counts: np.ndarray) -> np.ndarray:
        """Mean cosine of all pairs of prefixes, each pair without the words that both have [draw].

        Args:
            counts: number of prefixes per length class that are used, two or more in all [class].
        """
        total = sum(sums[count - 1] for sums, count in zip(self.sums, counts.tolist(), strict=True) if count)
        draws, prefixes = len(total), counts.sum()
        used = self.ranks < counts[self.classes]
        sharing = used[self.left_prefix] & used[self.right_prefix]
        of_draw = self.of_draw[sharing]
        change = np.bincount(of_draw, weights=self.cosine_change[sharing], minlength=draws)
        empty = np.bincount(of_draw, weights=self.becomes_empty[sharing], minlength=draws)
        pairs = prefixes * (prefixes - 1) / 2 - empty
        return (np.einsum("nd,nd->n", total, total) / 2 - prefixes / 2 + change) / np.maximum(pairs, 1)


def mean_cosine(vectors: np.ndarray) -> float:
    """Mean cosine of all pairs of vectors of length 1 [vector, dimension]. There must be two vectors or more."""
    total = vectors.sum(axis=0)
    return float((total @ total - len(vectors)) / (len(vectors) * (len(vectors) - 1)))


def draw_blocks(pool: Pool, places: np.ndarray, seed: int) -> Iterator[DrawBlock]:
    """Makes `NULL_DRAWS` draws, in blocks.

    The same seed draws the same prefixes into the same places, whatever the number of places.

    Args:
        places: number of places per length class; 0 for a class without a prefix in the pool [class].
    """
    classes = np.repeat(np.arange(len(places)), places)
    ranks = np.concatenate([np.arange(count) for count in places])
    draws = [_draw_prefixes(pool, number, count, seed) for number, count in enumerate(places.tolist())]
    for start in range(0, NULL_DRAWS, DRAWS_PER_BLOCK):
        by_class = [prefixes[:, start : start + DRAWS_PER_BLOCK] for prefixes in draws]
        sums = [np.cumsum(pool.vectors[prefixes], axis=0) for prefixes in by_class]
        yield DrawBlock(sums, classes, ranks, *_find_pairs(pool, np.concatenate(by_class)))


def _draw_prefixes(pool: Pool, length_class: int, places: int, seed: int) -> np.ndarray:
    """Draws prefixes of the pool into the places of one length class [place, draw]."""
    generator = random_stream(seed, Purpose.SIMILARITY, length_class)
    low, high = pool.starts[length_class : length_class + 2]
    return generator.integers(low, max(high, low + 1), (places, NULL_DRAWS))


def _find_pairs(pool: Pool, draws: np.ndarray) -> tuple[np.ndarray, ...]:
    """The fields of a `DrawBlock` that describe pairs, for draws of prefixes of the pool [place, draw]."""
    prefixes = draws.T.ravel()
    words = pool.words[prefixes]
    place = np.repeat(np.arange(len(prefixes)), np.diff(words.indptr))  # counted over all draws
    code = place // len(draws) * words.shape[1] + words.indices  # draw and word
    order = np.argsort(code, kind="stable")
    place, code = place[order], code[order]
    pairs = [np.empty((2, 0), int)]
    for shift in range(1, len(draws)):
        same = np.flatnonzero(code[shift:] == code[:-shift])
        if not len(same):
            break
        pairs.append(np.stack([place[same], place[same + shift]]))
    left, right = np.unique(np.concatenate(pairs, axis=1), axis=1)
    cosine_change, becomes_empty = _without_shared_words(pool, prefixes[left], prefixes[right])
    return left // len(draws), left % len(draws), right % len(draws), cosine_change, becomes_empty


def _without_shared_words(pool: Pool, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compares pairs of prefixes, as numbers in the pool [pair], with and without the words that both have.

    Returns:
        The change of the cosine [pair], and whether a prefix has no word left [pair].
    """
    left_words, right_words = pool.words[left], pool.words[right]
    shared = left_words.multiply(right_words).astype(bool)
    left_vectors = pool.space.vectors(left_words - left_words.multiply(shared))
    right_vectors = pool.space.vectors(right_words - right_words.multiply(shared))
    cosine = np.einsum("pd,pd->p", left_vectors, right_vectors)
    change = cosine - np.einsum("pd,pd->p", pool.vectors[left], pool.vectors[right])
    return change, np.logical_not(left_vectors.any(axis=1) & right_vectors.any(axis=1))
