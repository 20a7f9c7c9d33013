"""Figure 3: the change of a memory coefficient when a token of its trigger example is removed."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer
from ffkv.run.report.drawing import canvas, curve, layer_axis, legend, paper_curve
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.text import change
from ffkv.run.report.wording import INTERVALS, course, paper_line, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

REMOVAL = "figure_3_removal"
REMOVED = ("first", "random", "last")
TOP = 100  # % at which the axis ends: coefficients near 0 make relative changes of any size
FAR = 10  # % between mean and median over keys from which the caption names them


def draw(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Lines per layer: the first, a random and the last token removed."""
    removal = run.table(REMOVAL)
    figure, (axes,) = canvas()
    for style, removed in enumerate(REMOVED):
        curve(axes, rows(removal, removed=removed), "change", f"{removed} token", style, 3)
        if paper:
            paper_curve(axes, paper[removed], len(run.anatomy.layers), f"the paper: {removed}", style)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_ylim(top=min(axes.get_ylim()[1], TOP))
    axes.set_ylabel("change of the coefficient (%)")
    layer_axis(axes, len(run.anatomy.layers))
    legend(figure, axes, columns=3)
    return figure


def caption(run: Run) -> Caption:
    """Names the number of keys and of trigger examples."""
    table = run.table(REMOVAL)
    counts = " ".join(_count(rows(table, removed=removed), removed) for removed in REMOVED)
    text = (
        "Mean relative change of a key's memory coefficient when the first, the last or another random token of its "
        f"trigger example is removed. A key has up to {run.settings.keys.removal_triggers} trigger examples. {counts} "
        f"Those that are too short to lose such a token are left out. {INTERVALS}{_outliers(table)}"
    ) + paper_line(run, "Grey lines are the paper's.")
    courses = (course(rows(table, removed=removed), "change", change) for removed in REMOVED)
    told = "; ".join(f"{removed} token removed: {said}" for removed, said in zip(REMOVED, courses))
    return Caption(text, f"Lines per layer. {told}.")


def _count(table: pd.DataFrame, removed: str) -> str:
    """Counts the keys and trigger examples that lost a token of this kind, and how many could not."""
    keys, triggers, skipped = (number(table[column].sum()) for column in ("keys", "triggers", "skipped"))
    return f"{removed.capitalize()} token: {keys} keys with {triggers} trigger examples, {skipped} left out."


def _outliers(table: pd.DataFrame) -> str:
    """Says where few keys make the mean, and where the axis cuts something off, with a space in front; else ""."""
    apart = (table["change"] - table["median"]).abs()
    said = ""
    if apart.max() > FAR:
        far = table.loc[apart.idxmax()]
        said = (
            f" The largest difference between mean and median over keys: {far['removed']} token, layer {far['layer']}, mean"
            f" {change(far['change'])}, median {change(far['median'])}. Where a coefficient is near 0, its relative change is"
            " large, and a few such keys make the mean."
        )
    if table["high"].max() > TOP:
        said += " The vertical axis ends at 100 %: what is longer is cut off."
    return said


CURVES = [
    Curve(f"{removed} token removed (%)", by_layer(REMOVAL, "change", removed=removed), share=False)
    for removed in REMOVED
]
FIGURE = Figure((REMOVAL,), draw, caption, curves=(*CURVES,))
