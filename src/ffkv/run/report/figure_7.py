"""Figure 7: how many memories of a layer a prefix activates, and how many of them carry the sum."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.drawing import boxes, canvas, colours, layer_axis, legend, paper_curve, share_axis
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import BOX, course, paper_line
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

ACTIVE, EFFECTIVE = "figure_7_active_memories", "figure_7_effective_number"


def draw(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Left, boxes per layer: the share of active memories. Right, lines per layer: the number that carries the sum."""
    active, effective = run.table(ACTIVE), run.table(EFFECTIVE)
    figure, (left, right) = canvas(2)
    boxes(left, active)
    if paper:
        paper_curve(left, paper, len(run.anatomy.layers), "the paper's median")
    share_axis(left, "active memories of the layer")
    _draw_effective(right, effective)
    for panel in (left, right):
        layer_axis(panel, len(run.anatomy.layers))
    legend(figure, left, right)
    return figure


def _draw_effective(axes: Axes, table: pd.DataFrame) -> None:
    x, dark, light = table["layer"], colours(4)[1], colours(4)[3]
    axes.fill_between(x, table["effective_q1"], table["effective_q3"], color=light, alpha=0.5, linewidth=0)
    axes.plot(x, table["effective_median"], color=dark, marker="o", label="effective number")
    ratio_style: dict[str, Any] = {"color": "black", "marker": "s", "linestyle": "--", "markerfacecolor": "white"}
    axes.plot(x, table["participation_median"], label="participation ratio", **ratio_style)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("memories that carry the sum")


def caption(run: Run) -> Caption:
    """Defines both numbers, and says what the model's activation does to them."""
    active, effective = run.table(ACTIVE), run.table(EFFECTIVE)
    activation, layers = run.anatomy.activation, run.anatomy.layers
    text = (
        f"Left: the share of a layer's memories that have a positive coefficient, in {number(active['prefixes'].max())} "
        f"validation prefixes. {BOX} Right: two numbers of memories, out of {number(effective['memories'].max())}. The "
        "effective number is the smallest number of memories that carry "
        f"{percent(run.settings.composition.mass)} of the summed contribution |m|·‖v‖ (the line is the median, the band "
        "reaches from the first to the third quartile). The participation ratio of the contributions is shown as its "
        "median."
    )
    if "relu" not in activation.lower():
        text += (
            f" With this model's activation, {activation}, hardly any coefficient is exactly zero, so that small positive "
            "ones count as active too."
        )
    if any(matrix.experts for layer in layers for matrix in layer.second_matrices):
        text += (
            " The coefficients of an expert are zero for a prefix that is not sent to it: its memories are not active."
        )
    if any(layer.signed for layer in layers):
        text += (
            " Memories with a negative coefficient are not active, but they contribute to the sum: the effective number "
            "counts them."
        )
    text += paper_line(run, "The grey line is the median of the paper's model, which has ReLU.")
    description = (
        f"Boxes per layer. Median share of active memories: {course(active, 'median')}. Median effective number of "
        f"memories: {course(effective, 'effective_median', number)}."
    )
    return Caption(text, description)


SHARE, NUMBER = (by_prefix("composition/by_prefix", name, median=True) for name in ("share", "effective"))
CURVES = (
    Curve("median share of active memories", by_layer(ACTIVE, "median"), units=SHARE),
    Curve(
        "median effective number of memories",
        by_layer(EFFECTIVE, "effective_median"),
        share=False,
        panel=1,
        units=NUMBER,
    ),
)
FIGURE = Figure((ACTIVE, EFFECTIVE), draw, caption, curves=CURVES)
