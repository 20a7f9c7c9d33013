"""The page of a run: its map, the cells by hand and by brute force, and where they lead; and two runs side by side."""

import itertools
import json
import re
import shutil
from collections import Counter
from fractions import Fraction
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.made_up_run import write_table
from ffkv.base.files import tables
from ffkv.branches.intervention.tables import BY_MEMORY
from ffkv.run.results.depth import pair_layers
from ffkv_explorer import page_run
from ffkv_explorer.page_run import cut_by_number, cut_by_value, shades
from ffkv_explorer.pages import LIVE, environment, write
from ffkv_explorer.shelf import LruCache

from .conftest import text_of

NAN = np.nan
EMPTY = (-1, NAN, NAN, NAN)  # no memory has a value


def test_memories_of_the_same_value_and_neighbours_share_a_cell():
    values = np.array([3.0, 1.0, NAN, 2.0, 1.0, 1.0])
    ones = (1, 5, 3, 5, 1.0, 1.0, 1.0)
    assert cut_by_value(values, 3) == [(1, *ones), (1, 3, 3, 1, 3, 2.0, 2.0, 2.0), (1, 0, 0, 1, 0, 3.0, 3.0, 3.0)]
    # Five memories on six columns: the columns end at memories 1, 2, 3, 4, 5, 5 of the order.
    assert [cell.span for cell in cut_by_value(values, 6)] == [3, 1, 2]
    assert cut_by_value(values, 1) == [(1, 0, 5, 5, 5, 1.0, 1.6, 3.0)]
    assert cut_by_value(np.array([NAN, NAN]), 3) == []
    cells = cut_by_number(np.array([NAN, NAN, 2.0, 4.0, NAN]), 2)
    expected = [(1, 0, 1, 0, *EMPTY), (1, 2, 3, 2, 3, 2.0, 3.0, 4.0), (1, 4, 4, 0, *EMPTY)]
    assert np.array_equal(np.array(cells), np.array(expected), equal_nan=True)


