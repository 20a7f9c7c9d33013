"""Which memories differ between clean and patch prompts: paired differences, sign flips of prompts, two lists.

A difference counts for a memory if hardly any random assignment of signs to the prompts makes one as large.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.multiple_tests import q_values

FIRST = 1000  # assignments that every memory is compared with
TIMES = 10  # each later round has so many times more
ENOUGH = 20  # assignments with a difference as large, after which a memory takes no more
MOST_EXACT = 14  # prompts up to which all assignments are made, 2**14 of them
NUMBERS = 2**24  # statistics that are held at a time


class Estimate(NamedTuple):
    """A mean over prompts with its interval [memory]."""

    mean: np.ndarray
    low: np.ndarray  # lower end of the t interval (95 %); NaN with one prompt
    high: np.ndarray


def weights_of(positive: np.ndarray) -> np.ndarray:
    """Returns the weight of each prompt in a contrast [prompt]: the mean; of two lists, the difference of their means.

    `positive`: whether a prompt is of the first of two lists; all True without lists [prompt].
    """
    if positive.all():
        return np.full(len(positive), 1 / len(positive))
    return np.where(positive, 1 / positive.sum(), -1 / (~positive).sum())


def is_exact(positive: np.ndarray, most: int) -> bool:
    """Tells whether all assignments of signs are made: few prompts, and no lists. Arguments: as in `assignments`."""
    return bool(positive.all()) and len(positive) <= MOST_EXACT and 2 ** len(positive) <= most


def assignments(positive: np.ndarray, most: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields what a contrast is compared with, in rounds: weights of the prompts [assignment, prompt], float32.

    Without lists each prompt has a random sign: all assignments of up to `MOST_EXACT` prompts, else random ones. Prompts of
    two lists change places at random.

    Args:
        positive: as in `weights_of`.
        most: number of assignments of the last round, together with those before.
    """
    weights, count = weights_of(positive).astype(np.float32), len(positive)
    if is_exact(positive, most):
        bits = np.arange(2**count)[:, None] >> np.arange(count) & 1
        yield (1 - 2 * bits).astype(np.float32) * weights
        return
    done, size = 0, min(FIRST, most)
    while done < most:
        if positive.all():
            yield generator.choice(np.array([-1, 1], np.float32), (size, count)) * weights
        else:
            yield generator.permuted(np.tile(weights, (size, 1)), axis=1)
        done += size
        size = min(done * (TIMES - 1), most - done)


def p_values(values: np.ndarray, positive: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """Returns the p-value of the contrast of each memory, two-sided [memory].

    It is the share of assignments with a contrast as large, the memory's own one among them. A memory with `ENOUGH` of them takes
    no further round (Besag and Clifford 1991), so p-values of other memories are more exact. Of all assignments there are, the
    share is exact. A memory whose values are all 0 has 1.

    Args:
        values: of each prompt, float32 [prompt, memory].
        positive: as in `weights_of`.
        most: as in `assignments`.
    """
    own = np.abs(weights_of(positive).astype(np.float32) @ values)
    # Sums of the same numbers in another order differ by rounding alone.
    own = own - 1e-5 * np.abs(weights_of(positive)).astype(np.float32) @ np.abs(values)
    as_large, tried = np.zeros((2, len(own)))
    open_memories = np.arange(len(own))
    for weights in assignments(positive, most, generator):
        of_open = np.ascontiguousarray(values[:, open_memories])
        rows = max(1, NUMBERS // max(1, len(open_memories)))
        for start in range(0, len(weights), rows):
            found = np.abs(weights[start : start + rows] @ of_open)
            as_large[open_memories] += (found >= own[open_memories]).sum(0)
        tried[open_memories] += len(weights)
        open_memories = open_memories[as_large[open_memories] < ENOUGH]
        if not len(open_memories):
            break
    return as_large / tried if is_exact(positive, most) else (1 + as_large) / (1 + tried)


def estimate(values: np.ndarray, positive: np.ndarray) -> Estimate:
    """Returns the contrast of each memory with its t interval (of two lists: Welch's). `values`: see `p_values`."""
    from scipy.special import stdtrit  # which commands that compute no interval need not wait for

    groups = [own for own in (values[positive].astype(np.float64), values[~positive].astype(np.float64)) if len(own)]
    means = [own.mean(0) for own in groups]
    mean = means[0] - means[1] if len(means) == 2 else means[0]
    if any(len(own) < 2 for own in groups):
        return Estimate(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    errors = np.stack([own.var(0, ddof=1) / len(own) for own in groups])
    freedom = np.array([len(own) - 1 for own in groups])
    with np.errstate(invalid="ignore"):  # no variance, no width
        degrees = np.nan_to_num(errors.sum(0) ** 2 / (errors**2 / freedom[:, None]).sum(0), nan=1.0)
    half = stdtrit(degrees, 0.975) * np.sqrt(errors.sum(0))
    return Estimate(mean, mean - half, mean + half)


def contrast(
    chosen: np.ndarray,
    estimated: np.ndarray,
    positive: tuple[np.ndarray, np.ndarray],
    most: int,
    generator: np.random.Generator,
) -> pd.DataFrame:
    """Returns the contrast of each memory of a layer: one half of the prompts tests it, the other one estimates it.

    Args:
        chosen: values of the memories on the prompts of the first half [prompt, memory].
        estimated: those on the prompts of the second half [prompt, memory].
        positive: as in `weights_of`, of both halves.
        most: as in `assignments`.
    Returns:
        Columns `contrast` (first half), `p_value`, `q_value` (Benjamini-Hochberg within the layer), `estimate`, `low` and `high`
        (second half), a row per memory.
    """
    p = p_values(chosen, positive[0], most, generator)
    mean, low, high = estimate(estimated, positive[1])
    return pd.DataFrame(
        {
            "contrast": weights_of(positive[0]) @ chosen.astype(np.float64),
            "p_value": p,
            "q_value": q_values(p, len(p)),
            "estimate": mean,
            "low": low,
            "high": high,
        }
    )
