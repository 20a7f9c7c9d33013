"""What the page shows and says about translation: figures 4, 5 and 8 to 10 read through the maps, beside the head's reading."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, by_layer, points
from ffkv.run.report.page_tables import data_table
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import OF_PREFIXES, both, course, goes, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import decimals, number, percent

AGREEMENT, RANK, NO_AGREEMENT = "translated_agreement", "translated_rank", "translated_no_agreement"
RESIDUAL, PROBABILITY, FIT = "translated_residual_agreement", "translated_final_probability", "translation_fit"
DIFFERENCES = "translation_differences"
OF_HEAD = {  # the head's own tables, of the run's other sections
    AGREEMENT: "figure_4_agreement",
    RANK: "figure_5_rank",
    NO_AGREEMENT: "figure_8_no_agreement",
    RESIDUAL: "figure_9_residual_agreement",
    PROBABILITY: "figure_10_final_probability",
}
LABELS = {"translated": "translated", "head": "as the head reads it", "shuffled": "map of shuffled pairs"}
FLAT = 0.2  # of what the lower half lacks: a smaller gain is none, as a smaller trend is flat in `verdicts`
MAP = (
    "A map is fitted for each layer by ridge regression, from the layer's block output to what the head reads, on states of train "
    "prefixes. Values and feed-forward outputs are read without the map's offset, because they are changes of a state. The map of "
    "shuffled pairs is fitted on states of prefixes that do not belong together."
)


def _readings(run: Run, name: str, **values: str) -> dict[str, pd.DataFrame]:
    """Returns the rows of a table for each reading: translated, as the head reads it, by the map of shuffled pairs."""
    table, own = run.table(name), rows(run.table(OF_HEAD[name]).rename(columns={"reading": "counted"}), **values)
    found = {reading: rows(table, reading=reading, **values) for reading in ("translated", "shuffled")}
    return {"translated": found["translated"], "head": own, "shuffled": found["shuffled"]}


def _draw(axes: Axes, found: dict[str, pd.DataFrame], value: str, count: int = 3) -> None:
    for style, (reading, table) in enumerate(found.items()):
        drawing.curve(axes, table, value, LABELS[reading], style, count)


def _quartiles(found: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Returns tables of boxes with their quartiles as intervals."""
    return {reading: table.assign(low=table["q1"], high=table["q3"]) for reading, table in found.items()}


def draw_agreement(run: Run, paper: Any) -> Drawing:
    """Lines per layer: figure 4 in three readings, and the translated reading with keys permuted."""
    figure, (axes,) = drawing.canvas()
    _draw(axes, _readings(run, AGREEMENT, source="trigger"), "rate", 4)
    permuted = _readings(run, AGREEMENT, source="permuted")["translated"]
    drawing.curve(axes, permuted, "rate", "translated, keys permuted", 3, 4)
    drawing.finish_shares(figure, axes, "agreement rate", len(run.anatomy.layers), None)
    return figure


def _caption_agreement(run: Run) -> Caption:
    found = _readings(run, AGREEMENT, source="trigger")
    text = (
        "Figure 4 in another reading: how often the token that a value predicts is the token that follows its key's strongest trigger "
        f"example, {number(found['translated']['keys'].sum())} values. {MAP} Keys are permuted within their layer. Bars are 95 % intervals."
    )
    return Caption(_answer(run), text, f"Lines per layer. {_courses(found, 'rate')}.")


def draw_rank(run: Run, paper: Any) -> Drawing:
    """Lines per layer: the median rank of figure 5 in three readings, with quartiles."""
    figure, (axes,) = drawing.canvas()
    _draw(axes, _quartiles(_readings(run, RANK)), "median")
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("rank of the next token (0 is best)")
    drawing.layer_axis(axes, len(run.anatomy.layers))
    drawing.legend(figure, axes)
    return figure


