"""The scores of an explanation, as docs/annotation.md defines them."""

from collections.abc import Sequence

import numpy as np


def balanced_accuracy(trigger: Sequence[bool], said: Sequence[bool]) -> float:
    """Computes the mean of the share of trigger examples that were named and the share of others that were not.

    Guessing gives 0.5, whatever the share of trigger examples.

    Args:
        trigger: whether each text is a trigger example [text].
        said: whether the annotator named it [text].
    Returns:
        A number from 0 to 1; NaN if there are no trigger examples, or nothing else.
    """
    sensitivity, specificity = rates(trigger, said)
    return (sensitivity + specificity) / 2


def rates(trigger: Sequence[bool], said: Sequence[bool]) -> tuple[float, float]:
    """Computes the sensitivity (share of triggers that were named) and the specificity (share of others that were not).

    Args:
        trigger: whether each text is a trigger example [text].
        said: whether the annotator named it [text].
    Returns:
        Both; NaN where there are no such texts.
    """
    truth, named = np.asarray(trigger, bool), np.asarray(said, bool)
    return _share(named[truth]), _share(~named[~truth])


def _share(flags: np.ndarray) -> float:
    return float(flags.mean()) if len(flags) else float("nan")


def correlation(true: Sequence[float], simulated: Sequence[float]) -> float:
    """Computes Pearson's correlation of true and simulated coefficients, over all texts of a memory together.

    Returns:
        A number from -1 to 1; NaN if one of them does not vary, or of fewer than 3 texts.
    """
    a, b = np.asarray(true, float), np.asarray(simulated, float)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))


def intruder_accuracy(places: Sequence[int], said: Sequence[int]) -> float:
    """Computes the share of sets in which the annotator found the intruder. Guessing gives 1 / texts per set.

    Args:
        places: place of the intruder [set].
        said: place that the annotator named [set].
    Returns:
        A number from 0 to 1; NaN without sets.
    """
    return _share(np.asarray(places, int) == np.asarray(said, int))
