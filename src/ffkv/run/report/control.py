"""A control run in a run's figures: the lines of another run, such as one with random weights, in grey."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_dir
from ffkv.base.settings.runs import AUTO, NONE
from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve
from ffkv.run.results.run import Run
from ffkv.run.results.run import open as open_run
from ffkv.run.results.text import number

GREY = "0.35"
LOOK: dict[str, Any] = {"linestyle": (0, (2, 1.5)), "linewidth": 1.4, "marker": ".", "markersize": 3, "zorder": 3}
LOOK |= {"color": GREY}


class Line(NamedTuple):
    """A line in a figure."""

    panel: int  # number of the panel, from 0
    x: np.ndarray  # [point]
    y: np.ndarray  # [point]


def lines(curves: Sequence[Curve], run: Run) -> list[Line]:
    """Returns the curves of a run as a figure has them. A stacked one is an edge of bars, on top of those before."""
    found, below = [], np.zeros(1)
    for curve in curves:
        points = curve.points(run)
        if len(points):
            y = points["value"].to_numpy(float)
            if curve.stacked:
                y = below = below + np.nan_to_num(y)
            found.append(Line(curve.panel, points["x"].to_numpy(), y))
    return found


def open_control(run: Run) -> Run | None:
    """Returns the run that a run is compared with, see `report.control`; None if there is none.

    Raises UserError if its folder is not beside that of the run, or its model has another number of layers.
    """
    name = run.settings.report.control
    if name in (AUTO, NONE):
        return None
    folder = Path(run.folder).parent / name
    if not is_dir(folder):
        raise UserError(
            f"{folder} is not there, with which the report compares {run.name}. Run `snakemake` again, with the options of"
            " the run, or copy the folder, too. With `report.control: none` in the settings the report compares nothing."
        )
    control = open_run(folder)
    own, its = len(run.anatomy.layers), len(control.anatomy.layers)
    if own != its:
        raise UserError(
            f"report.control of {run.name} is {name}, whose model has {its} layers, not {own}. Name a run of a model of the"
            " same shape."
        )
    return control


def draw_control(figure: Drawing, curves: Sequence[Curve], control: Run) -> bool:
    """Draws the curves of a control run over a figure. Returns whether it has any."""
    panels = figure.axes
    shown = [line for line in lines(curves, control) if line.panel < len(panels)]
    if not shown:
        return False
    drawn = [panels[line.panel].plot(line.x, line.y, **LOOK)[0] for line in shown]
    for line in shown:
        low, high = panels[line.panel].get_ylim()
        panels[line.panel].set_ylim(np.nanmin([low, *line.y]), np.nanmax([high, *line.y]))
    handles: list[Any] = drawn[:1]
    labels = [f"control: {control.name}"]
    side = "left" if len(figure.legends) > 1 else ""  # two legends stand side by side
    for legend in figure.legends[:1]:
        handles = [*legend.legend_handles, *handles]
        labels = [*(text.get_text() for text in legend.get_texts()), *labels]
        legend.remove()
    drawing.fit_legend(figure, handles, labels, side)
    return True


def describe_control(control: Run) -> str:
    """Returns a sentence for captions about the control's lines."""
    return f"Grey dashes: {name_control(control)}."


def name_control(control: Run) -> str:
    """Returns what a control is."""
    if control.anatomy.weights != "random":
        return f"the control run {control.name}, of {control.anatomy.checkpoint}"
    tokens = sum(int(about["tokens"]) for about in control.files.corpora.values())
    return f"the control run {control.name}, whose weights are random, on {number(tokens)} tokens of the same text"


def about_text(run: Run, control: Run) -> str:
    """Returns a sentence about a control that read a part of the run's text, with a space in front; else empty."""
    whole, part = (int(each.files.corpora["train"]["tokens"]) for each in (run, control))
    less = control.anatomy.weights == "random" and part < whole
    return " In more text, more of its trigger examples would be alike and have patterns." if less else ""


def about_control(run: Run, control: Run | None) -> str:
    """Returns a sentence for each paragraph of the summary, with a space in front: empty if it has a control's numbers."""
    if control is not None:
        return ""
    if run.anatomy.weights == "random":
        return " This model is untrained itself."
    reason = ": model.max_memory is set" if run.settings.model.max_memory else ""
    reason = ": report.control is none" if run.settings.report.control == NONE else reason
    return f" Not compared with an untrained model{reason}."
