"""How much two lists of trigger examples have in common."""

from collections.abc import Iterator

import numpy as np

PERSISTENCE = 0.9  # of rank-biased overlap: the first ten places have 86 % of the weight
BLOCK_BYTES = 2**26  # of the pairs of examples that are compared at a time, a byte each
NONE = -1


def jaccard(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the Jaccard index of two lists: the number of examples in both, over the number in any of them.

    Args:
        a, b: numbers of examples, each once, and then -1 [memory, rank]. Both lists may have other lengths.
    Returns:
        Between 0 and 1 [memory]; NaN where both lists are empty.
    """
    found = [np.zeros(0)]
    for same, length_a, length_b in _blocks(a, b):
        shared = same.any(2).sum(1)
        union = length_a + length_b - shared
        found.append(np.divide(shared, union, out=np.full(len(shared), np.nan), where=union > 0))
    return np.concatenate(found)


def rank_biased_overlap(a: np.ndarray, b: np.ndarray, p: float = PERSISTENCE) -> np.ndarray:
    """Rank-biased overlap of two lists, extrapolated (Webber, Moffat and Zobel 2010, equation 32).

    The first places count most: a person who looks at one place goes on to the next one with the probability p.

    Args:
        a, b: see `jaccard`.
        p: the persistence, between 0 and 1.
    Returns:
        1 for equal lists, 0 for lists without a common example [memory]; NaN where a list is empty.
    """
    return np.concatenate([np.zeros(0), *(_overlap_of(*block, p) for block in _blocks(a, b))])


def block_size(length_a: int, length_b: int) -> int:
    """Returns the number of memories that are compared at a time, of lists of these lengths."""
    return max(1, BLOCK_BYTES // max(1, length_a * length_b))


def _overlap_of(same: np.ndarray, length_a: np.ndarray, length_b: np.ndarray, p: float) -> np.ndarray:
    deepest = max(same.shape[1:])
    rank_a, rank_b = np.arange(1, same.shape[1] + 1)[:, None], np.arange(1, same.shape[2] + 1)
    seen_at = np.broadcast_to(np.maximum(rank_a, rank_b), same.shape[1:])  # depth from which on a shared example counts
    common = np.zeros((len(same), deepest + 1))
    np.add.at(common, (np.nonzero(same)[0], np.broadcast_to(seen_at, same.shape)[same]), 1)
    common = np.cumsum(common, 1)[:, 1:]  # number of shared examples up to each depth
    d = np.arange(1, deepest + 1)
    short, long = np.minimum(length_a, length_b), np.maximum(length_a, length_b)
    rows, exists = np.arange(len(same)), short > 0
    at_short, at_long = common[rows, np.maximum(short, 1) - 1], common[rows, np.maximum(long, 1) - 1]
    inside, beyond = d <= long[:, None], (d > short[:, None]) & (d <= long[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.where(inside, common / d * p**d, 0).sum(1)
        missing = at_short[:, None] * (d - short[:, None]) / (short[:, None] * d) * p**d
        total += np.where(beyond, missing, 0).sum(1)
        found = (1 - p) / p * total + ((at_long - at_short) / long + at_short / short) * p**long
    return np.where(exists, found, np.nan)


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields, of some memories each: whether examples are the same [memory, rank, rank]; both lengths [memory]."""
    size = block_size(a.shape[1], b.shape[1])
    for start in range(0, len(a), size):
        x, y = a[start : start + size], b[start : start + size]
        same = (x[:, :, None] == y[:, None, :]) & (x != NONE)[:, :, None]
        yield same, (x != NONE).sum(1), (y != NONE).sum(1)
