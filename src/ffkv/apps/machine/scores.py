"""The scores of an explanation, as docs/annotation.md defines them, and their means per layer.

Sequences have one entry per text [text], or per set of the intruder test [set]. A score is NaN where it is undefined.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.intervals import mean_interval
from ffkv.run.annotation_tables import BY_LAYER

COUNTS = ("asked", "answered", "refused")


def balanced_accuracy(trigger: Sequence[bool], said: Sequence[bool]) -> float:
    """Computes the mean of the two `rates`. Guessing gives 0.5, whatever the share of trigger examples."""
    sensitivity, specificity = rates(trigger, said)
    return (sensitivity + specificity) / 2


def rates(trigger: Sequence[bool], said: Sequence[bool]) -> tuple[float, float]:
    """Computes the sensitivity (share of triggers that were named) and the specificity (share of others that were not).

    `trigger`: whether each text is a trigger example; `said`: whether the annotator named it.
    """
    truth, named = np.asarray(trigger, bool), np.asarray(said, bool)
    return _share(named[truth]), _share(~named[~truth])


def _share(flags: np.ndarray) -> float:
    return float(flags.mean()) if len(flags) else math.nan


def correlation(true: Sequence[float], simulated: Sequence[float]) -> float:
    """Computes Pearson's correlation of true and simulated coefficients, over all texts of a memory together.

    It is NaN if one of them does not vary, or of fewer than 3 texts.
    """
    a, b = np.asarray(true, float), np.asarray(simulated, float)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))


def intruder_accuracy(places: Sequence[int], said: Sequence[int]) -> float:
    """Computes the share of sets in which the annotator named the intruder's place. Guessing gives 1 / texts per set."""
    return _share(np.asarray(places, int) == np.asarray(said, int))


def summarize(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Computes means over memories, with 95 % intervals over memories.

    The texts of a memory are similar, so memories are what is drawn, not texts. Memories whose score is undefined count
    in asked, answered and refused, and not in the mean. Takes rows of `SCORES`, and returns rows of `BY_LAYER`. The label
    "own - other" is of the mean difference over the memories that have both.
    """
    rows = []
    for layer, of_layer in [(-1, by_memory), *by_memory.groupby("layer")]:
        for score, of_score in of_layer.groupby("score", sort=True):
            lowest = -1 if score == "simulation" else 0  # a correlation, or a share
            for label, of_label in of_score.groupby("label", sort=True):
                counts = {name: int(of_label[name].sum()) for name in COUNTS}
                chance = float(of_label["chance"].iloc[0])
                rows.append({**_row(layer, score, label, of_label["value"], (lowest, 1)), **counts, "chance": chance})
            values = of_score.pivot(index=["layer", "memory"], columns="label", values="value")
            if {"own", "other"} <= set(values):
                difference = values["own"] - values["other"]
                rows.append({**_row(layer, score, "own - other", difference, (lowest - 1, 1 - lowest)), "chance": 0.0})
    return pd.DataFrame(rows, columns=BY_LAYER.names[1:]).astype(dict.fromkeys(COUNTS, "Int64"))


def _row(layer: int, score: str, label: str, values: pd.Series, limits: tuple[float, float]) -> dict[str, Any]:
    known = values.dropna().to_numpy(float)
    low, high = mean_interval(known, *limits)
    mean = float(known.mean()) if len(known) else math.nan
    place = {"layer": int(layer), "score": score, "label": label}
    return {**place, "memories": len(known), "mean": mean, "low": low, "high": high}
