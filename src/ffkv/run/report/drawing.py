"""What all figures share: the look, the axis of layers, the kinds of drawing, the SVG text.

Layers count from 0. Only an axis that shows the paper's own layers counts from 1, as the paper does, and says so.
"""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

PAPER_LAYERS = 16
PAPER_COLOUR = "0.45"
PALE = "0.9"
MARKERS = "osDvP^"
LINES = ["-", "--", "-.", ":", (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1))]
BAR_WIDTH = 0.85
PANELS_ACROSS = 3
LINES_SHOWN = 4  # of a figure with a line per layer: layers from the first to the last
TITLE_CHARACTERS = 110  # of a small title as wide as a figure
HATCHES = ["", "////", "", "\\\\\\\\"]
# A panel of stacked shares: its title, its number of layers, and name to share [layer].
Panel = tuple[str, int, Mapping[str, Sequence[float] | np.ndarray]]
NO_METADATA = dict.fromkeys(["Creator", "Date", "Format", "Type"])


@contextmanager
def look() -> Iterator[None]:
    """Inside the `with` statement, figures have the report's look, and the same figure gives the same SVG bytes."""
    settings = {
        **sns.plotting_context("notebook", font_scale=0.8),
        **sns.axes_style("ticks", {"axes.spines.right": False, "axes.spines.top": False, "axes.grid": True}),
        "axes.grid.axis": "y",
        "grid.color": "0.92",
        "font.sans-serif": ["DejaVu Sans"],
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "ffkv",
        "text.parse_math": False,  # a $ in a name is a $; so a logarithmic axis needs labels of its own
    }
    with matplotlib.rc_context(settings):
        yield


def colours(count: int) -> list[tuple[float, float, float]]:
    """`count` colours from dark to light. Their luminance alone tells them apart, in print and for every eye."""
    return sns.color_palette("mako", count)


def canvas(panels: int = 1, **options: Any) -> tuple[Figure, np.ndarray]:
    """Returns an empty figure of the report's width, and its panels [panel], side by side. Options: of `subplots`."""
    figure = Figure(figsize=(8.4, 3.7), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False, **options)[0]


def legend(figure: Figure, *panels: Axes, columns: int = 5) -> None:
    """Draws one legend for several panels, above them all, where it hides nothing."""
    handles = [handle for axes in panels for handle in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, columnspacing=1.4, handlelength=2.4)


