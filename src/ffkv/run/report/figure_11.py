"""Figure 11: where the prediction of a block's output comes from."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer, by_prefix
from ffkv.run.report.drawing import PAPER_LAYERS, Panel, shares_by, stacked_panels
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import course, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

CASES = ["residual", "agreement", "composition", "ffn", "other"]
BREAKDOWN = "figure_11_breakdown"


def draw(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Stacked bars per layer, and the paper's beside them."""
    table, layers = run.table(BREAKDOWN), len(run.anatomy.layers)
    panels: list[Panel] = [("this model", layers, shares_by(table, "case", CASES, layers))]
    if paper:
        panels.append(("the paper", PAPER_LAYERS, {**paper, "other": [0] * PAPER_LAYERS}))
    return stacked_panels(panels, paper=bool(paper))


def caption(run: Run) -> Caption:
    """Defines the five cases."""
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
    return Caption(text, f"Stacked bars per layer. {courses}.")


def _curve(case: str) -> Curve:
    units = by_prefix("refinement/by_prefix", lambda table: table["case"] == case)
    return Curve(case, by_layer(BREAKDOWN, "share", case=case), stacked=True, units=units)


FIGURE = Figure((BREAKDOWN,), draw, caption, curves=(*map(_curve, CASES[:-1]),))
