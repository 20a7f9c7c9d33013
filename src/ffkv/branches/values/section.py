"""What the page shows and says about values: figures 4 to 6 and table 2."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Line, Panel, by_layer, by_memory, points
from ffkv.run.report.page_tables import data_table, predictive_values
from ffkv.run.report.section import Figure, Section, TableBlock, caption, figure_of_lines, numbers
from ffkv.run.report.wording import note
from ffkv.run.results.run import Run

AGREEMENT, RANK, BINS = "figure_4_agreement", "figure_5_rank", "figure_6_top_probability"
BASELINES = {
    "negative": "bottom of values, negative triggers",
    "permuted": "keys permuted",
    "unigram": "next token of any prefix",
    "uniform": "any token",
}


def draw_rank(run: Run, paper: Any) -> Drawing:
    """Boxes per layer. The paper's ranks are not drawn: its vocabulary is another one."""
    rank, vocabulary = run.table(RANK), run.anatomy.vocabulary
    figure, (axes,) = drawing.canvas()
    drawing.boxes(axes, rank)
    axes.axhline(vocabulary / 2, color="0.3", linestyle="--", label=f"half of the vocabulary ({vocabulary // 2:,})")
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("rank of the next token (0 is best)")
    drawing.layer_axis(axes, len(run.anatomy.layers))
    drawing.legend(figure, axes)
    return figure


def draw_bins(run: Run, paper: dict[str, Any] | None) -> Drawing:
    """Draws bars per bin of the top probability, with numbers of values above them, and the paper's bins beside."""
    figure, axes = drawing.canvas(2 if paper else 1, width_ratios=[3, 2] if paper else None)
    table = run.table(BINS)
    bars = np.clip([table["rate"] - table["rate_low"], table["rate_high"] - table["rate"]], 0, None)
    middle, width = (table["low"] + table["high"]) / 2, table["high"] - table["low"]
    style: dict[str, Any] = {"color": drawing.colours(4)[2], "edgecolor": "white", "ecolor": "0.3", "capsize": 2}
    drawn = axes[0].bar(middle, table["rate"], width, yerr=bars, label="agreement rate", **style)
    drawing.label_parts(drawn.errorbar, "intervals of agreement rate")
    filled = table[table["values"] > 0]  # bins of few values have wide intervals, which do not set the axis
    limit = min(1, np.nanmax([0.001, 1.5 * filled["rate"].max(), filled["rate_high"].min()]))
    for x, top, count in zip(middle, table["rate_high"], table["values"], strict=True):
        above: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
        axes[0].annotate(f"{count:,}", (x, min(top, limit) if count else 0), **above)
    axes[0].locator_params("x", nbins=5)  # labels of small probabilities are long
    axes[0].set_xlabel("top probability of the value")
    drawing.share_axis(axes[0], "agreement rate")
    axes[0].set_ylim(0, 1.1 * limit)
    drawing.tell_cut(axes[0], int((filled["rate_high"] > limit).sum()))
    if paper:
        x = np.arange(len(paper["rate"]))
        axes[1].bar(x, paper["rate"], color="0.75", edgecolor="0.45", hatch="////")
        axes[1].set_xticks(x, [f"{1e4 * float(label):.1f}" for label in paper["labels"]])
        drawing.share_axis(axes[1], "", whole=True)
        axes[1].set_xlabel("top probability · 10,000, the paper")
    return figure


def rate_by_bin(run: Run) -> pd.DataFrame:
    """Returns the rate of a run by the middle of the bin. Empty bins have none."""
    table = run.table(BINS)
    table = table[table["values"] > 0]
    return points(table.assign(middle=(table["low"] + table["high"]) / 2), "middle", "rate", ("rate_low", "rate_high"))


def _predictive(run: Run) -> list[TableBlock]:
    table = predictive_values(run)
    folded = [
        ("Number of these values per layer", data_table(run, "table_2_predictive_layers")),
        ("All columns", data_table(run, "table_2_predictive_values")),
    ]
    text, more = (note(__package__, name, count=len(table.rows)) for name in ("predictive", "of_paper"))
    return [TableBlock("predictive", "Table 2. Predictive values", text, table, folded, more=more)]


RANK_CURVE = Curve(
    "median rank of the next token", by_layer(RANK, "median"), share=False, units=by_memory("rank", median=True)
)
AGREES = Line(
    "values and their keys", AGREEMENT, "rate", {"source": "trigger"}, curve="agreement rate", units=by_memory("agrees")
)
AGREEMENT_LINES = [AGREES, *(Line(label, AGREEMENT, "rate", {"source": name}) for name, label in BASELINES.items())]
BINS_CURVE = Curve("agreement rate", rate_by_bin, "top probability of the value")
SECTION = Section(
    {
        "figure_4": figure_of_lines(
            [Panel(AGREEMENT_LINES, "agreement rate", percentages=True)], caption(__package__, "figure_4")
        ),
        "figure_5": Figure((RANK,), draw_rank, caption(__package__, "figure_5"), (RANK_CURVE,)),
        "figure_6": Figure((BINS,), draw_bins, caption(__package__, "figure_6"), (BINS_CURVE,)),
    },
    numbers(__package__),
    after=_predictive,
)
