"""A control run in a run's figures: the lines of another run, such as one with random weights, in grey."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from ffkv.errors import UserError
from ffkv.report.wording import rows
from ffkv.results.run import Run
from ffkv.results.run import open as open_run

GREY, DASHES = "0.35", (0, (2, 1.5))
Line = tuple[Sequence[float] | np.ndarray, Sequence[float] | np.ndarray]  # x and y


class Control(NamedTuple):
    """What a control run adds to one panel of a figure.

    Attributes:
        lines: its lines, from the control run.
        panel: number of the panel, from 0.
    """

    lines: Callable[[Run], list[Line]]
    panel: int = 0


def by_layer(table: str, value: str, panel: int = 0, **values: str | int) -> Control:
    """A line over the layers: a column of a table, of the rows with these values."""

    def lines(run: Run) -> list[Line]:
        found = rows(run.table(table), **values)
        return [(found["layer"].to_numpy(), found[value].to_numpy())] if len(found) else []

    return Control(lines, panel)


def stacked(table: str, column: str, names: Sequence[str], panel: int = 0, **values: str | int) -> Control:
    """The edges of bars of shares per layer, stacked in the order of names; the last one, which fills up the bar, has none."""

    def lines(run: Run) -> list[Line]:
        found = rows(run.table(table), **values)
        wide = found.pivot(index="layer", columns=column, values="share").reindex(columns=[*names]).fillna(0)
        return [(wide.index.to_numpy(), edge) for edge in np.cumsum(wide.to_numpy(), 1).T[:-1]]

    return Control(lines, panel)


def open_control(run: Run) -> Run | None:
    """The control run of a run's settings; None if they name none.

    Raises:
        UserError: it is not there, or its model has another number of layers.
    """
    name = run.settings.report.control
    if not name:
        return None
    control = open_run(Path(run.folder).parent / name)
    own, its = len(run.anatomy.layers), len(control.anatomy.layers)
    if own != its:
        raise UserError(
            f"report.control of {run.name} is {name}, whose model has {its} layers, not {own}. Name a run of a model of the"
            " same shape."
        )
    return control


def draw_control(figure: Drawing, controls: Sequence[Control], control: Run) -> bool:
    """Draws the lines of a control run over a figure. Returns whether it has any."""
    panels = figure.axes
    drawn = [
        _draw(panels[each.panel], x, y) for each in controls if each.panel < len(panels) for x, y in each.lines(control)
    ]
    if drawn:
        _add_to_legend(figure, drawn[0], f"control: {control.name}")
    return bool(drawn)


def _draw(axes: Axes, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> Line2D:
    return axes.plot(x, y, color=GREY, linestyle=DASHES, linewidth=1.4, marker=".", markersize=3, zorder=3)[0]


def _add_to_legend(figure: Drawing, line: Line2D, label: str) -> None:
    handles: list[Any] = [line]
    labels = [label]
    for legend in [*figure.legends]:
        handles = [*legend.legend_handles, *handles]
        labels = [*(text.get_text() for text in legend.get_texts()), *labels]
        legend.remove()
    figure.legend(handles, labels, loc="outside upper left", ncols=4, columnspacing=1.4, handlelength=2.4)


def describe_control(control: Run) -> str:
    """A sentence for captions about the control's lines."""
    what = "whose weights are random" if control.anatomy.weights == "random" else f"of {control.anatomy.checkpoint}"
    return f"Grey dashes: the control run {control.name}, {what}."
