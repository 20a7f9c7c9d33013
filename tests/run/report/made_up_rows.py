"""Rows of made-up numbers for any table, from its description: in the limits of each column, with the words that it may hold."""

from itertools import product

import numpy as np
import pandas as pd

from ffkv.base.files.columns import Column, Table
from tests.run.report.made_up import HOSTILE, VOCABULARY

# Columns whose values are in this order in each row, where a table has them.
IN_ORDER = (
    ("whisker_low", "q1", "median", "q3", "whisker_high"),
    ("low", "share", "high"),
    ("share_low", "share", "share_high"),
    ("low", "rate", "high"),
    ("rate_low", "rate", "rate_high"),
    ("low", "mean", "high"),
    ("low", "divergence", "high"),
    ("low", "change", "high"),
    ("low", "top", "high"),
    ("effective_q1", "effective_median", "effective_q3"),
    ("firing_q1", "firing_median", "firing_q3"),
)


BEHAVIOUR = "agreement"


def made_up(table: Table, layers: int, generator: np.random.Generator, rows: int = 18) -> pd.DataFrame:
    """A table with a row per layer and combination of words; of `rows` rows if it has no layer of its own."""
    named = [column for column in table.columns if column.choices]
    per_layer = table.columns[0].name == "layer" or table.columns[1].name == "layer"
    first = -1 if any(column.name == "layer" and column.lowest == -1 for column in table.columns) else 0
    keys = product(range(first, layers) if per_layer else range(rows), *(column.choices for column in named))
    frame = pd.DataFrame([*keys], columns=["layer", *(column.name for column in named)])
    for column in table.columns:
        if column.name not in frame and not column.optional:
            frame[column.name] = _values(column, len(frame), generator)
    if table.name == "behaviours":  # a row per behaviour
        frame = frame.head(1)
    if "expert" in frame:  # a row for each way in which it leaves
        frame["expert"] = 0
    for names in IN_ORDER:
        if all(name in frame and pd.api.types.is_numeric_dtype(frame[name]) for name in names):
            frame[[*names]] = np.sort(frame[[*names]].to_numpy(float), axis=1)
    return frame[[column.name for column in table.columns if not column.optional]]


def _values(column: Column, count: int, generator: np.random.Generator) -> list:
    if column.name == "behaviour":
        return [BEHAVIOUR] * count
    if column.foreign:
        return [
            (VOCABULARY[n % len(VOCABULARY)], "".join(HOSTILE[: n % 9 + 1]))[column.name == "text"]
            for n in range(count)
        ]
    if column.dtype == "bool":
        return generator.integers(0, 2, count).astype(bool).tolist()
    if column.dtype.startswith(("int", "Int")):
        return generator.integers(max(column.lowest or 0, 0), 20, count).tolist()
    if column.dtype == "str":
        return ["word"] * count
    low = -1.0 if column.lowest is None else column.lowest
    return (
        low + generator.random(count) * ((column.highest if column.highest is not None else low + 2) - low)
    ).tolist()
