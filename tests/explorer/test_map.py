"""The map of a run's page: its cells by hand and by brute force, and where they lead."""

import re
import shutil
from collections import Counter
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest

from ffkv.apps.explorer import layer_map
from ffkv.apps.explorer.layer_map import cut_by_number, cut_by_value, shades
from ffkv.apps.explorer.pages import LIVE, environment
from ffkv.apps.explorer.shelf import LruCache
from ffkv.base.files import tables
from ffkv.branches.intervention.tables import BY_MEMORY

from .conftest import text_of

NAN = np.nan
EMPTY = (-1, NAN, NAN, NAN)  # no memory has a value


def test_memories_of_the_same_value_share_a_cell():
    values = np.array([3.0, 1.0, NAN, 2.0, 1.0, 1.0])
    ones = (1, 5, 3, 5, 1.0, 1.0, 1.0)
    assert cut_by_value(values, 3) == [(1, *ones), (1, 3, 3, 1, 3, 2.0, 2.0, 2.0), (1, 0, 0, 1, 0, 3.0, 3.0, 3.0)]
    # Five memories on six columns: the columns end at memories 1, 2, 3, 4, 5, 5 of the order.
    assert [cell.span for cell in cut_by_value(values, 6)] == [3, 1, 2]
    assert cut_by_value(values, 1) == [(1, 0, 5, 5, 5, 1.0, 1.6, 3.0)]
    assert cut_by_value(np.array([NAN, NAN]), 3) == []


def test_neighbours_share_a_cell():
    cells = cut_by_number(np.array([NAN, NAN, 2.0, 4.0, NAN]), 2)
    expected = [(1, 0, 1, 0, *EMPTY), (1, 2, 3, 2, 3, 2.0, 3.0, 4.0), (1, 4, 4, 0, *EMPTY)]
    assert np.array_equal(np.array(cells), np.array(expected), equal_nan=True)


@pytest.mark.parametrize("count", [1, 7, 100, 1234])
@pytest.mark.parametrize("columns", [1, 10, 64])
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
    page = changed.get(f"/r/small/?map={quantity}")
    assert [[led_to(changed, address) for address in row] for row in cells(page)] == expected


def test_cells_by_number_lead_to_memories_by_number(changed, monkeypatch):
    page = changed.get("/r/small/?map=firing&order=number")
    assert cells(page) == [["m/0/0", "m/0/1", "m/0/2"], ["m/1/0", "m/1/1"]]
    monkeypatch.setattr(layer_map, "FINEST", 2)  # two memories in a cell
    changed.shelf.runs["small"].maps = LruCache(16)
    (whole, rest), (last,) = cells(changed.get("/r/small/?map=firing&order=number"))
    assert [led_to(changed, each) for each in (whole, rest, last)] == [["L0.0", "L0.1"], ["L0.2"], ["L1.1", "L1.0"]]
    rows = changed.get("/r/small/?map=effect&order=number").partition('class="cells"')[2].split("</tr>")
    assert rows[1].count('class="n8"') == 1 and rows[1].count('class="p4"') == 1 and "2 of 3" in text_of(rows[1])
    assert "Mean of a cell; each colour begins at −0.25 0.125 no number" in text_of(" ".join(rows))
    assert rows[2].count('class="unknown"') == 1 and "0 of 2" in text_of(rows[2])  # empty, not 0
    changed.shelf.runs["small"].maps = LruCache(16)


def test_what_a_run_does_not_know_is_said(visitor):
    page = visitor.get("/r/small/?map=effect")
    assert "This run knows no effect of any memory" in text_of(page) and not cells(page)
    assert "min_effect" not in visitor.get("/r/small/memories")


@pytest.mark.parametrize("query", ["map=beauty", "order=beauty"])
def test_a_map_that_there_is_not_is_refused(visitor, query):
    text = text_of(visitor.get(f"/r/small/?{query}", 404))
    assert "There is no map 'beauty'. There are: " in text


@pytest.mark.parametrize("quantity", layer_map.QUANTITIES)
@pytest.mark.parametrize("order", layer_map.ORDERS)
def test_the_map_of_a_large_model_is_small(monkeypatch, quantity, order):
    layers, memories = 80, 28_672
    random = np.random.default_rng(0).lognormal(-6, 2, layers * memories)
    monkeypatch.setattr(layer_map, "values", lambda files, name: random)
    anatomy = SimpleNamespace(layer_offset=np.arange(layers + 1) * memories)
    run = SimpleNamespace(files=SimpleNamespace(has_translation=False), anatomy=anatomy)
    held = SimpleNamespace(run=run, asks={}, sizes=[memories] * layers, maps=LruCache(1), name="large")
    shown = layer_map.layer_map(held, quantity, order)
    page = environment().get_template("map.html").render(held=held, links=LIVE, map=shown)
    assert len(cells(page)) == layers and {len(row) for row in cells(page)} == {layer_map.CELLS // layers}
    assert len(page.encode()) < 350_000


def test_a_drawing_that_lacks_a_table_says_which(visitor):
    assert "claims.svg" in visitor.get("/r/small/")
    assert "figure_2_categories" in text_of(visitor.get("/r/small/claims.svg", 500))
