"""Figure 9: the share of prefixes in which the residual already predicts the model's prediction."""

from collections.abc import Sequence

from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.drawing import canvas, curve, finish_shares
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import OF_PREFIXES, course, paper_line, ties
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

RESIDUAL = "figure_9_residual_agreement"
PREDICTS = "the residual predicts what the model predicts"


def draw(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Draws one line per layer."""
    table = run.table(RESIDUAL)
    figure, (axes,) = canvas()
    curve(axes, table, "share", PREDICTS)
    finish_shares(figure, axes, "prefixes", len(run.anatomy.layers), paper, whole=True)
    return figure


def caption(run: Run) -> Caption:
    """Names the number of prefixes and the place where the residual is read."""
    table = run.table(RESIDUAL)
    text = (
        "How often the residual stream already predicts the token that the model will predict, before the layer's "
        f"feed-forward output is added. {number(table['prefixes'].max())} validation prefixes. The model's own head "
        f"turns the residual into a prediction. {ties(table, 'prefixes', 'layers and prefixes')} Bars are {OF_PREFIXES}"
    )
    return Caption(
        text + paper_line(run, "The grey line is the paper's."), f"A line per layer: {course(table, 'share')}."
    )


UNITS = by_prefix("refinement/by_prefix", lambda table: table["top_residual"] == table["final"])
FIGURE = Figure((RESIDUAL,), draw, caption, curves=(Curve(PREDICTS, by_layer(RESIDUAL, "share"), units=UNITS),))
