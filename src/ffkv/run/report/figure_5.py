"""Figure 5: the rank of the token that follows a key's first trigger example in the prediction of its value."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer, by_memory
from ffkv.run.report.drawing import boxes, canvas, layer_axis, legend
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import BOX, course, ties
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

RANK = "figure_5_rank"


def draw(run: Run, paper: Any) -> Drawing:
    """Boxes per layer. The paper's ranks are not drawn: its vocabulary is another one."""
    rank, vocabulary = run.table(RANK), run.anatomy.vocabulary
    figure, (axes,) = canvas()
    boxes(axes, rank)
    axes.axhline(vocabulary / 2, color="0.3", linestyle="--", label=f"half of the vocabulary ({vocabulary // 2:,})")
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("rank of the next token (0 is best)")
    layer_axis(axes, len(run.anatomy.layers))
    legend(figure, axes)
    return figure


def caption(run: Run) -> Caption:
    """Names the number of keys and defines the rank."""
    table = run.table(RANK)
    text = (
        "Rank, in the prediction of a value, of the token that follows its key's strongest trigger example: the number "
        f"of tokens with a higher logit, so that 0 is best. {number(table['keys'].sum())} keys have a trigger example. "
        f"The vocabulary has {number(run.anatomy.vocabulary)} tokens. {ties(table, 'keys', 'values')} {BOX} The paper's ranks are not drawn, because "
        "its vocabulary is another one (267,744 tokens, in classes). Their median fell from 9,611 in its first layer to "
        "5,139 in its last layer."
    )
    return Caption(text, f"Boxes per layer. Median rank: {course(table, 'median', number)}.")


UNITS = by_memory("rank", median=True)
CURVE = Curve("median rank of the next token", by_layer(RANK, "median"), share=False, units=UNITS)
FIGURE = Figure((RANK,), draw, caption, curves=(CURVE,))
