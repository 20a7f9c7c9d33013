"""The drawings of a comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.run.comparison.comparison_file import Measured
from ffkv.run.report import drawing
from ffkv.run.report.control import GREY
from ffkv.run.report.curve import LAYER, Curve
from ffkv.run.report.wording import rows

WIDTH, HEIGHT = 8.4, 3.7  # of a row of panels, inches
LOGARITHMIC = 10  # an axis whose largest place is so many times its smallest one is logarithmic
FEW_PLACES = 3  # of an axis, whose labels have room beside each other in the narrowest panel
OVERLAPS = {
    "jaccard": "trigger examples, Jaccard",
    "rank_biased_overlap": "trigger examples, rank-biased",
    "same_top_token": "same top token",
    "key_cosine": "key, cosine",
    "value_cosine": "value, cosine",
}
KINDS = {
    "stayed": "agrees in both, same token",
    "changed": "agrees in both, other token",
    "appeared": "agrees in the later run only",
    "lost": "agrees in the earlier run only",
}
BEHAVIOURS = {
    "accuracy": "accuracy",
    "difference": "mean logit difference",
    "lost": "lost with the n memories of the largest set",
    "all_lost": "lost with all memories",
}


def look_of(style: int, count: int) -> dict[str, Any]:
    """Returns the look of a run's line: colour, dashes and marks."""
    dashes, marker = drawing.LINES[style % len(drawing.LINES)], drawing.MARKERS[style % len(drawing.MARKERS)]
    return {"color": drawing.colours(count + 1)[style], "ls": dashes, "marker": marker, "ms": 4}


def draw_curves(measured: Measured, name: str, curves: Sequence[Curve]) -> Drawing:
    """Draws two rows: the curves of a figure, a line per run; below, how each run differs from the first one.

    There is no second row if the runs have no points in common.
    """
    differs = len(rows(measured.differences, figure=name)) > 0
    figure = Drawing(figsize=(WIDTH, 1.7 * HEIGHT if differs else HEIGHT), layout="constrained")
    panels = figure.subplots(1 + differs, len(curves), squeeze=False)
    runs = measured.runs[["run", "label"]].itertuples(index=False)
    for style, (run, label) in enumerate(runs):
        for place, curve in enumerate(curves):
            look = look_of(style, len(measured.runs)) | {"label": label}
            points = rows(measured.curves, figure=name, curve=curve.label, run=run)
            _line(panels[0, place], points[_x(measured, curve)], points, "value", look)
            if differs:
                differences = rows(measured.differences, figure=name, curve=curve.label, run=run)
                _line(panels[1, place], differences[_x(measured, curve)], differences, "difference", look)
    for place, curve in enumerate(curves):
        _finish(panels[0, place], measured, curve, curve.label)
        if differs:
            _finish(panels[1, place], measured, curve, f"difference to {measured.runs['label'].iloc[0]}")
            panels[1, place].axhline(0, color="0.3", linewidth=0.8)
    drawing.legend(figure, panels[0, 0])
    return figure


def _x(measured: Measured, curve: Curve) -> str:
    return "depth" if curve.x == LAYER and not measured.same_depth else "x"


def _line(axes: Axes, x: pd.Series, points: pd.DataFrame, value: str, look: dict[str, Any]) -> None:
    axes.plot(x, points[value], **look)
    if np.isfinite(points["high"] - points["low"]).any():
        drawing.intervals(axes, x, points, value, look["color"], elinewidth=0.8, capsize=0, alpha=0.6)


def _finish(axes: Axes, measured: Measured, curve: Curve, title: str) -> None:
    drawing.small_title(axes, title)
    axes.set_xlabel("relative depth" if _x(measured, curve) == "depth" else curve.x)
    if curve.x == LAYER and measured.same_depth:
        drawing.layer_axis(axes, measured.runs["layers"].iloc[0])
    if curve.x == "memories kept":
        drawing.count_axis(axes, curve.x)
    if curve.share:
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")


def draw_over_axis(measured: Measured, name: str, curves: Sequence[Curve]) -> Drawing:
    """Draws the curves of a figure over the axis of the comparison: a line per shown layer."""
    figure, panels = drawing.canvas(len(curves))
    for axes, curve in zip(panels, curves, strict=True):
        points = rows(measured.curves, figure=name, curve=curve.label)
        layers = drawing.shown_layers(int(points["x"].max())) if measured.same_depth else []
        for style, layer in enumerate(layers):
            found = points[points["x"] == layer].sort_values("axis")
            _line(axes, found["axis"], found, "value", look_of(style, len(layers)) | {"label": f"layer {layer}"})
        if not measured.same_depth:  # of each run, the mean over its layers
            found = points.groupby("axis", as_index=False)[["value"]].mean().assign(low=np.nan, high=np.nan)
            _line(axes, found["axis"], found, "value", look_of(0, 1) | {"label": "mean over the layers"})
        _finish_axis(axes, measured)
        drawing.small_title(axes, curve.label)
        if curve.share:
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    drawing.legend(figure, panels[0])
    return figure


