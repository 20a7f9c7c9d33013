"""How much two lists of trigger examples have in common."""

import numpy as np

PERSISTENCE = 0.9  # of rank-biased overlap: the first ten places have 86 % of the weight
BLOCK = 1024  # memories at a time
NONE = -1


def jaccard(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The Jaccard index of two lists: the number of examples in both, over the number in any of them.

    Args:
        a, b: numbers of examples, each once, and then -1 [memory, rank]. Both lists may have other lengths.
    Returns:
        Between 0 and 1 [memory]; NaN where both lists are empty.
    """
    shared = np.concatenate([(same.any(2)).sum(1) for same in _same(a, b)]) if len(a) else np.zeros(0)
    union = (a != NONE).sum(1) + (b != NONE).sum(1) - shared
    return np.divide(shared, union, out=np.full(len(a), np.nan), where=union > 0)


def rank_biased_overlap(a: np.ndarray, b: np.ndarray, p: float = PERSISTENCE) -> np.ndarray:
    """Rank-biased overlap of two lists, extrapolated (Webber, Moffat and Zobel 2010, equation 32).

    The first places count most: a person who looks at one place goes on to the next one with the probability p.

    Args:
        a, b: see `jaccard`.
        p: the persistence, between 0 and 1.
    Returns:
        1 for equal lists, 0 for lists without a common example [memory]; NaN where a list is empty.
    """
    return np.concatenate([_overlap_of(same, *lengths, p) for same, *lengths in _with_lengths(a, b)] or [np.zeros(0)])


def _overlap_of(same: np.ndarray, length_a: np.ndarray, length_b: np.ndarray, p: float) -> np.ndarray:
    """Of one block: same [memory, rank in a, rank in b]."""
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


def _same(a: np.ndarray, b: np.ndarray):
    return (same for same, _, _ in _with_lengths(a, b))


def _with_lengths(a: np.ndarray, b: np.ndarray):
    """Per block of memories: which examples are the same [memory, rank in a, rank in b], and the lengths of both lists."""
    for start in range(0, len(a), BLOCK):
        x, y = a[start : start + BLOCK], b[start : start + BLOCK]
        same = (x[:, :, None] == y[:, None, :]) & (x != NONE)[:, :, None]
        yield same, (x != NONE).sum(1), (y != NONE).sum(1)