def layer_axis(axes: Axes, layers: int, first: int = 0, label: str = "layer") -> None:
    """Sets up the horizontal axis of layers. `first` is the number of the first layer."""
    axes.set_xlim(first - 0.6, first + layers - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=16 // _panels_across(axes), integer=True, min_n_ticks=1))
    axes.set_xlabel(label)


def _panels_across(axes: Axes) -> int:
    place = axes.get_subplotspec()
    return place.get_gridspec().ncols if place else 1


def small_title(axes: Axes, title: str) -> None:
    """Gives a panel a title over several lines. The `wrap` of matplotlib would take a $ for mathematics."""
    axes.set_title(textwrap.fill(title, TITLE_CHARACTERS // _panels_across(axes)), fontsize="small")


def shown_layers(last: int) -> list[int]:
    """Layers that get a line of their own: the first, the last, and some between them."""
    return sorted({round(last * part / (LINES_SHOWN - 1)) for part in range(LINES_SHOWN)})


def share_axis(axes: Axes, label: str, whole: bool = False) -> None:
    """Sets up a vertical axis of shares, as percentages from 0; up to 100 % if `whole`."""
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    axes.set_ylim(0, 1 if whole else None)
    axes.set_ylabel(label)


def count_axis(axes: Axes, label: str) -> None:
    """Sets up a horizontal axis of counts from 0, logarithmic from 1."""
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel(label)


def curve(axes: Axes, table: pd.DataFrame, value: str, label: str, style: int = 0, count: int = 1) -> None:
    """Draws a line over the layers, with intervals from `low` to `high`.

    Args:
        table: one row per layer: layer, low, high, and the column `value`.
        style: number of the line, from 0, among the `count` lines of the panel. They are shifted a little against each
            other, so that their intervals do not overlap.
    """
    apart = min(0.01 * len(table), 0.1)
    x = table["layer"] + apart * (style - (count - 1) / 2)
    colour = colours(count + 1)[style]
    size = 5 if len(table) <= 24 else 3
    axes.plot(x, table[value], MARKERS[style], ls=LINES[style], ms=size, label=label, color=colour)
    intervals(axes, x, table, value, colour)


def intervals(axes: Axes, x: Any, table: pd.DataFrame, value: str, colour: Any, **look: Any) -> None:
    """Draws intervals from the column `low` to the column `high` around the column `value`."""
    bars = np.clip([table[value] - table["low"], table["high"] - table[value]], 0, None)
    look = {"elinewidth": 1, "capsize": 2} | look
    axes.errorbar(x, table[value], yerr=bars, fmt="none", ecolor=colour, **look)


def paper_curve(axes: Axes, values: Sequence[float], layers: int, label: str = "the paper", style: int = 5) -> None:
    """Draws the paper's line: its first layer on the model's first layer, its last layer on the model's last.

    Where the model has another number of layers than the paper's, an axis above the panel shows the paper's own layers,
    counted from 1. A model of one layer has no depth to compare, and gets no line.
    """
    if layers == 1:
        return
    ratio = (layers - 1) / (PAPER_LAYERS - 1)
    look: dict[str, Any] = {"marker": MARKERS[style], "markerfacecolor": "white", "markersize": 4, "linewidth": 0.9}
    look |= {"color": PAPER_COLOUR, "linestyle": LINES[style], "zorder": 1}
    axes.plot(ratio * np.arange(PAPER_LAYERS), values, label=label, **look)
    if layers != PAPER_LAYERS and not axes.child_axes:
        to_paper, from_paper = (lambda layer: 1 + layer / ratio), (lambda layer: (layer - 1) * ratio)
        above = axes.secondary_xaxis("top", functions=(to_paper, from_paper))
        above.set_ticks([1, 4, 7, 10, 13, 16])
        above.set_xlabel("the paper's layers 1 to 16, at the same relative depth", color=PAPER_COLOUR, fontsize="small")
        above.tick_params(colors=PAPER_COLOUR, labelsize="small")
        above.spines["top"].set_color("0.85")


def finish_shares(
    figure: Figure,
    axes: Axes,
    label: str,
    layers: int,
    paper: Sequence[float] | None,
    whole: bool = False,
    columns: int = 5,
) -> None:
    """Finishes a panel of shares per layer: the paper's line if there is one, both axes, the legend."""
    if paper:
        paper_curve(axes, paper, layers)
    share_axis(axes, label, whole)
    layer_axis(axes, layers)
    legend(figure, axes, columns=columns)


def boxes(axes: Axes, table: pd.DataFrame) -> None:
    """Draws a box per layer that has a median [layer, whisker_low, q1, median, q3, whisker_high]."""
    table = table.dropna(subset=["median"])
    fields = {"whisker_low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "whisker_high": "whishi"}
    stats = table.rename(columns=fields)[list(fields.values())].to_dict("records")
    axes.bxp(
        stats,
        positions=table["layer"],
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colours(6)[4], "edgecolor": "0.2"},
        medianprops={"color": "black", "linewidth": 1.8},
    )


def shares_by(table: pd.DataFrame, column: str, names: Sequence[str], layers: int) -> dict[str, np.ndarray]:
    """Returns the share of each name in `column` per layer: name to [layer]; 0 where a layer does not have the name."""
    wide = table.pivot(index="layer", columns=column, values="share").reindex(range(layers), columns=names)
    wide = wide.astype(float).fillna(0)
    return {name: wide[name].to_numpy() for name in names}


def stacked_panels(panels: Sequence[Panel], paper: bool) -> Figure:
    """Draws panels of stacked shares per layer, three side by side. `paper`: the last one shows the paper's layers."""
    across = min(len(panels), PANELS_ACROSS)
    down = -(-len(panels) // PANELS_ACROSS)
    figure = Figure(figsize=(8.4, 3.7 + 2.7 * (down - 1)), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for unused in axes[len(panels) :]:
        unused.remove()
    for place, (axis, (title, layers, shares)) in enumerate(zip(axes, panels)):
        of_paper = paper and place == len(panels) - 1
        first = int(of_paper)
        below = np.zeros(layers)
        palette = [*zip(colours(len(shares) - 1), HATCHES), (PALE, "")]  # the last one is pale
        for (name, heights), (colour, hatch) in zip(shares.items(), palette, strict=True):
            look = {"label": name, "color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
            axis.bar(np.arange(first, first + layers), heights, BAR_WIDTH, below, **look)
            below += np.asarray(heights)
        axis.grid(False)
        layer_axis(axis, layers, first, "the paper's layer, counted from 1" if of_paper else "layer")
        axis.set_title(title)
    for axis in axes[: len(panels) : across]:
        share_axis(axis, "prefixes", whole=True)
    legend(figure, axes[0])
    return figure


def svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Returns the figure as an `svg` element, with a title and a description for readers who do not see it.

    `name` becomes the prefix of every id in the element, so that one page can hold several figures.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    element = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    element = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", element)
    label = f'role="img" aria-labelledby="{name}-title {name}-description"'
    title = f'<title id="{name}-title">{escape(title)}</title>'
    description = f'<desc id="{name}-description">{escape(description)}</desc>'
    head, body = element.split(">", 1)
    return f"{head.replace('<svg', f'<svg {label}', 1)}>\n{title}{description}{body}"
