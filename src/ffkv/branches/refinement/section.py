"""What the page shows and says about refinement: figures 9 to 11 and changes of prediction."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Line, Panel, by_layer, by_prefix
from ffkv.run.report.page_tables import data_table, prediction_changes
from ffkv.run.report.section import Figure, Section, TableBlock, caption, figure_of_lines, numbers
from ffkv.run.report.wording import PAPER_LAYERS, note, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import percent

RESIDUAL, PROBABILITY = "figure_9_residual_agreement", "figure_10_final_probability"
BREAKDOWN = "figure_11_breakdown"
CASES = ["residual", "agreement", "composition", "ffn", "other"]
BY_PREFIX = "refinement/by_prefix"
PREDICTS = "the residual predicts what the model predicts"


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


def draw_breakdown(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Stacked bars per layer, and the paper's beside them."""
    table, layers = run.table(BREAKDOWN), len(run.anatomy.layers)
    panels: list[drawing.Panel] = [("this model", layers, drawing.shares_by(table, "case", CASES, layers))]
    if paper:
        panels.append(("the paper", PAPER_LAYERS, {**paper, "other": [0] * PAPER_LAYERS}))
    return drawing.stacked_panels(panels, paper=bool(paper))


def _curve(case: str) -> Curve:
    units = by_prefix(BY_PREFIX, lambda table: table["case"] == case)
    return Curve(case, by_layer(BREAKDOWN, "share", case=case), stacked=True, units=units)


def _last(run: Run, *cases: str) -> str:
    table = rows(run.table(BREAKDOWN), layer=len(run.anatomy.layers) - 1)
    return percent(table.loc[table["case"].isin(cases), "share"].sum())


def _changes(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "prediction_changes"))]
    if "related_changes" in run.tables and len(run.table("related_changes")):
        folded.append(("Related changes, by annotator", data_table(run, "related_changes")))
    return [
        TableBlock(
            "changes", "Changes in the last layer", note(__package__, "changes"), prediction_changes(run), folded
        )
    ]


RESIDUAL_UNITS = by_prefix(BY_PREFIX, lambda table: table["top_residual"] == table["final"])
RESIDUAL_LINE = Line(PREDICTS, RESIDUAL, "share", curve=PREDICTS, units=RESIDUAL_UNITS)
PROBABILITY_CURVE = Curve(
    "median probability of the model's prediction",
    by_layer(PROBABILITY, "median"),
    units=by_prefix(BY_PREFIX, "probability", median=True),
)
SECTION = Section(
    {
        "figure_9": figure_of_lines(
            [Panel([RESIDUAL_LINE], "prefixes", percentages=True, limits=(0, 1))], caption(__package__, "figure_9")
        ),
        "figure_10": Figure((PROBABILITY,), draw_probability, caption(__package__, "figure_10"), (PROBABILITY_CURVE,)),
        "figure_11": Figure(
            (BREAKDOWN,), draw_breakdown, caption(__package__, "figure_11"), (*map(_curve, CASES[:-1]),)
        ),
    },
    numbers(__package__, last=_last),
    after=_changes,
)
