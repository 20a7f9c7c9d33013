"""What the removal of a memory does to the tokens that its value promotes, beside controls of equal length."""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.report.curve import Curve, Units, by_layer
from ffkv.run.report.drawing import canvas, curve, layer_axis, legend
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.text import MINUS
from ffkv.run.report.wording import INTERVALS, course, rows
from ffkv.run.results import indexes
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

BY_LAYER = "interventions_by_layer"
SOURCES = {
    "own": "the memory is removed",
    "random_memories": "random memories, equal length",
    "random_directions": "random directions, equal length",
    "similar_size": "others of about this size removed",
    "placebo": "removed where it is nearly silent",
}
REACHES = {"direct": "direct effect", "total": "total effect"}


def draw(run: Run, paper: Any) -> Drawing:
    """Draws two panels, direct and total effect: a line per layer for the memory's own removal and for each control."""
    table = run.table(BY_LAYER)
    figure, panels = canvas(2, sharey=True)
    for panel, (reach, title) in zip(panels, REACHES.items(), strict=True):
        for style, (source, label) in enumerate(SOURCES.items()):
            found = rows(table, side="positive", reach=reach, source=source).dropna(subset=["mean"])
            if len(found):
                curve(panel, found, "mean", label, style, len(SOURCES))
        panel.set_title(title)
        finish_effects(panel)
        layer_axis(panel, len(run.anatomy.layers))
    panels[0].set_ylabel("change of log p (nats)")
    legend(figure, panels[0], columns=3)
    return figure


def finish_effects(axes: Axes) -> None:
    """Draws the line of no effect."""
    axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)


def caption(run: Run) -> Caption:
    """Says what is removed, what is measured, and how many memories have an effect of their own."""
    table, settings = run.table(BY_LAYER), run.settings.intervention
    own = rows(table, source="own", reach="total")
    positive = rows(own, side="positive")
    text = (
        f"The coefficient of a memory is set to 0 at the last token of {number(settings.examples)} of its trigger examples. "
        f"The mean change of the log-probabilities of the {number(settings.tokens)} top tokens of its value is shown, over "
        f"{number(positive['memories'].sum())} random memories. Direct effect: the contribution is taken out of what the head "
        "reads. Total effect: the blocks after the layer run again. Controls, on the same prefixes and tokens: a vector as long "
        f"as the contribution is taken out along {number(settings.controls)} other memories of the layer, or along random "
        "directions; or other memories whose contributions are about as long are removed. Placebo: the memory is removed "
        f"from prefixes on which it is nearly silent: its coefficient is at most {percent(settings.silent_below)} of its mean on its "
        f"own, and not 0, so that a small effect is possible.{_without_placebo(table)} {INTERVALS} {number(own['significant'].sum())} of "
        f"{number(own['memories'].sum())} memories{' (each sign counts)' if len(own) > len(positive) else ''} have a total "
        f"effect that random memories do not have (false discovery rate {SIGNIFICANT} per layer).{_least(own, settings.controls)}"
    )
    if len(own) > len(positive):
        text += " The figure shows positive coefficients. The data has negative ones too: their effects have the other sign."
    return Caption(text, f"Lines by layer. Total effect of the removal: {course(positive, 'mean', nats)}.")


def _without_placebo(table: pd.DataFrame) -> str:
    """Says, with a space in front, how many memories have no placebo; empty if all have one."""
    found = rows(table, reach="total", side="positive")
    own, placebo = (int(rows(found, source=source)["memories"].sum()) for source in ("own", "placebo"))
    if own == placebo:
        return ""
    return (
        f" {number(own - placebo)} memories have none: their coefficients on other prefixes are larger, or exactly 0."
    )


def _least(own: pd.DataFrame, controls: int) -> str:
    """Says, with a space in front, how many memories of a layer must have the smallest possible p-value; else empty.

    By Benjamini and Hochberg, k of n p-values are significant if they are up to k / n times the false discovery rate.
    """
    tests = int(own.groupby("layer")["memories"].sum().max()) if len(own) else 0
    least = math.ceil(round(tests / (SIGNIFICANT * (controls + 1)), 9))
    if least <= 1:
        return ""
    return (
        f" A p-value is at least 1/{controls + 1}. So of {tests} tests of a layer, {least} or more are significant, or none is:"
        " fewer memories need more controls."
    )


def nats(effect: float) -> str:
    """Returns a change of a log-probability, in words."""
    return f"{number(effect)} nats".replace("-", MINUS)


def _curve(reach: str) -> Curve:
    def numbers(run: Run) -> pd.DataFrame:
        found = rows(indexes.effects_by_memory(run.files), side="positive", reach=reach)
        return pd.DataFrame({"layer": found["layer"], "unit": found["memory"], "value": found["own"]})

    points = by_layer(BY_LAYER, "mean", side="positive", reach=reach, source="own")
    panel = [*REACHES].index(reach)
    return Curve(
        f"{REACHES[reach]} of removal (nats)", points, share=False, panel=panel, units=Units("memories", numbers)
    )


FIGURE = Figure((BY_LAYER,), draw, caption, curves=(*map(_curve, REACHES),))
