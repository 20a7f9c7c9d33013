"""What the page shows and says about composition: figures 7 and 8."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.section import Caption, Figure, Section
from ffkv.run.report.wording import BOX, OF_PREFIXES, both, course, goes, paper_line, projection, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

ACTIVE, EFFECTIVE = "figure_7_active_memories", "figure_7_effective_number"
NO_AGREEMENT, CASES = "figure_8_no_agreement", "figure_8_agreement_cases"
READINGS = {"active": "no active memory agrees", "all": "no memory agrees"}
ALL_LAYERS = -1  # the row of CASES that counts all layers together


def draw_active(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Left, boxes per layer: the share of active memories. Right, lines per layer: the number that carries the sum."""
    active, effective = run.table(ACTIVE), run.table(EFFECTIVE)
    figure, (left, right) = drawing.canvas(2)
    drawing.boxes(left, active)
    if paper:
        drawing.paper_curve(left, paper, len(run.anatomy.layers), "the paper's median")
    drawing.share_axis(left, "active memories of the layer")
    x, dark, light = effective["layer"], drawing.colours(4)[1], drawing.colours(4)[3]
    right.fill_between(x, effective["effective_q1"], effective["effective_q3"], color=light, alpha=0.5, linewidth=0)
    right.plot(x, effective["effective_median"], color=dark, marker="o", label="effective number")
    ratio_style: dict[str, Any] = {"color": "black", "marker": "s", "linestyle": "--", "markerfacecolor": "white"}
    right.plot(x, effective["participation_median"], label="participation ratio", **ratio_style)
    right.set_ylim(0, None)
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_ylabel("memories that carry the sum")
    for panel in (left, right):
        drawing.layer_axis(panel, len(run.anatomy.layers))
    drawing.legend(figure, left, "left")
    drawing.legend(figure, right, "right")
    return figure


def _caption_active(run: Run) -> Caption:
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
    shows = (
        f"The median share of active memories {goes(active, 'median')}; the effective number of memories "
        f"{goes(effective, 'effective_median', number)}."
    )
    return Caption(shows, text, description)


def draw_no_agreement(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Lines per layer: no active memory agrees, and no memory at all agrees."""
    table = run.table(NO_AGREEMENT)
    figure, (axes,) = drawing.canvas()
    for style, (reading, label) in enumerate(READINGS.items()):
        drawing.curve(axes, rows(table, reading=reading), "share", label, style, 2)
    drawing.finish_shares(figure, axes, "prefixes", len(run.anatomy.layers), paper, whole=True)
    return figure


def _caption_no_agreement(run: Run) -> Caption:
    table = run.table(NO_AGREEMENT)
    cases = rows(run.table(CASES), layer=ALL_LAYERS).iloc[0]
    stop_words = (
        f"In {percent(cases['stop_word_share'])} of them the next token is a stop word "
        f"(in all prefixes: {percent(cases['base_stop_word_share'])}; in the paper's cases: 60 %). "
    )
    if pd.isna(cases["base_stop_word_share"]):  # there is no list of them for the language of the corpus
        stop_words = ""
    text = (
        f"Share of {number(table['prefixes'].max())} validation prefixes in which no memory predicts the token that the "
        "layer's output predicts, so that several memories compose it: no active memory (m > 0), and no memory at all. "
        f"{projection(run)} Bars are {OF_PREFIXES} In {number(cases['cases'])} cases (a prefix in a "
        f"layer) an active memory agrees. {stop_words}In "
        f"{percent(cases['short_share'])} of them the prefix has fewer than {run.settings.composition.short_prefix} "
        f"words (in all prefixes: {percent(cases['base_short_share'])}; in the paper's cases: 43 %)."
    )
    text += paper_line(run, "The grey line is the paper's.")
    active, everything = rows(table, reading="active"), rows(table, reading="all")
    description = (
        f"Lines per layer. No active memory agrees: {course(active, 'share')}. No memory at all agrees: "
        f"{course(everything, 'share')}."
    )
    shows = f"The share of prefixes in which no active memory predicts what the layer predicts {goes(active, 'share')}."
    return Caption(shows, text, description)


def _curve(reading: str, agreeing: str) -> Curve:
    units = by_prefix("composition/by_prefix", lambda table: table[agreeing] == 0)
    return Curve(READINGS[reading], by_layer(NO_AGREEMENT, "share", reading=reading), units=units)


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns how many memories a prefix activates, and how often none predicts what the layer predicts."""
    active = both(lambda each: course(each.table(ACTIVE), "median"), run, control)
    none = both(lambda each: course(rows(each.table(NO_AGREEMENT), reading="active"), "share"), run, control)
    return [
        f"Median share of a layer's memories that a prefix activates: {active}. Share of prefixes in which no active memory "
        f"predicts the token that the layer predicts: {none}."
    ]


SHARE, NUMBER = (by_prefix("composition/by_prefix", name, median=True) for name in ("share", "effective"))
EFFECTIVE_NUMBER = by_layer(EFFECTIVE, "effective_median")
ACTIVE_CURVES = (
    Curve("median share of active memories", by_layer(ACTIVE, "median"), units=SHARE),
    Curve("median effective number of memories", EFFECTIVE_NUMBER, share=False, panel=1, units=NUMBER),
)
AGREEMENT_CURVES = (_curve("active", "agreeing"), _curve("all", "agreeing_all"))
SECTION = Section(
    {
        "figure_7": Figure((ACTIVE, EFFECTIVE), draw_active, _caption_active, ACTIVE_CURVES),
        "figure_8": Figure((NO_AGREEMENT, CASES), draw_no_agreement, _caption_no_agreement, AGREEMENT_CURVES),
    },
    summarize,
)
