"""How alike random prefixes are: draws of as many as a key has of each class of length, out of a pool."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from ffkv.keys.key_sample import SIMILARITY
from ffkv.keys.topics import Space

DRAWS = 4000  # random keys that a key is compared with: a single key among 200 can pass at 5 %
BLOCK = 500  # of these at a time, so that their sums fit into the cache


@dataclass(frozen=True)
class Pool:
    """Random prefixes in a latent space, those of one class of length behind those of another.

    space: the latent space. vectors: of unit length [prefix, dimension]. words: their words' weights [prefix, word].
    starts: where each class begins, and the end [class + 1].
    """

    space: Space
    vectors: np.ndarray
    words: csr_matrix
    starts: np.ndarray

    def of_class(self, number: int) -> np.ndarray:
        """The vectors of a class of length [prefix, dimension]."""
        return self.vectors[self.starts[number] : self.starts[number + 1]]


@dataclass(frozen=True)
class Block:
    """Some draws of prefixes from a pool. Each has places for prefixes of each class of length, one class after another.

    sums: by class, of the vectors in its first one, two and more places [class][places, draw, dimension].
    classes: of each place; ranks: its number, from 0, among those of its class [place].
    of_draw, first, second: pairs of places whose prefixes share a word [pair].
    change: of the pair's cosine if both are without it. only: whether one of them has no other word [pair].
    """

    sums: list[np.ndarray]
    classes: np.ndarray
    ranks: np.ndarray
    of_draw: np.ndarray
    first: np.ndarray
    second: np.ndarray
    change: np.ndarray
    only: np.ndarray

    def similarity(self, counts: np.ndarray) -> np.ndarray:
        """Mean cosine of the pairs of prefixes, each pair without the words that both have [draw].

        Args:
            counts: how many prefixes of each class are looked at [class], two or more in all.
        """
        total = sum(sums[count - 1] for sums, count in zip(self.sums, counts.tolist(), strict=True) if count)
        draws, number = len(total), counts.sum()
        looked_at = self.ranks < counts[self.classes]
        sharing = looked_at[self.first] & looked_at[self.second]
        of_draw = self.of_draw[sharing]
        change = np.bincount(of_draw, weights=self.change[sharing], minlength=draws)
        pairs = number * (number - 1) / 2 - np.bincount(of_draw, weights=self.only[sharing], minlength=draws)
        return (np.einsum("nd,nd->n", total, total) / 2 - number / 2 + change) / np.maximum(pairs, 1)


def mean_cosine(vectors: np.ndarray) -> float:
    """Mean cosine of the pairs of vectors of unit length [vector, dimension], two or more."""
    total = vectors.sum(axis=0)
    return float((total @ total - len(vectors)) / (len(vectors) * (len(vectors) - 1)))


def blocks(pool: Pool, most: np.ndarray, seed: int) -> Iterator[Block]:
    """`DRAWS` draws, in blocks. The same seed draws the same prefixes into the same places, however many there are.

    Args:
        most: places for each class [class]; none for a class of which the pool has no prefix.
    """
    classes = np.repeat(np.arange(len(most)), most)
    ranks = np.concatenate([np.arange(places) for places in most])
    drawn = [_drawn(pool, number, places, seed) for number, places in enumerate(most.tolist())]
    for start in range(0, DRAWS, BLOCK):
        parts = [numbers[:, start : start + BLOCK] for numbers in drawn]
        sums = [np.cumsum(pool.vectors[numbers], axis=0) for numbers in parts]
        yield Block(sums, classes, ranks, *_sharing(pool, np.concatenate(parts)))


def _drawn(pool: Pool, number: int, places: int, seed: int) -> np.ndarray:
    """Which prefixes of the pool stand in the places of a class [place, draw]."""
    generator = np.random.default_rng([seed, SIMILARITY, number])
    low, high = pool.starts[number : number + 2]
    return generator.integers(low, max(high, low + 1), (places, DRAWS))


def _sharing(pool: Pool, drawn: np.ndarray) -> tuple[np.ndarray, ...]:
    """The pairs of a block: `of_draw`, `first`, `second`, `change` and `only`.

    Args:
        drawn: prefixes of the pool [place, draw].
    """
    prefixes = drawn.T.ravel()
    words = pool.words[prefixes]
    place = np.repeat(np.arange(len(prefixes)), np.diff(words.indptr))  # counted over all draws
    code = place // len(drawn) * words.shape[1] + words.indices
    order = np.argsort(code, kind="stable")
    place, code = place[order], code[order]
    pairs = [np.empty((2, 0), int)]
    for shift in range(1, len(drawn)):
        same = np.flatnonzero(code[shift:] == code[:-shift])
        if not len(same):
            break
        pairs.append(np.stack([place[same], place[same + shift]]))
    first, second = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return (
        first // len(drawn),
        first % len(drawn),
        second % len(drawn),
        *_apart(pool, prefixes[first], prefixes[second]),
    )


def _apart(pool: Pool, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how much the cosine of two prefixes changes without their common words; whether one has no other [pair]."""
    words, others = pool.words[first], pool.words[second]
    common = words.multiply(others).astype(bool)
    alone = [pool.space.vectors(part - part.multiply(common)) for part in (words, others)]
    cosine = np.einsum("pd,pd->p", *alone)
    change = cosine - np.einsum("pd,pd->p", pool.vectors[first], pool.vectors[second])
    return change, ~(alone[0].any(axis=1) & alone[1].any(axis=1))
