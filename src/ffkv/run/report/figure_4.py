"""Figure 4: how often the prediction of a value is the token that follows its key's first trigger example."""

from collections.abc import Sequence

from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer, by_memory
from ffkv.run.report.drawing import canvas, curve, finish_shares
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import course, paper_line, projection, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

AGREEMENT = "figure_4_agreement"
LABELS = {
    "trigger": "values and their keys",
    "negative": "bottom of values, negative triggers",
    "permuted": "keys permuted",
    "unigram": "next token of any prefix",
    "uniform": "any token",
}


def draw(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Draws lines per layer: the agreement, its three baselines, and that of negative coefficients if there are any."""
    agreement = run.table(AGREEMENT)
    figure, (axes,) = canvas()
    present = [source for source in LABELS if source in agreement["source"].unique()]
    for style, source in enumerate(present):
        curve(axes, rows(agreement, source=source), "rate", LABELS[source], style, len(present))
    finish_shares(
        figure, axes, "agreement rate", len(run.anatomy.layers), paper, columns=3 if "negative" in present else 5
    )
    return figure


def caption(run: Run) -> Caption:
    """Names the number of values, the projection and the baselines."""
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
    return Caption(text + paper_line(run, "The grey line is the paper's."), description)


CURVE = Curve("agreement rate", by_layer(AGREEMENT, "rate", source="trigger"), units=by_memory("agrees"))
FIGURE = Figure((AGREEMENT,), draw, caption, curves=(CURVE,))
