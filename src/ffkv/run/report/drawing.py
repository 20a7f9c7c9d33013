"""What all figures share: the look, the axis of layers, and the kinds of drawing.

Layers count from 0. Only an axis that shows the paper's own layers counts from 1, as the paper does, and says so.
"""

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from ffkv.base.errors import UserError
from ffkv.run.report.wording import PAPER_LAYERS
from ffkv.run.results.text import MINUS

PAPER_COLOUR = "0.45"
PALE = "0.9"
OF_LAYERS = "layers"  # label of a panel whose horizontal axis has layers
OF_PAPER = "the paper"  # how labels of the paper's curves begin
MARKERS = "osDvP^X"
LINES = ["-", "--", "-.", ":", (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1))]
BAR_WIDTH = 0.85
HEIGHT = 3.7  # of a figure with one row of panels, inches
PANELS_ACROSS = 3
LEGEND_COLUMNS = 5
TICKS_ACROSS = 16  # labels of layers that stand side by side in a figure's width
PAPER_TICKS = {1: (1, 4, 7, 10, 13, 16), 2: (1, 6, 11, 16), 3: (1, 16)}  # by the number of panels side by side
APART = 24  # layers whose marks and ends of intervals stand apart
LINES_SHOWN = 4  # of a figure with a line per layer: layers from the first to the last
TITLE_CHARACTERS = 110  # of a small title as wide as a figure
HATCHES = ["", "////", "", "\\\\\\\\"]
# A panel of stacked shares: its title, its number of layers, and name to share [layer].
Panel = tuple[str, int, Mapping[str, Sequence[float] | np.ndarray]]


class OfReader:
    """Stands for a figure of the report that has a reader's own style, and the panels of the reader if there are any."""

    def __init__(self, axes: Sequence[Axes] = ()):
        self.axes, self.legends = [*axes], list[Any]()


_READER: ContextVar[OfReader | None] = ContextVar("READER", default=None)


@contextmanager
def look(reader: OfReader | None = None) -> Iterator[None]:
    """Inside the `with` statement, figures have the report's look, and the same figure gives the same SVG bytes; or the reader's."""
    settings = {
        **sns.plotting_context("notebook", font_scale=0.8),
        **sns.axes_style("ticks", {"axes.spines.right": False, "axes.spines.top": False, "axes.grid": True}),
        "axes.grid.axis": "y",
        "figure.dpi": 72,  # that of SVG, so that texts are measured as they are drawn
        "grid.color": "0.92",
        "font.sans-serif": ["DejaVu Sans"],
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "ffkv",
        "text.parse_math": False,  # a $ in a name is a $; so a logarithmic axis needs labels of its own
    }
    before = _READER.set(reader)
    try:
        with matplotlib.rc_context(settings if reader is None else {"text.parse_math": False}):
            yield
    finally:
        _READER.reset(before)


def colours(count: int) -> list[tuple[float, float, float]]:
    """`count` colours from dark to light, or those of the reader. Their luminance alone tells them apart, in print and for every eye."""
    if _READER.get() is not None:
        return [to_rgb(f"C{number}") for number in range(count)]
    return sns.color_palette("mako", count)


def canvas(
    across: int = 1, down: int = 1, height: float = HEIGHT, panels: int = 0, **options: Any
) -> tuple[Any, np.ndarray]:
    """Returns an empty figure of the report's width, and its panels [panel], row by row; or those of the reader. Options: of `subplots`.

    Raises UserError if the reader gives another number of panels than the figure has.
    """
    reader, count = _READER.get(), panels or across * down
    if reader is not None and reader.axes:
        if len(reader.axes) != count:
            needed = f"Give {count}, such as plt.subplots(1, {count})[1]."
            raise UserError(f"This figure needs {count} Axes, and ax has {len(reader.axes)}. {needed}")
        return reader, np.array(reader.axes, object)
    figure = Figure(figsize=(8.4, height) if reader is None else None, layout="constrained")
    return figure, figure.subplots(down, across, squeeze=False, **options).ravel()


