"""The SVG of a figure, for readers who see it and for those who do not, in the colours of the page, light or dark."""

import colorsys
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from ffkv.run.report import drawing
from ffkv.run.results.text import number, percent, rounded

# Colours that a page has a name for: ink, secondary ink, lines, and what lies behind a figure.
OF_PAGE = {"#262626": "text", "#000000": "text", "#737373": "soft", "#ebebeb": "line", "#ffffff": "sheet"}
DARK = (0.16, 0.9)  # luma, in a dark page, of what is white and of what is black in a light one
# Paths side by side that differ in their places alone, such as the intervals of a line.
ALIKE = re.compile(r'<path d="[^"]*"(?P<look> [^>]*)/>(?:\s*<path d="[^"]*"(?P=look)/>)+')
STRIPS = 40  # of a panel: each is two nodes of the page. Of more places, neighbours share a strip
VALUES = 6  # of one label at one place: candidates of a layer can be many
NO_METADATA = dict.fromkeys(["Creator", "Date", "Format", "Type"])


def write_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Returns the figure as an `svg` element, with a title and a description for readers who do not see it, and values (`strips`).

    `name` becomes the prefix of every id in the element, so that one page can hold several figures.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    element = _smaller(buffer.getvalue()[buffer.getvalue().index("<svg") :])
    element = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", element)
    label = f'role="img" aria-labelledby="{name}-title {name}-description"'
    title = f'<title id="{name}-title">{escape(title)}</title>'
    description = f'<desc id="{name}-description">{escape(description)}</desc>'
    head, body = element.split(">", 1)
    body = body.removesuffix("\n").removesuffix("</svg>")
    return f"{head.replace('<svg', f'<svg {label}', 1)}>\n{title}{description}{body}{strips(figure)}</svg>\n"


def _smaller(element: str) -> str:
    """Returns an `svg` element without groups that change nothing, and with one path for neighbours of one look."""
    kept: list[bool] = []

    def joined(paths: re.Match[str]) -> str:
        places = "".join(re.findall(' d="([^"]*)"', paths[0]))
        return f'<path d="{places}"{paths["look"]}/>'

    def written(tag: re.Match[str]) -> str:
        if tag[0] == "</g>":
            return tag[0] if kept.pop() else ""
        kept.append(re.fullmatch('<g( id="[^"]*")?>', tag[0]) is None)
        return tag[0] if kept[-1] else ""

    element = re.sub("<g(?: [^>]*)?/>", "", element)  # empty ones
    return ALIKE.sub(joined, re.sub("</?g(?= |>)[^>]*>", written, element))


def in_colours_of_page(element: str) -> str:
    """Returns an `svg` element whose ink and background are those of the page, light or dark.

    Colours that the page has no name for get one. In a dark page their luma is turned round, so that the order of
    the colours of `colours` is, too, and luminance still tells them apart.
    """
    found: dict[str, str] = {}

    def name(colour: re.Match[str]) -> str:
        of_page = OF_PAGE.get(colour[0])
        if not of_page:
            found[colour[0]] = of_page = f"c{colour[0][1:]}"
        return f"var(--{of_page})"

    # Only inside tags: text may have anything in it.
    element = re.sub("<[^>]*>", lambda tag: re.sub(r"#[0-9a-f]{6}\b", name, tag[0]), element)
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in sorted(found))
    dark = "".join(f"--c{colour[1:]}:{in_the_dark(colour)};" for colour in sorted(found))
    names = f"svg{{{light}}}@media screen and (prefers-color-scheme:dark){{svg{{{dark}}}}}" if found else ""
    return re.sub(r'(<style type="text/css">)', rf"\g<1>{names}", element, count=1)


def in_the_dark(colour: str) -> str:
    """Returns the counterpart of a colour such as "#35264c" in a dark page: the same tint, from light to dark or back."""
    luma, *tint = colorsys.rgb_to_yiq(*to_rgb(colour))
    of_white, of_black = DARK
    return to_hex(colorsys.yiq_to_rgb(of_black + luma * (of_white - of_black), *tint))


def strips(figure: Figure) -> str:
    """Returns the values of a figure for whoever points at it, without a script: of one that was just saved as SVG.

    Only then its panels have their places. A panel is cut into transparent strips, one per layer or other place of its
    horizontal axis. The title of a strip, which browsers show, has the values of all lines, bars and points there; bands,
    intervals and the paper's curve have none.
    """
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
