"""The SVG of a figure, for readers who see it and for those who do not, in the colours of the page, light or dark."""

import colorsys
import io
import re
from html import escape

from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from ffkv.run.report.hover import strips

# Colours that a page has a name for: ink, secondary ink, lines, and what lies behind a figure.
OF_PAGE = {"#262626": "text", "#000000": "text", "#737373": "soft", "#ebebeb": "line", "#ffffff": "sheet"}
DARK = (0.16, 0.9)  # luma, in a dark page, of what is white and of what is black in a light one
# Paths side by side that differ in their places alone, such as the intervals of a line.
ALIKE = re.compile(r'<path d="[^"]*"(?P<look> [^>]*)/>(?:\s*<path d="[^"]*"(?P=look)/>)+')
NO_METADATA = dict.fromkeys(["Creator", "Date", "Format", "Type"])


def write_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Returns the figure as an `svg` element, with a title and a description for readers who do not see it, and values (`hover`).

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
    """Returns an `svg` element without the groups that change nothing, and with one path for neighbours of one look.

    So a browser has to keep less than half of it.
    """
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
    light, dark = (
        "".join(f"--c{colour[1:]}:{write(colour)};" for colour in sorted(found)) for write in (str, in_the_dark)
    )
    names = f"svg{{{light}}}@media screen and (prefers-color-scheme:dark){{svg{{{dark}}}}}" if found else ""
    return re.sub(r'(<style type="text/css">)', rf"\g<1>{names}", element, count=1)


def in_the_dark(colour: str) -> str:
    """Returns the counterpart of a colour such as "#35264c" in a dark page: the same tint, from light to dark or back."""
    luma, *tint = colorsys.rgb_to_yiq(*to_rgb(colour))
    of_white, of_black = DARK
    return to_hex(colorsys.yiq_to_rgb(of_black + luma * (of_white - of_black), *tint))
