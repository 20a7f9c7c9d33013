"""Figure 8: the share of prefixes in which no memory's prediction is the prediction of the layer."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.drawing import canvas, curve, finish_shares
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import OF_PREFIXES, course, paper_line, projection, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

NO_AGREEMENT, CASES = "figure_8_no_agreement", "figure_8_agreement_cases"
READINGS = {"active": "no active memory agrees", "all": "no memory agrees"}
ALL_LAYERS = -1  # the row of CASES that counts all layers together


def draw(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Lines per layer: no active memory agrees, and no memory at all agrees."""
    table = run.table(NO_AGREEMENT)
    figure, (axes,) = canvas()
    for style, (reading, label) in enumerate(READINGS.items()):
        curve(axes, rows(table, reading=reading), "share", label, style, 2)
    finish_shares(figure, axes, "prefixes", len(run.anatomy.layers), paper, whole=True)
    return figure


def caption(run: Run) -> Caption:
    """Defines both readings, and tells of the prefixes in which a memory does agree."""
    table = run.table(NO_AGREEMENT)
    cases = rows(run.table(CASES), layer=ALL_LAYERS).iloc[0]
    text = (
        f"Share of {number(table['prefixes'].max())} validation prefixes in which no memory predicts the token that the "
        "layer's output predicts, so that several memories compose it: no active memory (m > 0), and no memory at all. "
        f"{projection(run)} Bars are {OF_PREFIXES} In {number(cases['cases'])} cases (a prefix in a "
        f"layer) an active memory agrees. {_tell_stop_words(cases)}In "
        f"{percent(cases['short_share'])} of them the prefix has fewer than {run.settings.composition.short_prefix} "
        f"words (in all prefixes: {percent(cases['base_short_share'])}; in the paper's cases: 43 %)."
    )
    text += paper_line(run, "The grey line is the paper's.")
    active, everything = rows(table, reading="active"), rows(table, reading="all")
    description = (
        f"Lines per layer. No active memory agrees: {course(active, 'share')}. No memory at all agrees: "
        f"{course(everything, 'share')}."
    )
    return Caption(text, description)


def _tell_stop_words(cases: pd.Series) -> str:
    if pd.isna(cases["base_stop_word_share"]):  # there is no list of them for the language of the corpus
        return ""
    return (
        f"In {percent(cases['stop_word_share'])} of them the next token is a stop word "
        f"(in all prefixes: {percent(cases['base_stop_word_share'])}; in the paper's cases: 60 %). "
    )


def _curve(reading: str, agreeing: str) -> Curve:
    units = by_prefix("composition/by_prefix", lambda table: table[agreeing] == 0)
    return Curve(READINGS[reading], by_layer(NO_AGREEMENT, "share", reading=reading), units=units)


CURVES = (_curve("active", "agreeing"), _curve("all", "agreeing_all"))
FIGURE = Figure((NO_AGREEMENT, CASES), draw, caption, curves=CURVES)