@pytest.mark.parametrize("count, columns", itertools.product([1, 7, 100, 1234], [1, 10, 64]))
def test_every_memory_with_a_value_is_in_one_cell(count, columns):
    random = np.random.default_rng(count)
    values = random.integers(0, 50, count).astype(np.float32)  # many are equal
    values[random.random(count) < 0.2] = NAN
    for cells in (cut_by_value(values, columns), cut_by_number(values, -(-count // columns))):
        assert sum(cell.known for cell in cells) == np.isfinite(values).sum()
    for cell in cut_by_value(values, columns):
        inside = (values >= cell.low) & (values <= cell.high)
        assert (inside.sum(), values[inside].mean()) == (cell.known, pytest.approx(cell.mean, rel=1e-6))  # float32
    spans = [cell.span for cell in cut_by_value(values, columns)]
    assert sum(spans) == (columns if np.isfinite(values).any() else 0)


def test_each_colour_has_as_many_cells_and_zero_its_own():
    whole = shades([NAN, 0, *range(1, 17)], both=False)
    looks = Counter(whole.look(mean) for mean in range(17))
    assert looks == {"q0": 1, **{f"q{number}": 2 for number in range(1, 9)}}
    assert whole.look(NAN) == "unknown" and whole.legend == [0, 1, 3, 5, 7, 9, 11, 13, 15]
    signed = shades([-2, 0, 1], both=True)
    assert signed.legend == [-2, -1, 0, 1, 2]
    assert [signed.look(mean) for mean in signed.legend] == ["n8", "n4", "zero", "p4", "p8"]
    assert shades([0, NAN], both=False).legend == [0]


@pytest.fixture(scope="module")
def changed(small, tmp_path_factory, visit):
    """An explorer of the small run, as if it had removed memories L0.0 and L0.2."""
    folder = shutil.copytree(small, tmp_path_factory.mktemp("map") / "results/small")
    rest = dict.fromkeys([column.name for column in BY_MEMORY.columns], 0)
    rows = [
        {**rest, "layer": 0, "memory": memory, "side": side, "reach": reach, "own": own}
        for memory, own in ((0, -0.25), (2, 0.125)) for side in ("positive", "negative") for reach in ("total", "direct")
        for own in [own if (side, reach) == ("positive", "total") else 9]
    ]  # fmt: skip
    for group in (0, 1):
        tables.write(BY_MEMORY.frame(rows if group == 0 else []), folder / f"intervention/by_memory/{group}.parquet")
    return visit(folder)


def cells(page: str) -> list[list[str]]:
    """Where the cells of each row lead."""
    rows = page.partition('class="cells"')[2].partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")[:-1]
    return [[unescape(each) for each in re.findall(r'<a tabindex="-1" href="([^"]+)"', row)] for row in rows]


def led_to(visitor, address: str) -> list[str]:
    """The memories that a cell leads to."""
    if place := re.fullmatch(r"m/(\d+)/(\d+)", address):
        assert f"L{place[1]}.{place[2]}" in text_of(visitor.get(f"/r/small/{address}"))
        return [f"L{place[1]}.{place[2]}"]
    found = visitor.client.get(f"/r/small/{address}&format=json").json()
    return [memory["name"] for memory in found["memories"]]


@pytest.mark.parametrize("quantity, expected", [
    ("firing", [[["L0.2"], ["L0.1"], ["L0.0"]], [["L1.0"], ["L1.1"]]]),
    ("norm", [[["L0.0", "L0.1", "L0.2"]], [["L1.0", "L1.1"]]]),
    ("agreement", [[["L0.0", "L0.1"]], [["L1.0", "L1.1"]]]),  # L0.2 is dead
    ("effect", [[["L0.0"], ["L0.2"]], []]),
])  # fmt: skip
def test_cells_lead_to_their_memories(changed, quantity, expected):
    page = changed.get(f"/r/small/?map={quantity}&order=value")
    assert [[led_to(changed, address) for address in row] for row in cells(page)] == expected


def test_cells_by_number_lead_to_memories_by_number(changed, monkeypatch):
    page = changed.get("/r/small/?map=firing")  # by value each row would be the same ramp
    assert page == changed.get("/r/small/?map=firing&order=number").replace("&amp;order=number#map", "#map", 4)
    assert cells(page) == [["m/0/0", "m/0/1", "m/0/2"], ["m/1/0", "m/1/1"]]
    monkeypatch.setattr(page_run, "FINEST", 2)  # two memories in a cell
    changed.shelf.runs["small"].maps = LruCache(16)
    (whole, rest), (last,) = cells(changed.get("/r/small/?map=firing&order=number"))
    assert [led_to(changed, each) for each in (whole, rest, last)] == [["L0.0", "L0.1"], ["L0.2"], ["L1.1", "L1.0"]]
    rows = changed.get("/r/small/?map=effect&order=number").partition('class="cells"')[2].split("</tr>")
    assert rows[1].count('class="n8"') == 1 and rows[1].count('class="p4"') == 1 and "2 of 3" in text_of(rows[1])
    assert "Mean of a cell; each colour begins at −0.25 0.125 no number" in text_of(" ".join(rows))
    assert rows[2].count('class="unknown"') == 1 and "0 of 2" in text_of(rows[2])  # empty, not 0
    changed.shelf.runs["small"].maps = LruCache(16)


def test_the_first_map_is_that_of_agreement(visitor):
    assert visitor.get("/r/small/").count('aria-current="true">agreement</a>') == 1


def test_what_a_run_does_not_know_is_said(visitor):
    page = visitor.get("/r/small/?map=effect")
    assert "This run knows no effect of any memory" in text_of(page) and not cells(page)
    assert "min_effect" not in visitor.get("/r/small/memories")


def test_a_map_that_there_is_not_is_refused(visitor):
    for name in ("map", "order"):
        page = text_of(visitor.get(f"/r/small/?{name}=beauty", 404))
        assert f"There is no {name} 'beauty'. Choose one of: " in page


@pytest.mark.parametrize("quantity", page_run.QUANTITIES)
@pytest.mark.parametrize("order", page_run.ORDERS)
def test_the_map_of_a_large_model_is_small(monkeypatch, quantity, order):
    layers, memories = 80, 28_672
    random = np.random.default_rng(0).lognormal(-6, 2, layers * memories)
    monkeypatch.setattr(page_run, "quantity_of", lambda files, name: random)
    anatomy = SimpleNamespace(layer_offset=np.arange(layers + 1) * memories)
    run = SimpleNamespace(files=SimpleNamespace(reading="head"), readings=["head"], anatomy=anatomy)
    held = SimpleNamespace(run=run, asks={}, sizes=[memories] * layers, maps=LruCache(1), name="large")
    shown = page_run.layer_map(held, quantity, order)
    page = environment().get_template("map.html").render(held=held, links=LIVE, map=shown)
    assert len(cells(page)) == layers and {len(row) for row in cells(page)} == {page_run.CELLS // layers}
    assert len(page.encode()) < 350_000


def test_a_drawing_that_lacks_a_table_says_which(visitor):
    assert "claims.svg" in visitor.get("/r/small/")
    assert "figure_2_categories" in text_of(visitor.get("/r/small/claims.svg", 500))


def test_the_page_of_a_run_is_kept_until_it_has_a_report(own_small, visit, monkeypatch):
    visitor, made = visit(own_small), []
    monkeypatch.setattr(page_run, "write", lambda *given, **values: made.append(values) or write(*given, **values))
    pages = [visitor.get("/r/small/") for _ in range(3)]
    assert len({*pages}) == len(made) == 1 and ">Report</a>" not in pages[0]
    report = own_small.parent.parent / "reports/small/index.html"
    report.parent.mkdir(parents=True)
    report.write_text("the report")
    assert ">Report</a>" in visitor.get("/r/small/") and len(made) == 2
    assert visitor.get("/r/small/?map=norm") != visitor.get("/r/small/?map=firing")


# Two runs


def rows_by_depth(page: str) -> list[list[str]]:
    """The table of layers by relative depth: depth, layers of a and b, memories of a and b, ..."""
    table = page.split('aria-label="Layers by relative depth"')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [
        [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in table.split("</tr>")[:-1]
    ]


def test_two_runs_of_one_shape_stand_side_by_side_layer_by_layer(small, own_small, visit):
    visitor = visit(small, own_small)
    assert list(visitor.shelf.runs) == ["small", "small-2"]
    page = visitor.get("/compare?a=small&b=small-2&memory=L1.1")
    assert text_of(page).count("firing rate") == 3  # a column of layers, and a row of each memory
    assert "There is no memory 7" in text_of(visitor.get("/compare?a=small&b=small-2&memory=L1.7", 400))
    assert "No run 'nobody' is open. Open are: small, small-2." in text_of(visitor.get("/compare?a=nobody", 404))
    assert "not the same unit" not in text_of(page)
    for name in ("small", "small-2"):
        assert all(f'"/r/{name}/{part}"' in page for part in ("memories", "collections", "trace", "behaviours", "go"))
    assert len(re.findall(r'<input id="jump[-2]*" name="q"', page)) == 2 and page.count('data-key="/"') == 1
    # memories, agreement, firing rate, dead keys
    assert rows_by_depth(page) == [
        ["25 %", "0", "0", "3", "3", "50 %", "50 %", "0 %", "0 %", "1", "1"],
        ["75 %", "1", "1", "2", "2", "25 %", "25 %", "0 %", "0 %", "0", "0"],
    ]


def test_two_runs_of_different_shapes_stand_side_by_side_by_relative_depth(small, tmp_path, visit):
    other = shutil.copytree(small, tmp_path / "other/deep")
    deep = json.loads((other / "model/anatomy.json").read_text())
    deep["layers"] = [{**deep["layers"][0], "index": index} for index in range(5)]
    (other / "model/anatomy.json").write_text(json.dumps(deep))
    rates = {"layer": range(5), "source": "trigger", "rate": [0.1, 0.2, 0.3, 0.4, 0.5]}
    write_table(other, "values/figure_4_agreement.csv", rates)
    write_table(other, "keys/activity.csv", {"layer": range(5), "dead": range(5), "firing_median": 0.125})
    visitor = visit(small, other)
    page = visitor.get("/compare?a=small&b=deep&memory=L0.0&memory_b=L9.0", 400)
    assert "Run deep: There is no layer 9." in text_of(page)
    for name in ("small", "deep"):
        assert f'aria-label="Run {name}"' in page and f'<a href="/r/{name}/memories">Memories</a>' in page
        assert f'href="/r/{name}/trace">Trace</a>' in page
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
    assert rows_by_depth(page)[0][7:] == ["0 %", "12 %", "1", "0"]  # firing rate, dead keys
    swapped = rows_by_depth(visitor.get("/compare?a=deep&b=small&memory=L0.9", 400))
    assert [[row[2], row[1]] for row in swapped] == [row[1:3] for row in rows]


@pytest.mark.parametrize("first, second", [(1, 1), (1, 7), (12, 12), (12, 8), (5, 2), (32, 80)])
def test_layers_are_paired_by_the_share_of_the_depth_that_they_take(first, second):
    pairs = pair_layers(first, second)
    assert len(pairs) == max(first, second)
    for number, (depth, *layers) in enumerate(pairs):
        exact = Fraction(2 * number + 1, 2 * len(pairs))
        assert depth == float(exact)
        for layer, count in zip(layers, (first, second)):
            assert Fraction(layer, count) <= exact < Fraction(layer + 1, count)
    assert {pair[1] for pair in pairs} == {*range(first)} and {pair[2] for pair in pairs} == {*range(second)}
