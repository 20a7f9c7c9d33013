"""The paper's figures 2 to 11 and the training curve: tables in, a figure out.

Layers count from 0 in the tables and from 1 in the figures. `paper` holds the paper's own numbers, or None.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ffkv.report.drawing import (
    PAPER_LAYERS,
    boxes,
    canvas,
    colours,
    curve,
    layer_axis,
    legend,
    paper_curve,
    share_axis,
    stack,
)

CATEGORIES = ["shallow", "shallow and semantic", "semantic", "none"]
CASES = ["residual", "agreement", "composition", "ffn", "other"]


def depth(table: pd.DataFrame) -> int:
    """Number of layers that a table speaks of."""
    return int(table["layer"].max()) + 1


def shares_by(table: pd.DataFrame, column: str, names: list[str]) -> dict[str, np.ndarray]:
    """Share of each name in `column` by layer: name to [layer]."""
    wide = table.pivot(index="layer", columns=column, values="share").reindex(columns=names).fillna(0)
    return {name: wide[name].to_numpy() for name in names}


def figure_2(categories: pd.DataFrame, paper: dict | None) -> Figure:
    """Shares of trigger examples with shallow and semantic patterns by layer; random prefixes and the paper beside."""
    layers = depth(categories)
    panels = [
        (title, layers, shares_by(categories[categories["sample"] == sample], "category", CATEGORIES))
        for sample, title in (("trigger", "trigger examples"), ("random", "random prefixes"))
    ]
    if paper:
        panels.append(("the paper's, judged by a person", PAPER_LAYERS, paper))
    figure, axes = canvas(len(panels), sharey=True)
    for panel, (title, count, shares) in zip(axes, panels, strict=True):
        stack(panel, np.arange(1, count + 1), shares)
        layer_axis(panel, count)
        panel.set_title(title)
    share_axis(axes[0], "prefixes", whole=True)
    legend(figure, axes[0])
    return figure


def figure_3(removal: pd.DataFrame, paper: dict | None) -> Figure:
    """Change of a memory coefficient when the first, the last or a random token of its trigger is removed."""
    figure, (axes,) = canvas()
    for style, removed in enumerate(["first", "random", "last"]):
        curve(axes, removal[removal["removed"] == removed], "change", f"{removed} token", style, 3)
        if paper:
            paper_curve(axes, paper[removed], depth(removal), f"the paper: {removed}", style)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_ylabel("change of the coefficient (%)")
    layer_axis(axes, depth(removal))
    legend(figure, axes, columns=3)
    return figure


def figure_4(agreement: pd.DataFrame, paper: list | None) -> Figure:
    """How often a value's top prediction is the next token of its key's first trigger, beside three baselines.

    Where there are negative coefficients, also how often the bottom of the value is that of its first negative trigger.
    """
    figure, (axes,) = canvas()
    labels = {
        "trigger": "values and their keys",
        "negative": "bottom of values, negative triggers",
        "permuted": "keys permuted",
        "unigram": "token of the corpus",
        "uniform": "any token",
    }
    present = [source for source in labels if source in agreement["source"].unique()]
    for style, source in enumerate(present):
        curve(axes, agreement[agreement["source"] == source], "rate", labels[source], style, len(present))
    if paper:
        paper_curve(axes, paper, depth(agreement))
    share_axis(axes, "agreement rate")
    layer_axis(axes, depth(agreement))
    legend(figure, axes, columns=3 if "negative" in present else 5)
    return figure


def figure_5(rank: pd.DataFrame, vocabulary: int) -> Figure:
    """Rank of the next token of a key's first trigger in its value's prediction, a box by layer."""
    figure, (axes,) = canvas()
    boxes(axes, rank)
    axes.axhline(vocabulary / 2, color="0.3", linestyle="--", label=f"half of the vocabulary ({vocabulary // 2:,})")
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("rank of the next token (0 is best)")
    layer_axis(axes, depth(rank))
    legend(figure, axes)
    return figure


def figure_6(probability: pd.DataFrame, paper: dict | None) -> Figure:
    """Agreement rate by the value's top probability, with the number of values in each bin; the paper's beside."""
    figure, axes = canvas(2 if paper else 1, sharey=True, width_ratios=[3, 2] if paper else None)
    table, ours = probability, axes[0]
    bars = np.clip([table["rate"] - table["rate_low"], table["rate_high"] - table["rate"]], 0, None)
    middle, width = (table["low"] + table["high"]) / 2, table["high"] - table["low"]
    style = {"color": colours(4)[2], "edgecolor": "white", "ecolor": "0.3", "capsize": 2}
    ours.bar(middle, table["rate"], width, yerr=bars, label="agreement rate", **style)
    for x, top, count in zip(middle, table["rate_high"], table["values"], strict=True):
        height = top if count else 0
        ours.annotate(f"{count:,}", (x, height), (0, 2), textcoords="offset points", ha="center", fontsize="small")
    ours.set_xlabel("top probability of the value")
    share_axis(ours, "agreement rate")
    ours.set_ylim(0, 1.1)
    if paper:
        x = np.arange(len(paper["rate"]))
        axes[1].bar(x, paper["rate"], color="0.75", edgecolor="0.45", hatch="////")
        axes[1].set_xticks(x, paper["labels"], rotation=45)
        axes[1].set_xlabel("top probability, the paper")
    return figure


def figure_7(active: pd.DataFrame, effective: pd.DataFrame, paper: list | None) -> Figure:
    """Share of a layer's memories that a prefix activates, and how many of them carry the sum."""
    figure, (left, right) = canvas(2)
    boxes(left, active)
    if paper:
        paper_curve(left, paper, depth(active), "the paper's median")
    share_axis(left, "active memories of the layer")
    x, dark, light = effective["layer"] + 1, colours(4)[1], colours(4)[3]
    right.fill_between(x, effective["effective_q1"], effective["effective_q3"], color=light, alpha=0.5, linewidth=0)
    right.plot(x, effective["effective_median"], color=dark, marker="o", label="effective number")
    ratio_style = {"color": "black", "marker": "s", "linestyle": "--", "markerfacecolor": "white"}
    right.plot(x, effective["participation_median"], label="participation ratio", **ratio_style)
    right.set_ylim(0, None)
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_ylabel("memories that carry the sum")
    for panel in (left, right):
        layer_axis(panel, depth(active))
    legend(figure, left, right)
    return figure


