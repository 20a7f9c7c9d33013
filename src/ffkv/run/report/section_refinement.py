"""What the page shows and says about refinement: figures 9 to 11 and changes of prediction."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.page_tables import data_table, prediction_changes
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import BOX, OF_PREFIXES, both, course, goes, paper_line, rows, ties
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

RESIDUAL, PROBABILITY = "figure_9_residual_agreement", "figure_10_final_probability"
BREAKDOWN = "figure_11_breakdown"
CASES = ["residual", "agreement", "composition", "ffn", "other"]
BY_PREFIX = "refinement/by_prefix"
PREDICTS = "the residual predicts what the model predicts"


def draw_residual(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Draws one line per layer."""
    table = run.table(RESIDUAL)
    figure, (axes,) = drawing.canvas()
    drawing.curve(axes, table, "share", PREDICTS)
    drawing.finish_shares(figure, axes, "prefixes", len(run.anatomy.layers), paper, whole=True)
    return figure


def _caption_residual(run: Run) -> Caption:
    table = run.table(RESIDUAL)
    text = (
        "How often the residual stream already predicts the token that the model will predict, before the layer's "
        f"feed-forward output is added. {number(table['prefixes'].max())} validation prefixes. The model's own head "
        f"turns the residual into a prediction. {ties(table, 'prefixes', 'layers and prefixes')} Bars are {OF_PREFIXES}"
    )
    shows = f"The share of prefixes whose residual predicts what the model will predict {goes(table, 'share')}."
    text += paper_line(run, "The grey line is the paper's.")
    return Caption(shows, text, f"A line per layer: {course(table, 'share')}.")


def draw_probability(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Boxes per layer."""
    table = run.table(PROBABILITY)
    figure, (axes,) = drawing.canvas()
    drawing.boxes(axes, table)
    if paper:
        drawing.paper_curve(axes, paper, len(run.anatomy.layers), "the paper's median")
        drawing.legend(figure, axes)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("probability of the final prediction")
    drawing.layer_axis(axes, len(run.anatomy.layers))
    return figure


def _caption_probability(run: Run) -> Caption:
    table = run.table(PROBABILITY)
    text = (
        "The probability that the residual stream gives to the token that the model will predict, before the layer's "
        f"feed-forward output is added. {number(table['prefixes'].max())} validation prefixes. The model's own head "
        f"turns the residual into probabilities. {BOX}"
    )
    text += paper_line(run, "The grey line is the paper's median.")
    shows = f"The median probability of the model's prediction {goes(table, 'median')}."
    return Caption(shows, text, f"Boxes per layer. Median: {course(table, 'median')}.")


def draw_breakdown(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Stacked bars per layer, and the paper's beside them."""
    table, layers = run.table(BREAKDOWN), len(run.anatomy.layers)
    panels: list[drawing.Panel] = [("this model", layers, drawing.shares_by(table, "case", CASES, layers))]
    if paper:
        panels.append(("the paper", drawing.PAPER_LAYERS, {**paper, "other": [0] * drawing.PAPER_LAYERS}))
    return drawing.stacked_panels(panels, paper=bool(paper))


def _caption_breakdown(run: Run) -> Caption:
    table = run.table(BREAKDOWN)
    prefixes = table.groupby("layer")["prefixes"].sum().max()
    text = (
        f"The prediction of a block's output in {number(prefixes)} validation prefixes, compared with the predictions of "
        "the residual r and of the feed-forward output y, whose sum it is. Residual: the output predicts the same token "
        "as r, but not as y. Agreement: all three predict the same token. Ffn: the output predicts the same token as y, "
        "but not as r. Composition: r and y predict different tokens, and the output predicts a third one. Other: r and y "
        "predict the same token, and the output predicts another one. A norm, or a head in classes, makes this possible."
    )
    if run.settings.report.paper_curves:
        text += " The right panel is the paper's model; the paper does not count the case “other”."
    courses = "; ".join(f"{case}: {course(rows(table, case=case), 'share')}" for case in CASES)
    residual, third = (goes(rows(table, case=case), "share") for case in ("residual", "composition"))
    shows = (
        f"The output has the residual's prediction in a share that {residual}, and a third one in a share that {third}."
    )
    return Caption(shows, text, f"Stacked bars per layer. {courses}.")


def _curve(case: str) -> Curve:
    units = by_prefix(BY_PREFIX, lambda table: table["case"] == case)
    return Curve(case, by_layer(BREAKDOWN, "share", case=case), stacked=True, units=units)


CHANGES = (
    "A random sample of the validation prefixes in which the last feed-forward layer changes the residual's prediction. "
    "The cosine compares the output embeddings of both tokens. “Closer than” is the share of random pairs of tokens that "
    "have a lower cosine. In the paper, 66 of 100 such changes were judged to be changes to an unrelated word."
)


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns when the residual holds the prediction, and what the last layer changes."""

    def last(*cases: str) -> str:
        def share(each: Run) -> str:
            table = rows(each.table(BREAKDOWN), layer=len(each.anatomy.layers) - 1)
            return percent(table.loc[table["case"].isin(cases), "share"].sum())

        return both(share, run, control)

    return [
        "Share of prefixes in which the residual already predicts the model's prediction: "
        f"{both(lambda each: course(each.table(RESIDUAL), 'share'), run, control)}. The last feed-forward layer changes the "
        f"prediction in {last('ffn', 'composition', 'other')} of prefixes: to its own prediction in {last('ffn')}, to a "
        f"third token in {last('composition', 'other')}."
    ]


def _changes(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "prediction_changes"))]
    if "related_changes" in run.tables and len(run.table("related_changes")):
        folded.append(("Related changes, by annotator", data_table(run, "related_changes")))
    return [TableBlock("changes", "Changes in the last layer", CHANGES, prediction_changes(run), folded)]


RESIDUAL_UNITS = by_prefix(BY_PREFIX, lambda table: table["top_residual"] == table["final"])
RESIDUAL_CURVE = Curve(PREDICTS, by_layer(RESIDUAL, "share"), units=RESIDUAL_UNITS)
PROBABILITY_CURVE = Curve(
    "median probability of the model's prediction",
    by_layer(PROBABILITY, "median"),
    units=by_prefix(BY_PREFIX, "probability", median=True),
)
SECTION = Section(
    {
        "figure_9": Figure((RESIDUAL,), draw_residual, _caption_residual, (RESIDUAL_CURVE,)),
        "figure_10": Figure((PROBABILITY,), draw_probability, _caption_probability, (PROBABILITY_CURVE,)),
        "figure_11": Figure((BREAKDOWN,), draw_breakdown, _caption_breakdown, (*map(_curve, CASES[:-1]),)),
    },
    summarize,
    after=_changes,
)
