"""Scores of memories, summed up per layer."""

import math
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.intervals import bootstrap_mean
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.annotation_tables import BY_LAYER

COUNTS = ("asked", "answered", "refused")


def summarize(by_memory: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Computes means over memories, with 95 % bootstrap intervals over memories.

    The texts of a memory are similar, so memories are what is drawn, not texts. Memories whose score is undefined count
    in asked, answered and refused, and not in the mean.

    Args:
        by_memory: one row per memory, score and label.
        seed: seed of the random numbers.
    Returns:
        One row per layer (-1: all layers), score and label ("own", "other", "none"; "own - other": the mean difference
        over the memories that have both): `BY_LAYER`.
    """
    rows = []
    for layer, of_layer in [(-1, by_memory), *by_memory.groupby("layer")]:
        for number, (score, of_score) in enumerate(of_layer.groupby("score", sort=True)):
            generator = random_stream(seed, Purpose.MACHINE_BOOTSTRAP, int(layer) + 1, number + 1)
            for label, of_label in of_score.groupby("label", sort=True):
                counts = {name: int(of_label[name].sum()) for name in COUNTS}
                chance = float(of_label["chance"].iloc[0])
                rows.append({**_row(layer, score, label, of_label["value"], generator), **counts, "chance": chance})
            values = of_score.pivot(index=["layer", "memory"], columns="label", values="value")
            if {"own", "other"} <= set(values):
                difference = values["own"] - values["other"]
                rows.append({**_row(layer, score, "own - other", difference, generator), "chance": 0.0})
    return pd.DataFrame(rows, columns=BY_LAYER.names[1:]).astype(dict.fromkeys(COUNTS, "Int64"))


def _row(layer: int, score: str, label: str, values: pd.Series, generator: np.random.Generator) -> dict[str, Any]:
    known = values.dropna().to_numpy(float)
    low, high = bootstrap_mean(known, generator)
    mean = float(known.mean()) if len(known) else math.nan
    place = {"layer": int(layer), "score": score, "label": label}
    return {**place, "memories": len(known), "mean": mean, "low": low, "high": high}
