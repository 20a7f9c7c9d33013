"""How alike the sets of memories are that other prompts give: Jaccard and rank-biased overlap."""

import numpy as np

PERSISTENCE = 0.9  # of rank-biased overlap: the first 10 ranks have some 86 % of the weight


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the share of memories in both sets among those in any; NaN if both are empty."""
    union = np.union1d(first, second)
    return len(np.intersect1d(first, second)) / len(union) if len(union) else np.nan


def rank_biased_overlap(first: np.ndarray, second: np.ndarray, persistence: float = PERSISTENCE) -> float:
    """Returns how much two rankings of equal length overlap, the first ranks counting most (Webber et al. 2010, equation 32).

    What is behind the last rank is taken to overlap as the ranks before: 1 for equal rankings, 0 for disjoint ones.
    """
    depth = len(first)
    if not depth:
        return np.nan
    place = {memory: rank for rank, memory in enumerate(second.tolist())}
    # The rank, of both, from which a memory is in the overlap.
    both = [max(rank, place[memory]) for rank, memory in enumerate(first.tolist()) if memory in place]
    overlap = np.cumsum(np.bincount(both, minlength=depth)[:depth]) / np.arange(1, depth + 1)
    weights = (1 - persistence) * persistence ** np.arange(depth)
    return float((weights * overlap).sum() + overlap[-1] * persistence**depth)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the memories with the largest values, descending; of equal ones the first. `values` [memory]."""
    return np.argsort(-values, kind="stable")[:count]


def resampled(
    values: np.ndarray, positive: np.ndarray, count: int, times: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Returns the memories with the largest contrast over prompts that are drawn again with replacement [time][rank].

    Args:
        values: [prompt, memory].
        positive: whether each prompt counts for or against; the prompts of each kind are drawn again by themselves [prompt].
        count: number of memories.
        times: number of draws.
        generator: of the draws.
    """
    weights = np.zeros((times, len(values)), np.float32)
    for kind, sign in ((positive, 1), (~positive, -1)):
        if prompts := int(kind.sum()):
            weights[:, kind] = sign / prompts * generator.multinomial(prompts, np.full(prompts, 1 / prompts), times)
    return [largest(np.abs(of_draw @ values), count) for of_draw in weights]
