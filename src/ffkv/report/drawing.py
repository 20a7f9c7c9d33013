"""What all figures share: the look, the axis of layers, the kinds of drawing, the SVG text."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

PAPER_LAYERS = 16
PAPER_COLOUR = "0.45"
PALE = "0.9"
MARKERS = "osDvP^"
LINES = ["-", "--", "-.", ":", (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1))]
HATCHES = ["", "////", "", "\\\\\\\\"]
NO_METADATA = dict.fromkeys(["Creator", "Date", "Format", "Type"])


@contextmanager
def look() -> Iterator[None]:
    """Inside, figures are drawn in the report's look, and the same figure always gives the same SVG bytes."""
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
    }
    with matplotlib.rc_context(settings):
        yield


def colours(count: int) -> list[tuple[float, float, float]]:
    """So many colours from dark to light: told apart by luminance alone, in print and by every eye."""
    return sns.color_palette("mako", count)


def canvas(panels: int = 1, **options) -> tuple[Figure, np.ndarray]:
    """An empty figure of the report's width, and its panels side by side [panel]. Options go to `subplots`."""
    figure = Figure(figsize=(8.4, 3.7), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False, **options)[0]


def legend(figure: Figure, *panels: Axes, columns: int = 5) -> None:
    """What the signs of some panels mean, above them all, where it hides nothing."""
    handles = [handle for axes in panels for handle in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, columnspacing=1.4, handlelength=2.4)


def layer_axis(axes: Axes, layers: int) -> None:
    """The horizontal axis of layers, counted from 1."""
    axes.set_xlim(0.4, layers + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=16, integer=True, min_n_ticks=1))
    axes.set_xlabel("layer, counted from 1")


def share_axis(axes: Axes, label: str, whole: bool = False) -> None:
    """A vertical axis of shares, as percentages from 0; up to 100 % where `whole`."""
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    axes.set_ylim(0, 1 if whole else None)
    axes.set_ylabel(label)


def curve(axes: Axes, table: pd.DataFrame, value: str, label: str, style: int = 0, count: int = 1) -> None:
    """A line by layer with intervals `low` to `high`: number `style` of `count` lines, which stand a little apart."""
    apart = min(0.01 * len(table), 0.1)
    x = table["layer"] + 1 + apart * (style - (count - 1) / 2)
    colour = colours(count + 1)[style]
    bars = np.clip([table[value] - table["low"], table["high"] - table[value]], 0, None)
    marks = {"marker": MARKERS[style], "markersize": 5 if len(table) <= 24 else 3, "linestyle": LINES[style]}
    axes.plot(x, table[value], label=label, color=colour, **marks)
    axes.errorbar(x, table[value], yerr=bars, fmt="none", ecolor=colour, elinewidth=1, capsize=2)


def paper_curve(axes: Axes, values: Sequence[float], layers: int, label: str = "the paper", style: int = 5) -> None:
    """The paper's line: its first layer on our first, its last on our last, an axis above where the depths differ.

    A model of one layer has no depth to compare, and gets no line.
    """
    if layers == 1:
        return
    ratio = (layers - 1) / (PAPER_LAYERS - 1)
    axes.plot(
        1 + ratio * np.arange(PAPER_LAYERS),
        values,
        label=label,
        color=PAPER_COLOUR,
        marker=MARKERS[style],
        markerfacecolor="white",
        markersize=4,
        linestyle=LINES[style],
        linewidth=0.9,
        zorder=1,
    )
    if layers != PAPER_LAYERS and not axes.child_axes:
        above = axes.secondary_xaxis("top", functions=(lambda x: 1 + (x - 1) / ratio, lambda x: 1 + (x - 1) * ratio))
        above.set_ticks([1, 4, 7, 10, 13, 16])
        above.set_xlabel("the paper's layer, of 16, at the same relative depth", color=PAPER_COLOUR, fontsize="small")
        above.tick_params(colors=PAPER_COLOUR, labelsize="small")
        above.spines["top"].set_color("0.85")


def boxes(axes: Axes, table: pd.DataFrame) -> None:
    """A box by layer from its summary: quartiles, median, whiskers. Layers without a box are left out."""
    table = table.dropna(subset=["median"])
    fields = {"whisker_low": "whislo", "q1": "q1", "median": "med", "q3": "q3", "whisker_high": "whishi"}
    stats = table.rename(columns=fields)[list(fields.values())].to_dict("records")
    axes.bxp(
        stats,
        positions=table["layer"] + 1,
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colours(6)[4], "edgecolor": "0.2"},
        medianprops={"color": "black", "linewidth": 1.8},
    )


def stack(axes: Axes, x: Sequence[float], shares: Mapping[str, Sequence[float]], width: float = 0.85) -> None:
    """Bars of shares on top of one another, in the order of `shares`: name to share by bar. The last one is pale."""
    below = np.zeros(len(x))
    palette = [*zip(colours(len(shares) - 1), HATCHES), (PALE, "")]
    for (name, heights), (colour, hatch) in zip(shares.items(), palette, strict=True):
        axes.bar(x, heights, width, below, label=name, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
        below += np.asarray(heights)
    axes.grid(False)


def svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an `svg` element with a title and a description for those who do not see it.

    Args:
        figure: drawn inside `look`.
        name: stands before every id, so that several figures can stand in one page.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    element = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    element = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", element)
    label = f'role="img" aria-labelledby="{name}-title {name}-description"'
    texts = (
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-description">{escape(description)}</desc>'
    )
    head, body = element.split(">", 1)
    return f"{head.replace('<svg', f'<svg {label}', 1)}>\n{texts}{body}"
