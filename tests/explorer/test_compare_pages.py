"""Two runs, and two memories, side by side."""

import json
import re
import shutil

import pandas as pd
import pytest

from ffkv.base.files import tables

from .conftest import text_of


def test_two_runs_stand_side_by_side(small, tmp_path, visit):
    other = tmp_path / "other" / "small"
    shutil.copytree(small, other)
    visitor = visit(small, other)
    assert list(visitor.shelf.runs) == ["small", "small-2"]
    text = text_of(visitor.get("/compare?a=small&b=small-2&memory=L1.1"))
    assert text.count("firing rate") == 2
    assert "There is no memory 7" in text_of(visitor.get("/compare?a=small&b=small-2&memory=L1.7", 400))
    assert "No run 'nobody' is open. Open are: small, small-2." in text_of(visitor.get("/compare?a=nobody", 404))


def rows_by_depth(page: str) -> list[list[str]]:
    """The table of layers by relative depth: depth, layers of a and b, memories of a and b, ..."""
    table = page.split('aria-label="Layers by relative depth"')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in table.split("</tr>")[:-1]
    ]


def test_two_runs_of_one_shape_stand_side_by_side_layer_by_layer(small, tmp_path, visit):
    other = tmp_path / "other" / "small"
    shutil.copytree(small, other)
    page = visit(small, other).get("/compare?a=small&b=small-2")
    assert "not the same unit" not in text_of(page)
    # memories, agreement, dead keys
    assert rows_by_depth(page) == [
        ["25 %", "0", "0", "3", "3", "50 %", "50 %", "1", "1"],
        ["75 %", "1", "1", "2", "2", "25 %", "25 %", "0", "0"],
    ]


def test_two_runs_of_different_shapes_stand_side_by_side_by_relative_depth(small, tmp_path, visit):
    other = tmp_path / "other" / "deep"
    shutil.copytree(small, other)
    deep = json.loads((other / "model/anatomy.json").read_text())
    deep["layers"] = [{**deep["layers"][0], "index": index} for index in range(5)]
    (other / "model/anatomy.json").write_text(json.dumps(deep))
    rates = pd.DataFrame({"layer": range(5), "source": "trigger", "rate": [0.1, 0.2, 0.3, 0.4, 0.5]})
    tables.write(rates, other / "values/figure_4_agreement.csv")
    activity = pd.DataFrame({"layer": range(5), "dead": range(5), "firing_median": 0.125})
    tables.write(activity, other / "keys/activity.csv")
    visitor = visit(small, other)
    page = visitor.get("/compare?a=small&b=deep&memory=L0.0&memory_b=L9.0", 400)
    assert "Run deep: There is no layer 9." in text_of(page)
    assert "is not the same unit as a memory of the other" in text_of(page)
    assert "The memories of two such layers are not the same units" in text_of(page)
    rows = [[row[place] for place in (0, 1, 2, 5, 6)] for row in rows_by_depth(page)]
    assert rows == [
        ["10 %", "0", "0", "50 %", "10 %"],
        ["30 %", "0", "1", "50 %", "20 %"],
        ["50 %", "1", "2", "25 %", "30 %"],
        ["70 %", "1", "3", "25 %", "40 %"],
        ["90 %", "1", "4", "25 %", "50 %"],
    ]
    assert rows_by_depth(page)[0][7:] == ["–", "12.5 %", "1", "0"]  # the firing rate of one run alone, dead keys
    swapped = rows_by_depth(visitor.get("/compare?a=deep&b=small&memory=L0.9", 400))
    assert [[row[2], row[1]] for row in swapped] == [row[1:3] for row in rows]


def test_two_different_memories_stand_side_by_side(visitor):
    page = visitor.get("/compare?memory=L0.0&memory_b=L1.1")
    assert 'href="/r/small/m/0/0"' in page and 'href="/r/small/m/1/1"' in page


@pytest.mark.parametrize("first, second", [(1, 1), (1, 7), (12, 12), (12, 8), (5, 2), (32, 80)])
def test_layers_are_paired_by_the_share_of_the_depth_that_they_take(first, second):
    from fractions import Fraction

    from ffkv.run.results.depth import pair_layers

    pairs = pair_layers(first, second)
    assert len(pairs) == max(first, second)
    for number, (depth, *layers) in enumerate(pairs):
        exact = Fraction(2 * number + 1, 2 * len(pairs))
        assert depth == float(exact)
        for layer, count in zip(layers, (first, second)):
            assert Fraction(layer, count) <= exact < Fraction(layer + 1, count)
    assert {pair[1] for pair in pairs} == {*range(first)} and {pair[2] for pair in pairs} == {*range(second)}
