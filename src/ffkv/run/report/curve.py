"""What a run draws as a line in a figure, so that another run can be drawn over it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.run.report.wording import rows
from ffkv.run.results import indexes
from ffkv.run.results.run import Run

LAYER = "layer"
Value = str | Callable[[pd.DataFrame], pd.Series]  # the numbers of a table: the name of a column, or what makes them


class Units(NamedTuple):
    """The numbers that the points of a curve are means or medians of."""

    of: str  # what has a number: "memories", or "prefixes" of the validation split
    numbers: Callable[[Run], pd.DataFrame]  # the numbers of a run, one row per unit and layer: layer, unit, value
    median: bool = False  # whether a point is their median; else it is their mean


class Curve(NamedTuple):
    """A line of a figure."""

    label: str  # what it shows, such as "agreement rate"
    # the points of a run: x, value, and the 95 % interval from low to high, NaN where the figure has none
    points: Callable[[Run], pd.DataFrame]
    x: str = LAYER  # what x is: "layer", or another quantity
    share: bool = True  # whether the values are shares
    panel: int = 0  # the panel of the run's figure that shows it, from 0
    stacked: bool = False  # whether the figure stacks it, as a bar, on the curves before it
    units: Units | None = None  # what its points summarize; None if two runs cannot be compared unit by unit


def points(found: pd.DataFrame, x: str, value: str, interval: Sequence[str] = ("low", "high")) -> pd.DataFrame:
    """Makes points of the columns of a table."""
    low, high = (found.get(name, np.nan) for name in interval)
    return pd.DataFrame({"x": found[x], "value": found[value], "low": low, "high": high}).reset_index(drop=True)


def by_layer(table: str, value: str, **values: str | int) -> Callable[[Run], pd.DataFrame]:
    """Points over the layers: a column of a table, of the rows with these values. A median has no interval."""
    interval = ("low", "high") if value != "median" else ("", "")
    return lambda run: points(rows(run.table(table), **values), LAYER, value, interval)


def by_memory(value: Value, median: bool = False) -> Units:
    """Returns a number per memory that has a trigger example, from the table `values/by_memory`."""

    def numbers(run: Run) -> pd.DataFrame:
        table = indexes.values_by_memory(run.files)
        return _numbers(table[table["next_token"] >= 0], "memory", value)

    return Units("memories", numbers, median)


def by_prefix(name: str, value: Value, median: bool = False) -> Units:
    """Returns a number per layer and sampled validation prefix, from a table such as `refinement/by_prefix`."""
    return Units("prefixes", lambda run: _numbers(run.files.details(name), "prefix", value), median)


def _numbers(table: pd.DataFrame, unit: str, value: Value) -> pd.DataFrame:
    numbers = table[value] if isinstance(value, str) else value(table)
    return pd.DataFrame({"layer": table["layer"], "unit": table[unit], "value": numbers.astype(float)})
