"""The values of a figure for whoever points at it, without a script.

A panel is cut into strips, one per layer or other place of its horizontal axis. The title of a strip has the values of all
lines, bars and points there, and browsers show it. Bands, intervals and the paper's curve have none. So a layer of five
lines has one title, and the page stays small.
"""

from collections import defaultdict
from collections.abc import Iterator
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from ffkv.run.report import drawing
from ffkv.run.results.text import number, percent, rounded

STRIPS = 40  # of a panel: each is two nodes of the page. Of more places, neighbours share a strip
VALUES = 6  # of one label at one place: candidates of a layer can be many


def strips(figure: Figure) -> str:
    """Returns the strips of a figure that was just saved as SVG: only then its panels have their places. They are transparent."""
    return "".join(_strips_of(axes, figure.bbox.height) for axes in figure.axes)


def _strips_of(axes: Axes, height: float) -> str:
    of_layers = axes.get_label() == drawing.OF_LAYERS
    write = percent if getattr(axes.yaxis.get_major_formatter(), "func", None) is drawing.as_percentage else rounded
    found: dict[float, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for x, label, y in _marks(axes):
        if np.isfinite(y):
            found[round(x) if of_layers else x][label].append(write(y))  # lines over layers are a little apart
    places, box = sorted(found), axes.bbox
    across = [axes.get_xaxis_transform().transform((place, 0))[0] for place in places]
    starts = [*range(0, len(places), max(1, -(-len(places) // STRIPS)))]
    middles = ((across[start - 1] + across[start]) / 2 for start in starts[1:])
    edges = np.clip([box.x0, *middles, box.x1], box.x0, box.x1)  # a logarithmic axis has 0 far outside
    what = axes.get_xlabel().partition(" (")[0].partition(",")[0] or "layer"
    drawn = []
    for start, end, left, right in zip(starts, [*starts[1:], None], edges, edges[1:]):
        told = "\n".join(f"{what} {number(place)}{_told(found[place])}" for place in places[start:end])
        sides = f"M{left:.1f} {height - box.y1:.1f}H{right:.1f}V{height - box.y0:.1f}H{left:.1f}z"
        drawn.append(f'<path d="{sides}"><title>{escape(told, quote=False)}</title></path>')
    return f'<g class="hover" fill="none" pointer-events="all">{"".join(drawn)}</g>' if drawn else ""


def _told(values: dict[str, list[str]]) -> str:
    """Returns a line per label, with its values."""
    return "".join(
        f"\n{label}: {', '.join(own[:VALUES])}{f' and {len(own) - VALUES} more' if len(own) > VALUES else ''}"
        for label, own in values.items()
    )


def _marks(axes: Axes) -> Iterator[tuple[float, str, float]]:
    """Yields the place, the label and the value of each mark that a legend names, and of the medians of boxes."""
    for line in axes.lines:
        label, (x, y) = str(line.get_label()), (np.asarray(each, float) for each in line.get_data())
        if label == "_medians":
            yield float(x.mean()), "median", float(y[0])
        elif line.get_transform() is axes.transData and not label.startswith(("_", drawing.OF_PAPER)):
            yield from zip(x.tolist(), [label] * len(x), y.tolist(), strict=True)
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            for bar in bars.patches:
                if bar.get_y() >= 0:  # else it is a band around 0
                    yield bar.get_x() + bar.get_width() / 2, str(bars.get_label()), bar.get_height()
    for cloud in axes.collections:
        if isinstance(cloud, PathCollection):
            for x, y in np.asarray(cloud.get_offsets(), float).tolist():
                yield x, str(cloud.get_label()), y