def grid(panels: int, **options: Any) -> tuple[Any, np.ndarray]:
    """Returns an empty figure, and its panels [panel], `PANELS_ACROSS` side by side. Options: of `subplots`."""
    across = min(panels, PANELS_ACROSS)
    down = -(-panels // PANELS_ACROSS)
    figure, axes = canvas(across, down, HEIGHT + 2.7 * (down - 1), panels, **options)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def legend(figure: Figure | OfReader, axes: Axes, side: str = "") -> None:
    """Draws the legend of a panel above all panels, where it hides nothing. `side`: "left" or "right" half, or "" for all."""
    fit_legend(figure, *axes.get_legend_handles_labels(), side)


def fit_legend(figure: Figure | OfReader, handles: Sequence[Any], labels: Sequence[str], side: str = "") -> None:
    """Draws a legend, see `legend`, with as many columns as have room; a reader's own panels have it inside."""
    if isinstance(figure, OfReader):
        figure.legends.append(figure.axes[-1 if side == "right" else 0].legend(handles, labels))
        return
    place: Any = f"outside upper {side or 'left'}"
    room = 0.97 * figure.bbox.width / (2 if side else 1)
    for columns in range(min(len(labels), LEGEND_COLUMNS), 0, -1):
        drawn = figure.legend(handles, labels, loc=place, ncols=columns, columnspacing=1.4, handlelength=2.4)
        if drawn.get_window_extent().width <= room or columns == 1:
            return
        drawn.remove()


def layer_axis(axes: Axes, layers: int, first: int = 0, label: str = "layer") -> None:
    """Sets up the horizontal axis of layers. `first` is the number of the first layer."""
    axes.set_label(OF_LAYERS)
    axes.set_xlim(first - 0.6, first + layers - 0.4)
    axes.set_xticks(layer_ticks(first, first + layers - 1, max(1, TICKS_ACROSS // _panels_across(axes))))
    axes.set_xlabel(label)


def layer_ticks(first: int, last: int, most: int) -> list[int]:
    """Returns the layers that get a label: the first, the last, and multiples of 1, 2, 5, 10, ... that are not near these.

    There are at most `most` of them, or `most` + 1 where the first is no multiple.
    """
    steps = (digit * 10**zeros for zeros in itertools.count() for digit in (1, 2, 5))
    step = next(step for step in steps if (last - first) / step < most)
    between = (layer for layer in range(0, last, step) if min(layer - first, last - layer) >= 0.75 * step)
    return sorted({first, *between, last})


def _panels_across(axes: Axes) -> int:
    place = axes.get_subplotspec()
    return place.get_gridspec().ncols if place else 1


def small_title(axes: Axes, title: str) -> None:
    """Gives a panel a title over several lines. The `wrap` of matplotlib would take a $ for mathematics."""
    axes.set_title(textwrap.fill(title, TITLE_CHARACTERS // _panels_across(axes)), fontsize="small")


def small_panel(axes: Axes, title: str, layers: int) -> None:
    """Sets up a panel for a glance: shares over the layers, with two or three numbers at each axis."""
    axes.set_title(title, fontsize="small")
    share_axis(axes, "")
    layer_axis(axes, layers, label="")
    axes.set_xticks(sorted({0, layers - 1}))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2))
    axes.tick_params(labelsize="small")


def shown_layers(last: int) -> list[int]:
    """Layers that get a line of their own: the first, the last, and some between them."""
    return sorted({round(last * part / (LINES_SHOWN - 1)) for part in range(LINES_SHOWN)})


def as_percentage(share: float, _: float) -> str:
    """Writes a number of an axis of shares."""
    return f"{100 * share:.3g} %".replace("-", MINUS)


def share_axis(axes: Axes, label: str, whole: bool = False) -> None:
    """Sets up a vertical axis of shares, as percentages from 0; up to 100 % if `whole`."""
    axes.yaxis.set_major_formatter(as_percentage)
    axes.set_ylim(0, 1 if whole else None)
    axes.set_ylabel(label)


def count_axis(axes: Axes, label: str) -> None:
    """Sets up a horizontal axis of counts from 0, logarithmic from 1."""
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel(label)


def curve(
    axes: Axes, table: pd.DataFrame, value: str, label: str, style: int = 0, count: int = 1, bars_of: str = ""
) -> None:
    """Draws a line over the layers, with intervals from `low` to `high`.

    Args:
        table: one row per layer: layer, low, high, and the column `value`.
        style: number of the line, from 0, among the `count` lines of the panel. They are shifted a little against each
            other, so that their intervals do not overlap.
        bars_of: the column that the intervals are of, if it is not `value`.
    """
    apart = min(0.01 * len(table), 0.1)
    x = table["layer"] + apart * (style - (count - 1) / 2)
    colour = colours(count + 1)[style]
    size = 5 if len(table) <= APART else 3
    axes.plot(x, table[value], MARKERS[style], ls=LINES[style], ms=size, label=label, color=colour)
    intervals(axes, x, table, bars_of or value, colour, label)


def intervals(axes: Axes, x: Any, table: pd.DataFrame, value: str, colour: Any, label: str = "", **look: Any) -> None:
    """Draws intervals from the column `low` to the column `high` around the column `value`. `label`: of the line that has them."""
    bars = np.clip([table[value] - table["low"], table["high"] - table[value]], 0, None)
    look = {"elinewidth": 1, "capsize": 2 if len(table) <= APART else 0} | look
    label_parts(axes.errorbar(x, table[value], yerr=bars, fmt="none", ecolor=colour, **look), f"intervals of {label}")


def label_parts(container: Container, label: str) -> None:
    """Labels what intervals are made of. No legend shows it, because the label begins with _."""
    for part in container.get_children():
        part.set_label(f"_{label}")


def end_at_points(*panels: Axes) -> None:
    """Ends the vertical axis that panels share where their points do. Intervals get half of that range on either side.

    So a few wide intervals do not flatten the lines. Below each panel stands how many intervals are cut off.
    """
    lines = [line for axes in panels for line in axes.lines if not str(line.get_label()).startswith("_")]
    points = np.concatenate([[0.0], *(np.asarray(line.get_ydata(), float) for line in lines)])
    low, high = np.nanmin(points), np.nanmax(points)
    room = (high - low) / 2
    if not room:
        return
    ends = []  # of each panel [interval that is known, 2]
    for axes in panels:
        drawn = [found for found in axes.collections if isinstance(found, LineCollection)]
        bars = [bar[:, 1] for found in drawn for bar in found.get_segments() if len(bar)]
        ends.append(np.array(bars).reshape(-1, 2))
    within = np.clip(np.concatenate([[[low, high]], *ends]), low - room, high + room)
    for axes, own in zip(panels, ends, strict=True):
        axes.set_ylim(np.nanmin(within) - 0.1 * room, np.nanmax(within) + 0.1 * room)
        tell_cut(axes, int(((own < low - room) | (own > high + room)).any(1).sum()))


def tell_cut(axes: Axes, intervals: int) -> None:
    """Writes below a panel how many intervals its axis cuts off, if any."""
    if intervals:
        axes.set_xlabel(f"{axes.get_xlabel()} (intervals longer than shown: {intervals})")


def paper_curve(axes: Axes, values: Sequence[float], layers: int, label: str = OF_PAPER, style: int = 5) -> None:
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
        above.set_ticks(PAPER_TICKS[min(3, _panels_across(axes))])
        above.set_xlabel("the paper's layer, counted from 1", color=PAPER_COLOUR, fontsize="small")
        above.tick_params(colors=PAPER_COLOUR, labelsize="small")
        above.spines["top"].set_color("0.85")


def boxes(axes: Axes, table: pd.DataFrame) -> None:
    """Draws a box per layer that has a median [layer, whisker_low, q1, median, q3, whisker_high]."""
    table = table.dropna(subset=["median"])
    fields = {"whisker_low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "whisker_high": "whishi"}
    stats = table.rename(columns=fields)[list(fields.values())].to_dict("records")
    look: dict[str, Any] = {"widths": 0.6, "showfliers": False, "showcaps": len(table) <= APART, "patch_artist": True}
    look |= {"boxprops": {"facecolor": colours(6)[4], "edgecolor": "0.2"}}
    look |= {"medianprops": {"color": "black", "linewidth": 1.8}}
    drawn = axes.bxp(stats, positions=table["layer"], manage_ticks=False, **look)
    for part, artists in drawn.items():
        for each in artists:
            each.set_label(f"_{part}")


def shares_by(table: pd.DataFrame, column: str, names: Sequence[str], layers: int) -> dict[str, np.ndarray]:
    """Returns the share of each name in `column` per layer: name to [layer]; 0 where a layer does not have the name."""
    wide = table.pivot(index="layer", columns=column, values="share").reindex(range(layers), columns=names)
    wide = wide.astype(float).fillna(0)
    return {name: wide[name].to_numpy() for name in names}


def stacked_panels(panels: Sequence[Panel], paper: bool, marks: tuple[str, np.ndarray] | None = None) -> Figure:
    """Draws panels of stacked shares per layer, three side by side.

    Args:
        paper: whether the last panel shows the paper's layers.
        marks: a name and shares [layer], which the first panel has as marks.
    """
    figure, axes = grid(len(panels), sharey=True)
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
    if marks:
        look = {"color": "white", "edgecolors": "0.15", "marker": "D", "zorder": 3}
        size = 16 if panels[0][1] <= APART else 6
        axes[0].scatter(np.arange(panels[0][1]), marks[1], size, label=marks[0], **look)
    for axis in axes[::PANELS_ACROSS]:
        share_axis(axis, "prefixes", whole=True)
    legend(figure, axes[0])
    return figure
