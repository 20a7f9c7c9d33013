"""The drawings of a comparison: panels of lines of several runs, as the report of a run has them of one."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import GREY, INTERVAL, LAYER, Curve, Line, Panel
from ffkv.run.report.wording import rows
from ffkv_comparison.comparison_file import Measured

FORMATS: dict[bool, Any] = {True: drawing.as_percentage, False: ""}  # of a vertical axis, by whether it has shares
TWO_ROWS = 1.7  # height of a figure with two rows of panels, as a multiple of one with one
LOGARITHMIC = 10  # an axis whose largest place is so many times its smallest one is logarithmic
FEW_PLACES = 3  # of an axis, whose labels have room beside each other in the narrowest panel
# What figures call columns of tables.
LABELS = tomllib.loads((files(__package__) / "labels.toml").read_text(encoding="utf-8"))
OVERLAPS, KINDS, BEHAVIOURS = (LABELS[name] for name in ("overlaps", "kinds", "behaviours"))


def lines_of(
    table: str, value: str, x: str, of: Mapping[str, Mapping[str, Any]], bars: Sequence[str] = INTERVAL
) -> list[Line]:
    """Returns lines with the looks of their places. `of`: the label of each, and the rows of the table, see `Line`."""
    looks = zip(drawing.colours(len(of) + 1), cycle(drawing.LINES), cycle(drawing.MARKERS))
    return [
        Line(label, table, value, which, bars, x=x, look={"color": colour, "ls": dashes, "marker": marker, "ms": 4})
        for (label, which), (colour, dashes, marker) in zip(of.items(), looks)
    ]


def draw(measured: Measured, panels: Sequence[Panel], down: int = 1) -> Drawing:
    """Draws panels in one or two rows, with the legend of the first one."""
    figure, axes = drawing.canvas(len(panels) // down, down, drawing.HEIGHT * (TWO_ROWS if down > 1 else 1))
    for panel, its_axes in zip(panels, axes, strict=True):
        panel.draw_several(its_axes, measured)
    drawing.legend(figure, axes[0])
    return figure


def draw_curves(measured: Measured, name: str, curves: Sequence[Curve]) -> Drawing:
    """Draws curves, a line per run; below, if runs have points in common, how each run differs from the first one."""
    upper, lower, labels = [], [], measured.labels
    for curve in curves:
        x = "depth" if curve.x == LAYER and not measured.same_depth else "x"
        of = {label: {"figure": name, "curve": curve.label, "run": run} for run, label in labels.items()}
        look = {"across": partial(_over_points, measured, curve), "format": FORMATS[curve.share]}
        upper.append(Panel(lines_of("curves", "value", x, of), "", curve.label, **look))
        title, zero = f"difference to {next(iter(labels.values()))}", {"color": "0.3", "linewidth": 0.8}
        lower.append(Panel(lines_of("differences", "difference", x, of), "", title, zero=zero, **look))
    differs = len(rows(measured.differences, figure=name)) > 0
    return draw(measured, [*upper, *lower], 2) if differs else draw(measured, upper)


def _over_points(measured: Measured, curve: Curve, axes: Axes) -> None:
    if curve.x == LAYER and measured.same_depth:
        drawing.layer_axis(axes, measured.runs["layers"].iloc[0])
    elif curve.x == "memories kept":
        drawing.count_axis(axes, curve.x)
    else:
        axes.set_xlabel("relative depth" if curve.x == LAYER else curve.x)


def draw_over_axis(measured: Measured, name: str, curves: Sequence[Curve]) -> Drawing:
    """Draws the curves of a figure over the axis of the comparison: a line per shown layer, else the mean over the layers."""
    found, panels = rows(measured.curves, figure=name).sort_values("axis"), []
    if not measured.same_depth:
        found = found.groupby(["curve", "axis"], as_index=False)[["value"]].mean()
    for curve in curves:
        of: dict[str, dict[str, Any]] = {"mean over the layers": {"curve": curve.label}}
        if measured.same_depth:
            layers = drawing.shown_layers(int(rows(found, curve=curve.label)["x"].max()))
            of = {f"layer {layer}": {"curve": curve.label, "x": layer} for layer in layers}
        look = {"across": partial(_over_axis, measured), "format": FORMATS[curve.share]}
        panels.append(Panel(lines_of("curves", "value", "axis", of), "", curve.label, **look))
    return draw(replace(measured, curves=found), panels)


def _over_axis(measured: Measured, axes: Axes) -> None:
    """Sets up the horizontal axis of the comparison: the places of the runs, or else their labels."""
    places = sorted(measured.settings.values)
    rotation = 45 if len(measured.runs) > FEW_PLACES else 0
    if not places:
        axes.set_xticks(range(len(measured.runs)), measured.runs["label"], rotation=rotation)
        return
    positive = [place for place in places if place > 0]
    if positive and places[0] >= 0 and places[-1] > LOGARITHMIC * positive[0]:
        if len(positive) == len(places):
            axes.set_xscale("log")
        else:  # linear up to the first place after 0
            axes.set_xscale("symlog", linthresh=positive[0])
    axes.set_xticks(places, [f"{place:g}" for place in places], rotation=rotation)
    axes.minorticks_off()
    axes.autoscale(axis="x")  # the ends of a linear axis would cut the last point
    axes.set_xlabel(measured.settings.axis)


def draw_overlaps(measured: Measured) -> Drawing:
    """Draws how much of each memory is the same in the last run: a panel per measure, a line per other run."""
    *others, last = measured.labels
    of = {measured.labels[run]: {"run": run, "reference": last} for run in others}
    layers = measured.runs["layers"].iloc[0]
    return _draw_measures(measured, LAYER, of, partial(drawing.layer_axis, layers=layers))


def draw_formation(measured: Measured) -> Drawing:
    """Draws how much of each memory is as in the first and in the last run, over the axis: means over the layers."""
    places = dict(zip(measured.runs["run"], measured.settings.values, strict=True))
    found = measured.by_layer.assign(place=measured.by_layer["run"].map(places))
    means = found.drop(columns=["run", "rank_biased_overlap"]).groupby(["reference", "place"], as_index=False).mean()
    first, last = measured.runs["run"].iloc[[0, -1]]
    of = {"as in the first run": {"reference": first}, "as in the last run": {"reference": last}}
    return _draw_measures(replace(measured, by_layer=means), "place", of, partial(_over_axis, measured))


def _draw_measures(
    measured: Measured, x: str, of: Mapping[str, Mapping[str, str]], across: Callable[[Axes], object]
) -> Drawing:
    """Draws a panel per measure that is known, and in it lines over the column `x`, beside chance. of: see `lines_of`."""

    def set_up(axes: Axes) -> None:
        axes.set_ylim(min(0, axes.get_ylim()[0]), 1.05)
        across(axes)

    panels, chance = [], {"color": GREY, "ls": ":", "lw": 1}
    for measure in (name for name in OVERLAPS if measured.by_layer.get(name, pd.Series()).notna().any()):
        shown: list[Line] = []
        for line in lines_of("by_layer", measure, x, of):
            permuted = "" if shown else "memories permuted"
            shown += [line, replace(line, label=permuted, value=f"permuted_{measure}", look=chance)]
        panels.append(Panel(shown, "", OVERLAPS[measure], across=set_up))
    return draw(measured, panels)


def draw_kinds(measured: Measured) -> Drawing:
    """Draws what became of the memories of each run by the last run: a bar per run."""
    last = measured.runs["run"].iloc[-1]
    others = measured.runs[measured.runs["run"] != last]
    figure, (axes,) = drawing.canvas()
    counts = rows(measured.by_layer, reference=last).groupby("run")[[*KINDS]].sum().loc[others["run"]]
    left = np.zeros(len(counts))
    for colour, (kind, label) in zip(drawing.colours(len(KINDS)), KINDS.items(), strict=True):
        axes.barh(others["label"], counts[kind], left=left, color=colour, label=label, edgecolor="white")
        left += counts[kind].to_numpy()
    axes.invert_yaxis()
    axes.grid(False)
    axes.set_xlabel(f"memories that agree in this run, or in {measured.runs['label'].iloc[-1]}")
    drawing.legend(figure, axes)
    return figure


def draw_matches(measured: Measured) -> Drawing:
    """Draws how high the memories of the first run correlate with those of each other run: the highest and the next."""
    columns = ["correlation", "next_correlation"]
    of_runs = measured.matches.groupby("run")
    above = 1 - of_runs.cumcount() / of_runs["run"].transform("size")
    found = of_runs[columns].transform(np.sort).assign(run=measured.matches["run"], above=above)
    of = {label: {"run": run} for run, label in measured.labels.items() if run in {*found["run"]}}
    lines = []
    for line in lines_of("matches", "above", columns[0], of):
        second = {"lw": 1, "color": GREY, "ls": line.look["ls"]}
        lines.append(replace(line, look={**line.look, "marker": ""}))
        lines.append(replace(line, label=f"{line.label}, second highest", x=columns[1], look=second))
    across = partial(Axes.set_xlabel, xlabel="highest correlation of the coefficients")
    panel = Panel(lines, "memories with at least this", percentages=True, limits=(0, 1), across=across)
    return draw(replace(measured, matches=found), [panel])


def draw_behaviours(measured: Measured) -> Drawing:
    """Draws a panel per quantity, over the axis of the comparison, else over the runs: a line per behaviour."""
    places = dict(zip(measured.runs["run"], measured.settings.values or range(len(measured.runs)), strict=True))
    found = measured.behaviours.assign(place=measured.behaviours["run"].map(places)).sort_values("place")
    of = {name: {"behaviour": name} for name in measured.behaviours["behaviour"].unique()}
    panels = []
    for quantity, title in BEHAVIOURS.items():
        lines = lines_of("behaviours", quantity, "place", of, (f"{quantity}_low", f"{quantity}_high"))
        if quantity == "lost":
            grey = lines_of("behaviours", "random_lost", "place", of, ("random_lost_low", "random_lost_high"))
            grey = [replace(line, label="", look={**line.look, "color": GREY}) for line in grey]
            lines = [line for pair in zip(lines, grey, strict=True) for line in pair]
        look = {"across": partial(_over_axis, measured), "format": FORMATS[quantity != "difference"]}
        panels.append(Panel(lines, "", title, **look))
    return draw(replace(measured, behaviours=found), panels, 2)
