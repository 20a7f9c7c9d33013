"""How many memories of a layer make a prediction: all others have their mean coefficients."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, points
from ffkv.run.report.drawing import LINES, MARKERS, canvas, colours, count_axis, legend, share_axis
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import course, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

KEPT = "kept_memories"
LINES_SHOWN = 4  # layers, spread from the first to the last


def draw(run: Run, paper: Any) -> Drawing:
    """Draws two panels, for the largest and for random memories: a line per layer over the number of kept memories."""
    table = run.table(KEPT)
    layers = shown_layers(int(table["layer"].max()))
    figure, panels = canvas(2, sharey=True)
    for panel, choice, title in zip(panels, ("largest", "random"), ("largest contributions kept", "random ones kept")):
        for style, layer in enumerate(layers):
            found = rows(table, choice=choice, layer=layer)
            line = {"ls": LINES[style], "ms": 5, "color": colours(len(layers) + 1)[style], "label": f"layer {layer}"}
            panel.plot(found["kept"], found["share"], MARKERS[style], **line)
            panel.fill_between(found["kept"], found["low"], found["high"], color=line["color"], alpha=0.12, linewidth=0)
        _finish(panel, title)
    share_axis(panels[0], "predictions that stay", whole=True)
    legend(figure, panels[0])
    return figure


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title)
    count_axis(axes, "memories kept")


def shown_layers(last: int) -> list[int]:
    """Layers that get a line: the first, the last, and some between them."""
    return sorted({round(last * part / (LINES_SHOWN - 1)) for part in range(LINES_SHOWN)})


def caption(run: Run) -> Caption:
    """Says what is kept, and what happens without any."""
    table = run.table(KEPT)
    none = rows(table, choice="largest", kept=int(table["kept"].min()))
    text = (
        "How often the model still predicts the same token if only some memories of one layer keep their coefficients, and "
        "those of all others become their means over the corpus. Everything else stays as it is, and the blocks after the "
        f"layer run again. {number(table['prefixes'].max())} validation prefixes; bands are 95 % intervals. Left: the memories "
        "with the largest contributions |m|·‖v‖ on the prefix are kept. Right: random ones of those that are not silent. With "
        f"{number(none['kept'].max())} memories, the share of predictions that stay: {course(none, 'share')}. Figure 7's "
        "effective number counts contributions; this figure shows what they cause. The data has every layer and the divergence KL(p‖p′)."
    )
    if run.settings.report.control:
        text += " The line of the control is the mean over its layers."
    return Caption(text, f"Lines over the number of kept memories. With the fewest: {course(none, 'share')}.")


def _curve(panel: int, choice: str) -> Curve:
    """Returns the mean over the layers."""

    def by_number(run: Run) -> pd.DataFrame:
        means = rows(run.table(KEPT), choice=choice).groupby("kept", as_index=False)["share"].mean()
        return points(means, "kept", "share")

    label = f"predictions that stay, {choice} kept, mean over the layers"
    return Curve(label, by_number, "memories kept", panel=panel)


FIGURE = Figure((KEPT,), draw, caption, curves=(_curve(0, "largest"), _curve(1, "random")))
