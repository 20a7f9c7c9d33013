"""What the report shows and says of lengths."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.section import Caption, Figure, Section
from ffkv.run.report.wording import goes, short_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import rounded


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
    shows = goes(run.table("value_lengths"), "length", rounded)  # without `rounded` it writes percentages
    how = f"The quantile {quantile:g} of the lengths of each layer's values."
    return Caption(f"The length {shows}.", how, "A line by layer.")


def numbers(run: Run) -> dict[str, str]:
    """The main number."""
    return {"largest length of a layer's values": f"{run.table('value_lengths')['length'].max():.2f}"}


def summary(run: Run, control: Run | None) -> list[str]:
    """Sentences below the main numbers. The control is the untrained model, or the run that `report.control` names."""
    if control is None:
        return []
    own, its = (each.table("value_lengths")["length"].mean() for each in (run, control))
    return [f"Its mean over the layers is {rounded(own)} ({short_name(control)}: {rounded(its)})."]


# `before=` and `after=` make tables above and below the figures.
SECTION = Section({"value_lengths": Figure(("value_lengths",), draw, caption)}, numbers, summary=summary)
