"""The effect of low-precision weights on trigger examples: their coefficients, computed again in float32."""

import numpy as np

from ffkv.activations.trigger_file import Triggers
from ffkv.branches.keys.key_sample import trigger_prefixes
from ffkv.branches.keys.removal import Coefficients
from ffkv.corpus.corpus_file import Corpus


def rescore(
    triggers: Triggers, corpus: Corpus, layer: int, keys: np.ndarray, coefficients: Coefficients
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the coefficients of the trigger examples of some keys [key] of a layer again.

    Returns:
        The memory of each trigger example, its stored coefficient, and its new coefficient [trigger], ordered by key
        and rank.
    """
    memories, stored, prefixes = trigger_prefixes(triggers, corpus, layer, keys, triggers.sentence.shape[1])
    rows = [np.concatenate([corpus.bos, prefix]) for prefix in prefixes]
    return memories, stored, coefficients(rows, memories)


def precision_row(layer: int, memories: np.ndarray, coefficients: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Measures how far the coefficients of a layer's trigger examples are from those in float32.

    Args:
        memories: memory of each trigger example, ordered by memory and rank [trigger].
        coefficients: coefficients of the run, positive [trigger].
        exact: coefficients in float32 [trigger].
    Returns:
        A row of `PRECISION`. error_median and error_largest are of |m - exact| / m. first_stays is the share of keys
        whose highest trigger example is also the highest in float32. upper_half_stays is the share of the trigger
        examples in the upper half of their key's list that are in the upper half in float32, too. A share of nothing
        is NaN.
    """
    starts = np.flatnonzero(np.diff(memories, prepend=-1))
    errors = np.abs(coefficients - exact) / coefficients
    first_stays, stays, halves = [], 0, 0
    for exact_of_key in np.split(exact, starts)[1:]:
        order, half = np.argsort(-exact_of_key, kind="stable"), len(exact_of_key) // 2
        first_stays.append(order[0] == 0)
        stays += int(np.count_nonzero(order[:half] < half))
        halves += half
    return {
        "layer": layer,
        "keys": len(starts),
        "triggers": len(memories),
        "error_median": np.median(errors) if len(errors) else np.nan,
        "error_largest": errors.max() if len(errors) else np.nan,
        "first_stays": np.mean(first_stays) if first_stays else np.nan,
        "upper_half_stays": stays / halves if halves else np.nan,
    }
