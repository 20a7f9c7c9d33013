"""What the report shows and says of lengths."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.section import Caption, Figure, Section
from ffkv.run.results.run import Run


def draw(run: Run, paper: Any) -> Drawing:
    """A line by layer."""
    table = run.table("value_lengths")
    figure, (axes,) = drawing.canvas()
    axes.plot(table["layer"], table["length"], marker="o")
    axes.set_ylabel("length of values")
    drawing.layer_axis(axes, len(run.anatomy.layers))
    return figure


def caption(run: Run) -> Caption:
    """The words of the figure."""
    quantile = run.settings.lengths.quantile
    return Caption("", f"The quantile {quantile:g} of the lengths of each layer's values.", "A line by layer.")


def numbers(run: Run) -> dict[str, str]:
    """The main number."""
    return {"largest length of a layer's values": f"{run.table('value_lengths')['length'].max():.2f}"}


SECTION = Section({"value_lengths": Figure(("value_lengths",), draw, caption)}, numbers)
