"""What the page shows and says about values: figures 4 to 6 and table 2."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, by_layer, by_memory, points
from ffkv.run.report.page_tables import data_table, predictive_values
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import (
    BOX,
    INTERVALS,
    both,
    course,
    goes,
    paper_line,
    projection,
    rows,
    ties,
    weighted_mean,
)
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

AGREEMENT, RANK, BINS = "figure_4_agreement", "figure_5_rank", "figure_6_top_probability"
LABELS = {
    "trigger": "values and their keys",
    "negative": "bottom of values, negative triggers",
    "permuted": "keys permuted",
    "unigram": "next token of any prefix",
    "uniform": "any token",
}


def draw_agreement(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Draws lines per layer: the agreement, its three baselines, and that of negative coefficients if there are any."""
    agreement = run.table(AGREEMENT)
    figure, (axes,) = drawing.canvas()
    present = [source for source in LABELS if source in agreement["source"].unique()]
    for style, source in enumerate(present):
        drawing.curve(axes, rows(agreement, source=source), "rate", LABELS[source], style, len(present))
    drawing.finish_shares(figure, axes, "agreement rate", len(run.anatomy.layers), paper)
    return figure


def _caption_agreement(run: Run) -> Caption:
    table = run.table(AGREEMENT)
    own, permuted = rows(table, source="trigger"), rows(table, source="permuted")
    negative = rows(table, source="negative")
    text = (
        "How often the token that a value predicts is the token that follows its key's strongest trigger example in "
        f"the corpus: {number(own['agreeing'].sum())} of {number(own['keys'].sum())} values. "
        f"{number(own['dead'].sum())} keys without a trigger example are left out. "
        f"{projection(run)} There are three baselines: the keys of a layer permuted (mean "
        "and middle 95 % of 1,000 permutations); the token that follows a random prefix in place of the next token; any "
        f"token of the vocabulary in its place (1 in {number(run.anatomy.vocabulary)}). Bars are 95 % intervals."
    )
    description = f"Lines per layer. Agreement: {course(own, 'rate')}. With keys permuted: {course(permuted, 'rate')}."
    if len(negative):
        text += (
            " A memory with a negative coefficient promotes the bottom of its value, which is the token with the lowest "
            "logit. The bottom of the value is the token that follows the key's most negative trigger example for "
            f"{number(negative['agreeing'].sum())} of {number(negative['keys'].sum())} values."
        )
        description += f" Bottom of values and negative trigger examples: {course(negative, 'rate')}."
    rate, by_chance = (percent(weighted_mean(found, "rate", "keys")) for found in (own, permuted))
    shows = f"{rate} of values predict what follows the strongest trigger example; with keys permuted, {by_chance} do."
    return Caption(shows, text + paper_line(run, "The grey line is the paper's."), description)


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


def _caption_rank(run: Run) -> Caption:
    table = run.table(RANK)
    text = (
        "Rank, in the prediction of a value, of the token that follows its key's strongest trigger example: the number "
        f"of tokens with a higher logit, so that 0 is best. {number(table['keys'].sum())} keys have a trigger example. "
        f"The vocabulary has {number(run.anatomy.vocabulary)} tokens. {ties(table, 'keys', 'values')} {BOX} The paper's ranks are not drawn, because "
        "its vocabulary is another one (267,744 tokens, in classes). Their median fell from 9,611 in its first layer to "
        "5,139 in its last layer."
    )
    shows = f"The median rank of the next token {goes(table, 'median', number)}, of {number(run.anatomy.vocabulary)} tokens."
    return Caption(shows, text, f"Boxes per layer. Median rank: {course(table, 'median', number)}.")


def draw_bins(run: Run, paper: dict[str, Any] | None) -> Drawing:
    """Draws bars per bin of the top probability, with the number of values above each bar.

    The paper's bins are beside them.
    """
    figure, axes = drawing.canvas(2 if paper else 1, width_ratios=[3, 2] if paper else None)
    table = run.table(BINS)
    bars = np.clip([table["rate"] - table["rate_low"], table["rate_high"] - table["rate"]], 0, None)
    middle, width = (table["low"] + table["high"]) / 2, table["high"] - table["low"]
    style: dict[str, Any] = {"color": drawing.colours(4)[2], "edgecolor": "white", "ecolor": "0.3", "capsize": 2}
    axes[0].bar(middle, table["rate"], width, yerr=bars, label="agreement rate", **style)
    filled = table[table["values"] > 0]  # bins of few values have wide intervals, which do not set the axis
    limit = min(1, np.nanmax([0.001, 1.5 * filled["rate"].max(), filled["rate_high"].min()]))
    for x, top, count in zip(middle, table["rate_high"], table["values"], strict=True):
        above: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
        axes[0].annotate(f"{count:,}", (x, min(top, limit) if count else 0), **above)
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


