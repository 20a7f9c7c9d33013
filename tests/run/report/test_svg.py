"""The SVG of a figure: its texts as they are, and its colours in a light and in a dark page."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from ffkv.run.report import drawing
from ffkv.run.report.svg import in_colours_of_page, in_the_dark, write_svg

NAMES = ["costs $5 and $6", "$$", r"lr $\eta_0$ of $\foo$", r"\$", "a_b^c"]


@pytest.mark.parametrize("name", NAMES)
def test_a_dollar_in_a_name_is_a_dollar(name):
    shares = {name: np.ones(2), "other": np.zeros(2)}
    with drawing.look():
        figure = drawing.stacked_panels([(name, 2, shares)], paper=False)
        figure.axes[0].set_xlabel(name)
        drawing.small_title(figure.add_subplot(3, 3, 9), f"{name} and more words than fit into one line of a panel")
        figure.axes[0].set_xticks([0, 1], [name, "b"])
        page = write_svg(figure, "x", "title", "description")
    texts = re.findall("<text [^>]*>([^<]*)</text>", page)
    assert texts.count(name) == 4  # title, legend, axis, tick
    assert any(text.startswith(f"{name} and more") for text in texts)


def luminance(colour):
    return np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722))


def test_in_a_dark_page_luminance_still_tells_the_colours_apart():
    """The order is turned round: what stands out from white stands out from the dark sheet."""
    for count in range(2, 7):
        dark = [luminance(in_the_dark(to_hex(colour))) for colour in drawing.colours(count)]
        assert max(np.diff(dark)) < -0.01 and dark[-1] > luminance("#1d232b") + 0.05


def test_figures_in_a_page_have_its_colours_and_their_texts_stay():
    name = 'fill: #262626 and "#40498e"'
    with drawing.look():
        figure, (axes,) = drawing.canvas()
        axes.plot([0, 1], color="#40498e", label=name)
        drawing.legend(figure, axes)
        alone = write_svg(figure, "x", "title", "description")
    page = in_colours_of_page(alone)
    assert "var(" not in alone and "stroke: #40498e" in alone
    assert alone.count(name) == page.count(name) == 1
    colours = set(re.findall("#[0-9a-f]{6}", page.replace(name, "")))
    assert colours == {"#40498e", in_the_dark("#40498e")}  # the definition of its name
    assert set(re.findall(r"var\(--(\w+)\)", page)) == {"text", "line", "sheet", "c40498e"}
    assert "#262626" in re.findall("#[0-9a-f]{6}", alone)