def _finish_axis(axes: Axes, measured: Measured) -> None:
    places = sorted(measured.settings.values)
    positive = [place for place in places if place > 0]
    if positive and min(places) >= 0 and max(positive) > LOGARITHMIC * min(positive):
        if len(positive) == len(places):
            axes.set_xscale("log")
        else:  # linear up to the first place after 0
            axes.set_xscale("symlog", linthresh=min(positive))
    axes.set_xticks(places, [f"{place:g}" for place in places], rotation=45 if len(places) > FEW_PLACES else 0)
    axes.minorticks_off()
    axes.set_xlabel(measured.settings.axis)


def draw_overlaps(measured: Measured) -> Drawing:
    """Draws how much of each memory is the same in the last run: a panel per measure, a line per other run."""
    last = measured.runs["run"].iloc[-1]
    others = measured.runs[measured.runs["run"] != last]
    of_last = rows(measured.by_layer, reference=last)
    lines = {label: rows(of_last, run=run).set_index("layer") for run, label in zip(others["run"], others["label"])}
    figure, panels = _draw_measures(measured.by_layer, [*OVERLAPS], lines)
    for axes in panels:
        drawing.layer_axis(axes, measured.runs["layers"].iloc[0])
    drawing.legend(figure, panels[0])
    return figure


def draw_formation(measured: Measured) -> Drawing:
    """Draws how much of each memory is as in the first and in the last run, over the axis: means over the layers."""
    place = dict(zip(measured.runs["run"], measured.settings.values, strict=True))
    measures = [name for name in OVERLAPS if name != "rank_biased_overlap"]
    lines = {}
    for number, label in ((0, "as in the first run"), (-1, "as in the last run")):
        found = rows(measured.by_layer, reference=measured.runs["run"].iloc[number])
        columns = [*measures, *(f"permuted_{name}" for name in measures)]
        lines[label] = found.groupby(found["run"].map(place))[columns].mean()
    figure, panels = _draw_measures(measured.by_layer, measures, lines)
    for axes in panels:
        _finish_axis(axes, measured)
    drawing.legend(figure, panels[0])
    return figure


def _draw_measures(
    table: pd.DataFrame, measures: Sequence[str], lines: Mapping[str, pd.DataFrame]
) -> tuple[Drawing, np.ndarray]:
    """Draws a panel per measure that is known, and in it a line per label, over a table's index, beside chance."""
    known = [measure for measure in measures if table[measure].notna().any()]
    figure, panels = drawing.canvas(len(known))
    for axes, measure in zip(panels, known, strict=True):
        for style, (label, found) in enumerate(lines.items()):
            axes.plot(found.index, found[measure], label=label, **look_of(style, len(lines)))
            chance = {"color": GREY, "ls": ":", "lw": 1, "label": "memories permuted" if style == 0 else None}
            axes.plot(found.index, found[f"permuted_{measure}"], **chance)
        axes.set_ylim(min(0, axes.get_ylim()[0]), 1.05)
        drawing.small_title(axes, OVERLAPS[measure])
    return figure, panels


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
    figure, (axes,) = drawing.canvas()
    others = [run for run in measured.runs["run"].iloc[1:] if run in set(measured.matches["run"])]
    label_of = dict(zip(measured.runs["run"], measured.runs["label"], strict=True))
    for style, run in enumerate(others):
        found = rows(measured.matches, run=run)
        above = 1 - np.arange(len(found)) / len(found)
        look = look_of(style, len(others)) | {"marker": ""}
        axes.plot(np.sort(found["correlation"]), above, label=label_of[run], **look)
        second = {"lw": 1, "color": GREY, "ls": look["ls"], "label": f"{label_of[run]}, second highest"}
        axes.plot(np.sort(found["next_correlation"]), above, **second)
    drawing.share_axis(axes, "memories with at least this", whole=True)
    axes.set_xlabel("highest correlation of the coefficients")
    drawing.legend(figure, axes)
    return figure


def draw_behaviours(measured: Measured) -> Drawing:
    """Draws a panel per quantity, over the axis of the comparison, else over the runs: a line per behaviour."""
    figure = Drawing(figsize=(WIDTH, 1.7 * HEIGHT), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    names = measured.behaviours["behaviour"].drop_duplicates().tolist()
    places = measured.settings.values or range(len(measured.runs))
    place = dict(zip(measured.runs["run"], places, strict=True))
    for axes, (quantity, title) in zip(panels, BEHAVIOURS.items(), strict=True):
        for style, name in enumerate(names):
            found = rows(measured.behaviours, behaviour=name)
            found = found.assign(place=found["run"].map(place)).sort_values("place")
            look = look_of(style, len(names)) | {"label": name}
            _quantity(axes, found, quantity, look)
            if quantity == "lost":
                _quantity(axes, found, "random_lost", look | {"color": GREY, "label": None})
        if measured.settings.axis:
            _finish_axis(axes, measured)
        else:
            axes.set_xticks([*places], measured.runs["label"], rotation=45 if len(places) > FEW_PLACES else 0)
        drawing.small_title(axes, title)
        if quantity != "difference":
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    drawing.legend(figure, panels[0])
    return figure


def _quantity(axes: Axes, found: pd.DataFrame, quantity: str, look: dict[str, Any]) -> None:
    points = found[[quantity, f"{quantity}_low", f"{quantity}_high"]].set_axis(["value", "low", "high"], axis=1)
    _line(axes, found["place"], points, "value", look)
