"""The SVG of a figure: its texts as they are, and its colours in a light and in a dark page."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb

from ffkv.run.report import drawing
from ffkv.run.report.svg import STRIPS, in_colours_of_page, in_the_dark, write_svg
from ffkv.run.results.text import MINUS

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
    assert alone.count(name) == page.count(name) == 3  # in the legend, and in the values of two points
    colours = set(re.findall("#[0-9a-f]{6}", page.replace(name, "")))
    assert colours == {"#40498e", in_the_dark("#40498e")}  # the definition of its name
    assert set(re.findall(r"var\(--(\w+)\)", page)) == {"text", "line", "sheet", "c40498e"}
    assert "#262626" in re.findall("#[0-9a-f]{6}", alone)


def drawn(layers: int) -> str:
    """A panel of two lines over layers and the paper's, and one over another axis, with bars and points."""
    table = pd.DataFrame({"layer": range(layers), "value": np.linspace(0, 0.5, layers), "low": 0.0, "high": 1.0})
    with drawing.look():
        figure, (left, right) = drawing.canvas(2)
        for style, label in enumerate(("first", "a <b>")):
            drawing.curve(left, table, "value", label, style, 2)
        drawing.paper_curve(left, np.ones(drawing.PAPER_LAYERS), layers)
        drawing.share_axis(left, "shares")
        drawing.layer_axis(left, layers)
        right.bar([1, 10], [2.5, -0.25], label="bars")
        right.scatter([1] * 9, np.arange(9), label="points")
        right.axhline(7, label="all")
        right.set_xscale("log")
        right.set_xlabel("memories kept (of 100)")
        return write_svg(figure, "x", "title", "description")


def test_each_layer_of_a_figure_has_the_values_of_all_its_lines():
    titles = re.findall("<path d=[^>]*><title>([^<]*)</title>", drawn(3))
    assert titles[:3] == [
        "layer 0\nfirst: 0\u00a0%\na &lt;b&gt;: 0\u00a0%",
        "layer 1\nfirst: 25\u00a0%\na &lt;b&gt;: 25\u00a0%",
        "layer 2\nfirst: 50\u00a0%\na &lt;b&gt;: 50\u00a0%",
    ]
    assert titles[3:] == [
        "memories kept 1\nbars: 2.5\npoints: 0, 1, 2, 3, 4, 5 and 3 more",
        f"memories kept 10\nbars: {MINUS}0.25",
    ]


def test_of_many_layers_neighbours_share_a_title_and_every_layer_is_there():
    titles = re.findall("<path d=[^>]*><title>([^<]*)</title>", drawn(100))
    shared = titles[:-2]
    assert len(shared) == -(-100 // 3) <= STRIPS
    assert re.findall("^layer (.*)$", "\n".join(shared), re.M) == [str(layer) for layer in range(100)]


def test_neighbours_of_one_look_are_one_path():
    """Intervals of 20 layers, drawn one by one: as many lines, in a single path."""
    element = drawn(20)
    joined = [path for path in re.findall(r'<path d="([^"]*)"', element) if path.count("M") >= 20]
    assert [(path.count("M"), path.count("L")) for path in joined] == [(20, 20)] * 2  # one for each line