def _caption_bins(run: Run) -> Caption:
    table = run.table(BINS)
    text = (
        "The agreement of figure 4 by the probability that a value gives to its top token: "
        f"{number(table['values'].sum())} values of all layers in {len(table)} bins of equal width. The number above "
        f"each bar is the number of values in the bin. {INTERVALS}"
    )
    if run.settings.values.projection != "unembedding" and run.anatomy.final_norm:  # it hides how long a value is
        text += (
            " The final norm gives every vector the same length, so the top probability says nothing about the size of a"
            " value. The column “contribution” of table 2 does."
        )
    if run.settings.report.paper_curves:
        text += (
            " The right panel shows the paper's bins. Their sizes are unknown, and their probabilities come from another "
            "head, on another scale."
        )
    filled = table[table["values"] > 0]
    if filled.empty:
        return Caption("There is no value to show.", text, "Bars by top probability; no value to show.")
    row = filled.iloc[-1]
    edges = f"from {number(row['low'])} to {number(row['high'])}"
    agreeing = f"{percent(row['rate'])} of {number(row['values'])} values agree"
    shows = f"In the highest bin of probabilities, {edges}, {agreeing}."
    return Caption(shows, text, f"Bars by top probability. {shows}")


def rate_by_bin(run: Run) -> pd.DataFrame:
    """Returns the rate of a run by the middle of the bin. Empty bins have none."""
    table = run.table(BINS)
    table = table[table["values"] > 0]
    return points(table.assign(middle=(table["low"] + table["high"]) / 2), "middle", "rate", ("rate_low", "rate_high"))


PREDICTIVE = (
    "The {count} values with the highest probability of their top token. The table shows how many of a key's trigger "
    "examples are followed by this token. It also shows the strongest of these examples, or the strongest of all "
    "examples if none of them is followed by the token. Of the 100 such values of the paper, 97 were in its upper six layers, "
    "and 46 had such an example. “Contribution” is the length of what the memory typically adds to the residual stream: its "
    "mean coefficient over its trigger examples times the length of the value."
)


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns how many values predict what follows their keys."""

    def rate(source: str) -> str:
        return both(
            lambda each: percent(weighted_mean(rows(each.table(AGREEMENT), source=source), "rate", "keys")),
            run,
            control,
        )

    by_layer = both(lambda each: course(rows(each.table(AGREEMENT), source="trigger"), "rate"), run, control)
    return [
        f"For {rate('trigger')} of {number(rows(run.table(AGREEMENT), source='trigger')['keys'].sum())} memories, the top token of the "
        f"value is the token that follows the key's strongest trigger example. With keys permuted: {rate('permuted')}. Per layer: "
        f"{by_layer}."
    ]


def _predictive(run: Run) -> list[TableBlock]:
    table = predictive_values(run)
    folded = [
        ("Number of these values per layer", data_table(run, "table_2_predictive_layers")),
        ("All columns", data_table(run, "table_2_predictive_values")),
    ]
    text = PREDICTIVE.format(count=len(table.rows))
    return [TableBlock("predictive", "Table 2. Predictive values", text, table, folded)]


RANK_CURVE = Curve(
    "median rank of the next token",
    by_layer(RANK, "median"),
    share=False,
    units=by_memory("rank", median=True),
)
AGREEMENT_CURVE = Curve("agreement rate", by_layer(AGREEMENT, "rate", source="trigger"), units=by_memory("agrees"))
BINS_CURVE = Curve("agreement rate", rate_by_bin, "top probability of the value")
SECTION = Section(
    {
        "figure_4": Figure((AGREEMENT,), draw_agreement, _caption_agreement, (AGREEMENT_CURVE,)),
        "figure_5": Figure((RANK,), draw_rank, _caption_rank, (RANK_CURVE,)),
        "figure_6": Figure((BINS,), draw_bins, _caption_bins, (BINS_CURVE,)),
    },
    summarize,
    after=_predictive,
)