def _caption_rank(run: Run) -> Caption:
    found = _readings(run, RANK)
    text = (
        "Figure 5 in another reading: rank, in the prediction of a value, of the token that follows its key's strongest trigger example. "
        f"Lines are medians, bars reach from the first to the third quartile. {MAP}"
    )
    shows = f"The median rank of the next token, translated, {goes(found['translated'], 'median', number)}."
    return Caption(shows, text, f"Lines per layer. {_courses(found, 'median', number)}.")


def draw_composition(run: Run, paper: Any) -> Drawing:
    """Lines per layer: no active memory agrees (figure 8), in three readings."""
    figure, (axes,) = drawing.canvas()
    _draw(axes, _readings(run, NO_AGREEMENT, counted="active"), "share")
    drawing.finish_shares(figure, axes, "prefixes", len(run.anatomy.layers), None, whole=True)
    return figure


def _caption_composition(run: Run) -> Caption:
    found = _readings(run, NO_AGREEMENT, counted="active")
    text = (
        f"Figure 8 in another reading: share of {number(found['translated']['prefixes'].max())} validation prefixes on which no active "
        f"memory predicts the token that the layer's output predicts. {MAP} Bars are {OF_PREFIXES}"
    )
    shows = f"Translated, the share of prefixes on which no active memory predicts what the layer predicts {goes(found['translated'], 'share')}."
    return Caption(shows, text, f"Lines per layer. {_courses(found, 'share')}.")


def draw_residual(run: Run, paper: Any) -> Drawing:
    """Left, figure 9 in three readings; right, the median of figure 10 with quartiles."""
    figure, (left, right) = drawing.canvas(2)
    _draw(left, _readings(run, RESIDUAL), "share")
    _draw(right, _quartiles(_readings(run, PROBABILITY)), "median")
    drawing.share_axis(left, "prefixes", whole=True)
    right.set_ylim(0, 1.02)
    right.set_ylabel("probability of the final prediction")
    for panel in (left, right):
        drawing.layer_axis(panel, len(run.anatomy.layers))
    drawing.legend(figure, left)
    return figure


def _caption_residual(run: Run) -> Caption:
    found, probability = _readings(run, RESIDUAL), _readings(run, PROBABILITY)
    text = (
        "Figures 9 and 10 in another reading. Left: how often the residual predicts what the model will predict, in "
        f"{number(found['translated']['prefixes'].max())} validation prefixes. Right: the probability that the residual gives to it, as "
        f"the median, with bars from the first to the third quartile. {MAP} A residual is a state, so that the offset is added. Bars on "
        f"the left are {OF_PREFIXES}"
    )
    shows = f"The share of prefixes whose residual, translated, predicts what the model will predict {goes(found['translated'], 'share')}."
    described = f"Left: {_courses(found, 'share')}. Right, median: {_courses(probability, 'median')}."
    return Caption(shows, text, described)


def draw_fit(run: Run, paper: Any) -> Drawing:
    """Left, the variance that each reading explains; right, the divergence of its prediction from the model's."""
    figure, (left, right) = drawing.canvas(2)
    found = _fits(run)
    for style, (reading, table) in enumerate(found.items()):
        look = {"ls": drawing.LINES[style], "ms": 4, "color": drawing.colours(4)[style], "label": LABELS[reading]}
        left.plot(table["layer"], table["explained_variance"], drawing.MARKERS[style], **look)
    left.set_ylim(-1.05, 1.05)  # what is worse than that says no more
    left.set_ylabel("explained variance")
    _draw(right, found, "divergence")
    right.set_ylim(0, None)
    right.set_ylabel("divergence (nats)")
    for panel in (left, right):
        drawing.layer_axis(panel, len(run.anatomy.layers))
    drawing.legend(figure, left)
    return figure