def figure_8(agreement: pd.DataFrame, paper: list | None) -> Figure:
    """Share of prefixes in which no memory's top prediction is the layer's."""
    figure, (axes,) = canvas()
    for style, (reading, label) in enumerate([("active", "no active memory agrees"), ("all", "no memory agrees")]):
        curve(axes, agreement[agreement["reading"] == reading], "share", label, style, 2)
    if paper:
        paper_curve(axes, paper, depth(agreement))
    share_axis(axes, "prefixes", whole=True)
    layer_axis(axes, depth(agreement))
    legend(figure, axes)
    return figure


def figure_9(residual: pd.DataFrame, paper: list | None) -> Figure:
    """Share of prefixes in which the residual's top prediction is already the model's."""
    figure, (axes,) = canvas()
    curve(axes, residual, "share", "the residual predicts what the model predicts")
    if paper:
        paper_curve(axes, paper, depth(residual))
    share_axis(axes, "prefixes", whole=True)
    layer_axis(axes, depth(residual))
    legend(figure, axes)
    return figure


def figure_10(probability: pd.DataFrame, paper: list | None) -> Figure:
    """Probability that the residual gives to the model's prediction, a box by layer."""
    figure, (axes,) = canvas()
    boxes(axes, probability)
    if paper:
        paper_curve(axes, paper, depth(probability), "the paper's median")
        legend(figure, axes)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("probability of the final prediction")
    layer_axis(axes, depth(probability))
    return figure


def figure_11(breakdown: pd.DataFrame, paper: dict | None) -> Figure:
    """Where the block output's prediction comes from: residual, both, a compromise, the layer, or none of these."""
    panels = [("this model", depth(breakdown), shares_by(breakdown, "case", CASES))]
    if paper:
        panels.append(("the paper", PAPER_LAYERS, {**paper, "other": [0] * PAPER_LAYERS}))
    figure, axes = canvas(len(panels), sharey=True)
    for panel, (title, count, shares) in zip(axes, panels, strict=True):
        stack(panel, np.arange(1, count + 1), shares)
        layer_axis(panel, count)
        panel.set_title(title)
    share_axis(axes[0], "prefixes", whole=True)
    legend(figure, axes[0])
    return figure


def training(curves: pd.DataFrame) -> Figure:
    """Loss of the embedded model over the training steps, on both splits."""
    figure, (axes,) = canvas()
    for (split, rows), style in zip(curves.groupby("split"), [(":", 0), ("-o", 2)], strict=False):
        axes.plot(rows["step"], rows["loss"], style[0], color=colours(4)[style[1]], label=split, markersize=4)
    axes.set_xlabel("training step")
    axes.set_ylabel("loss (nats a token)")
    legend(figure, axes)
    return figure
