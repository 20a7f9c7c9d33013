"""Figure 6: the agreement of figure 4 by the probability that a value gives to its top token."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, points
from ffkv.run.report.drawing import canvas, colours, share_axis
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import INTERVALS, scale_free
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

BINS = "figure_6_top_probability"


def draw(run: Run, paper: dict[str, Any] | None) -> Drawing:
    """Draws bars per bin of the top probability, with the number of values above each bar.

    The paper's bins are beside them.
    """
    figure, axes = canvas(2 if paper else 1, sharey=True, width_ratios=[3, 2] if paper else None)
    _draw_bins(axes[0], run.table(BINS))
    if paper:
        x = np.arange(len(paper["rate"]))
        axes[1].bar(x, paper["rate"], color="0.75", edgecolor="0.45", hatch="////")
        axes[1].set_xticks(x, paper["labels"], rotation=45)
        axes[1].set_xlabel("top probability, the paper")
    return figure


def _draw_bins(axes: Axes, table: pd.DataFrame) -> None:
    bars = np.clip([table["rate"] - table["rate_low"], table["rate_high"] - table["rate"]], 0, None)
    middle, width = (table["low"] + table["high"]) / 2, table["high"] - table["low"]
    style: dict[str, Any] = {"color": colours(4)[2], "edgecolor": "white", "ecolor": "0.3", "capsize": 2}
    axes.bar(middle, table["rate"], width, yerr=bars, label="agreement rate", **style)
    for x, top, count in zip(middle, table["rate_high"], table["values"], strict=True):
        height = top if count else 0
        axes.annotate(f"{count:,}", (x, height), (0, 2), textcoords="offset points", ha="center", fontsize="small")
    axes.set_xlabel("top probability of the value")
    share_axis(axes, "agreement rate")
    axes.set_ylim(0, 1.1)


def caption(run: Run) -> Caption:
    """Names the number of values and of bins."""
    table = run.table(BINS)
    text = (
        "The agreement of figure 4 by the probability that a value gives to its top token: "
        f"{number(table['values'].sum())} values of all layers in {len(table)} bins of equal width. The number above "
        f"each bar is the number of values in the bin. {INTERVALS}"
    ) + scale_free(run)
    if run.settings.report.paper_curves:
        text += (
            " The right panel shows the paper's bins. Their sizes are unknown, and their probabilities come from another "
            "head, on another scale."
        )
    filled = table[table["values"] > 0]
    if filled.empty:
        return Caption(text, "Bars by top probability; no value to show.")
    row = filled.iloc[-1]
    edges = f"from {number(row['low'])} to {number(row['high'])}"
    agreeing = f"{percent(row['rate'])} of {number(row['values'])} values agree"
    return Caption(text, f"Bars by top probability. In the highest bin, {edges}, {agreeing}.")


def rate_by_bin(run: Run) -> pd.DataFrame:
    """Returns the rate of a run by the middle of the bin. Empty bins have none."""
    table = run.table(BINS)
    table = table[table["values"] > 0]
    return points(table.assign(middle=(table["low"] + table["high"]) / 2), "middle", "rate", ("rate_low", "rate_high"))


FIGURE = Figure((BINS,), draw, caption, curves=(Curve("agreement rate", rate_by_bin, "top probability of the value"),))