def _caption_fit(run: Run) -> Caption:
    found = _fits(run)
    text = (
        "How well a layer's block output, translated, gives what the head reads, on validation prefixes. Left: share of the variance that "
        "is explained; below 0 the mean of all prefixes would do better, and what is below -1 is not drawn. Right: mean divergence of the "
        f"prediction from the model's, on {number(found['translated']['prefixes'].max())} prefixes. Bars are 95 % intervals. {MAP}"
    )
    shows = (
        f"The divergence of the translated prediction from the model's {goes(found['translated'], 'divergence', decimals)} nats; "
        f"as the head reads it, it {goes(found['head'], 'divergence', decimals)} nats."
    )
    described = f"Left: {_courses(found, 'explained_variance')}. Right: {_courses(found, 'divergence', decimals)}."
    return Caption(shows, text, described)


def _fits(run: Run) -> dict[str, pd.DataFrame]:
    return {reading: rows(run.table(FIT), reading=reading) for reading in LABELS}


def _courses(found: dict[str, pd.DataFrame], value: str, write: Any = percent) -> str:
    return "; ".join(f"{LABELS[reading]}: {course(table, value, write)}" for reading, table in found.items())


def answer(run: Run) -> str:
    """Says whether the lower half's values agree once they are translated: "yes", "no" or "cannot say" (docs/translation.md)."""
    gain = _difference(run, "translated - head")
    if gain["low"] > 0:
        return "yes"
    missing = _difference(run, "head", "upper")["mean"] - _difference(run, "head")["mean"]
    return "no" if gain["high"] < max(0.0, FLAT * missing) else "cannot say"


def _difference(run: Run, compared: str, half: str = "lower") -> pd.Series:
    return rows(run.table(DIFFERENCES), half=half, compared=compared).iloc[0]


def _answer(run: Run) -> str:
    translated, head, gain = (_difference(run, name) for name in ("translated", "head", "translated - head"))
    points = f"{100 * gain['mean']:+.2f} points, 95 % interval {100 * gain['low']:+.2f} to {100 * gain['high']:+.2f}"
    return (
        f"Do values of the lower half of the layers agree once they are translated? {answer(run).capitalize()}: above permuted keys, "
        f"{percent(translated['mean'])} agree, against {percent(head['mean'])} as the head reads them ({points})."
    )


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns whether lower layers' values agree once they are translated."""
    return [both(_answer, run, control if control is not None and DIFFERENCES in control.tables else None)]


def _tables(run: Run) -> list[TableBlock]:
    folded = [("Agreement above permuted keys, by half of the layers", data_table(run, DIFFERENCES))]
    return [
        TableBlock("translation-tables", "Differences of readings", "Defined in docs/translation.md.", None, folded)
    ]


def _curve(label: str, table: str, value: str, panel: int = 0, share: bool = True, **values: str) -> Curve:
    return Curve(label, by_layer(table, value, reading="translated", **values), panel=panel, share=share)


EXPLAINED_CURVE = Curve(
    "explained variance of the map",
    lambda run: points(_fits(run)["translated"], "layer", "explained_variance", ("", "")),
    share=False,
)
SECTION = Section(
    {
        "translated_agreement": Figure(
            (AGREEMENT,),
            draw_agreement,
            _caption_agreement,
            (_curve("agreement rate, translated", AGREEMENT, "rate", source="trigger"),),
        ),
        "translated_rank": Figure(
            (RANK,), draw_rank, _caption_rank, (_curve("median rank, translated", RANK, "median", share=False),)
        ),
        "translated_composition": Figure(
            (NO_AGREEMENT,),
            draw_composition,
            _caption_composition,
            (_curve("no active memory agrees, translated", NO_AGREEMENT, "share", counted="active"),),
        ),
        "translated_residual": Figure(
            (RESIDUAL, PROBABILITY),
            draw_residual,
            _caption_residual,
            (
                _curve("the residual predicts what the model predicts, translated", RESIDUAL, "share"),
                _curve("median probability, translated", PROBABILITY, "median", panel=1),
            ),
        ),
        "translation_fit": Figure(
            (FIT,),
            draw_fit,
            _caption_fit,
            (
                EXPLAINED_CURVE,
                _curve("divergence after the map, in nats", FIT, "divergence", panel=1, share=False),
            ),
        ),
    },
    summarize,
    after=_tables,
)
