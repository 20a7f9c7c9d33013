"""Figure 10: the probability that the residual gives to the model's prediction."""

from collections.abc import Sequence

from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.drawing import boxes, canvas, layer_axis, legend, paper_curve
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import BOX, course, paper_line
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

PROBABILITY = "figure_10_final_probability"


def draw(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Boxes per layer."""
    table = run.table(PROBABILITY)
    figure, (axes,) = canvas()
    boxes(axes, table)
    if paper:
        paper_curve(axes, paper, len(run.anatomy.layers), "the paper's median")
        legend(figure, axes)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("probability of the final prediction")
    layer_axis(axes, len(run.anatomy.layers))
    return figure


def caption(run: Run) -> Caption:
    """Names the number of prefixes and the place where the residual is read."""
    table = run.table(PROBABILITY)
    text = (
        "The probability that the residual stream gives to the token that the model will predict, before the layer's "
        f"feed-forward output is added. {number(table['prefixes'].max())} validation prefixes. The model's own head "
        f"turns the residual into probabilities. {BOX}"
    )
    text += paper_line(run, "The grey line is the paper's median.")
    return Caption(text, f"Boxes per layer. Median: {course(table, 'median')}.")


UNITS = by_prefix("refinement/by_prefix", "probability", median=True)
CURVE = Curve("median probability of the model's prediction", by_layer(PROBABILITY, "median"), units=UNITS)
FIGURE = Figure((PROBABILITY,), draw, caption, curves=(CURVE,))
