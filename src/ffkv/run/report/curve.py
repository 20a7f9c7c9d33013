"""The lines of figures: what a run draws, and what its control and comparisons draw over it.

A `Line` is a column of a table, over the layers or another column, and a `Panel` has some: of a run, or of several, as
comparisons draw them. What another run can draw is a `Curve`: of a line it follows. A control run is drawn in grey.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.wording import rows
from ffkv.run.results import indexes
from ffkv.run.results.run import Run

LAYER = "layer"
INTERVAL = ("low", "high")
GREY = "0.35"
LOOK: dict[str, Any] = {"linestyle": (0, (2, 1.5)), "linewidth": 1.4, "marker": ".", "markersize": 3, "zorder": 3}
LOOK |= {"color": GREY}  # of a control
Value = str | Callable[[pd.DataFrame], pd.Series]  # the numbers of a table: the name of a column, or what makes them


class Tabled(Protocol):
    """A run, or a comparison of runs."""

    def table(self, name: str) -> pd.DataFrame:
        """Returns a table."""


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


def points(found: pd.DataFrame, x: str, value: str, interval: Sequence[str] = INTERVAL) -> pd.DataFrame:
    """Makes points of the columns of a table."""
    low, high = (found.get(name, np.nan) for name in interval)
    return pd.DataFrame({"x": found[x], "value": found[value], "low": low, "high": high}).reset_index(drop=True)


def by_layer(table: str, value: str, **values: str | int) -> Callable[[Run], pd.DataFrame]:
    """Points over the layers: a column of a table, of the rows with these values. A median has no interval."""
    return Line("", table, value, values).points


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


@dataclass(frozen=True)
class Line:
    """A line: a column of a table, of the rows with some values."""

    label: str  # what the legend calls it
    table: str
    value: str  # the column
    of: Mapping[str, str | int] = field(default_factory=dict)  # the rows: column to value
    bars: Sequence[str] = INTERVAL  # the columns from which to which bars reach
    bars_of: str = ""  # the column that the bars are of, if it is not `value`
    curve: str = ""  # what it is called beside those of other runs; "" if they do not draw it
    share: bool = True  # whether the numbers are shares
    units: Units | None = None  # what its points summarize, see `Curve`
    paper: str = ""  # its name among the paper's numbers, if each line of the panel has its own there
    x: str = LAYER  # the column that it is over
    look: Mapping[str, Any] = field(default_factory=dict)  # its look in a panel of several runs

    def rows(self, run: Tabled) -> pd.DataFrame:
        """Returns its rows, with the ends of its bars as `low` and `high`: NaN if it has none."""
        found = rows(run.table(self.table), **self.of)
        low, high = (found.get(name, np.nan) for name in self.bars)
        return found.assign(low=low, high=high)

    def points(self, run: Run) -> pd.DataFrame:
        """Returns the points of a run, see `Curve`. The bars of a median are no interval of it."""
        is_interval = tuple(self.bars) == INTERVAL and self.value != "median"
        return points(rows(run.table(self.table), **self.of), LAYER, self.value, INTERVAL if is_interval else ("", ""))


@dataclass(frozen=True)
class Panel:
    """A panel of a figure."""

    lines: Sequence[Line]
    axis: str  # label of the vertical axis
    title: str = ""
    percentages: bool = False  # whether the axis has percentages
    limits: tuple[float | None, float | None] | None = None  # where the axis begins and ends, if not at the numbers
    format: str | Callable[..., str] = ""  # how the axis writes its numbers, such as "{x:,.0f}"
    zero: Mapping[str, Any] = field(default_factory=dict)  # the look of a line at 0; empty if there is none
    # whether a layer without a number is left out of a line, and a line without any keeps its look for itself
    sparse: bool = False
    across: Callable[[Axes], object] = lambda axes: None  # sets up the horizontal axis of a panel of several runs

    def draw(self, axes: Axes, run: Run, paper: Any = None) -> None:
        """Draws the lines that have rows, and beside them the paper's: one, or one for each line that names its own."""
        layers = len(run.anatomy.layers)
        found = [(line, line.rows(run)) for line in self.lines]
        found = [(line, table.dropna(subset=[line.value]) if self.sparse else table) for line, table in found]
        shown = found if self.sparse else [each for each in found if len(each[1])]
        for style, (line, table) in enumerate(shown):
            if len(table):
                drawing.curve(axes, table, line.value, line.label, style, len(shown), line.bars_of)
            if paper and line.paper:
                drawing.paper_curve(axes, paper[line.paper], layers, f"the paper: {line.paper}", style)
        if paper and not self.lines[0].paper:
            drawing.paper_curve(axes, paper, layers)
        self._set_up(axes)
        axes.set_title(self.title)
        drawing.layer_axis(axes, layers)

    def draw_several(self, axes: Axes, runs: Tabled) -> None:
        """Draws lines of several runs, each in its own look."""
        for line in self.lines:
            found = line.rows(runs)
            axes.plot(found[line.x], found[line.value], label=line.label, **line.look)
            if np.isfinite(found["high"] - found["low"]).any():
                look = {"elinewidth": 0.8, "capsize": 0, "alpha": 0.6}
                drawing.intervals(axes, found[line.x], found, line.value, line.look["color"], line.label, **look)
        drawing.small_title(axes, self.title)
        self.across(axes)
        self._set_up(axes)

    def _set_up(self, axes: Axes) -> None:
        if self.zero:
            axes.axhline(0, label="_zero", **self.zero)
        if self.percentages:
            drawing.share_axis(axes, self.axis)
        if self.format:
            axes.yaxis.set_major_formatter(self.format)
        if self.limits:
            axes.set_ylim(*self.limits)
        axes.set_ylabel(self.axis)


def lines(curves: Sequence[Curve], run: Run) -> list[tuple[Curve, np.ndarray, np.ndarray]]:
    """Returns the curves that a run has, each with the x and y [point] that a figure shows.

    A stacked one is an edge of bars, on top of those before.
    """
    found, below = [], np.zeros(1)
    for curve in curves:
        points = curve.points(run)
        if len(points):
            y = points["value"].to_numpy(float)
            if curve.stacked:
                y = below = below + np.nan_to_num(y)
            found.append((curve, points["x"].to_numpy(), y))
    return found


def draw_control(figure: Drawing | drawing.OfReader, curves: Sequence[Curve], control: Run) -> bool:
    """Draws the curves of a control run over a figure. Returns whether it has any."""
    panels = figure.axes
    shown = [line for line in lines(curves, control) if line[0].panel < len(panels)]
    if not shown:
        return False
    drawn = [panels[curve.panel].plot(x, y, label=f"control: {curve.label}", **LOOK)[0] for curve, x, y in shown]
    for curve, _, y in shown:
        low, high = panels[curve.panel].get_ylim()
        panels[curve.panel].set_ylim(np.nanmin([low, *y]), np.nanmax([high, *y]))
    handles: list[Any] = drawn[:1]
    labels = [f"control: {control.name}"]
    side = "left" if len(figure.legends) > 1 else ""  # two legends stand side by side
    for legend in figure.legends[:1]:
        handles = [*legend.legend_handles, *handles]
        labels = [*(text.get_text() for text in legend.get_texts()), *labels]
        legend.remove()
    drawing.fit_legend(figure, handles, labels, side)
    return True
