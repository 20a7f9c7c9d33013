"""What `ffkv.behaviour` returns: names that traces take, tables, a figure, a page, and a view in notebooks."""

import html
import pickle
import re

import pandas as pd
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.behaviours.told import summarize
from ffkv.branches.settings import Behaviour
from ffkv.run.behaviour import AskedBehaviour
from ffkv.run.results.memory_name import parse_memory_name
from ffkv.run.trace.settings import TraceOptions

NAME = "agreement"


@pytest.fixture(scope="module")
def found(run):
    """The tables of the behaviour of the made-up run, as if it had been asked just now."""
    names = [name for name in run.tables if name.startswith("behaviour")]
    made = {name: run.table(name) for name in names}
    every = made["behaviour_memories"][["layer", "memory"]].drop_duplicates()
    return AskedBehaviour(run, NAME, Behaviour(prompts="agreement.jsonl"), {**made, "memories": every})


def test_it_is_a_mapping_of_its_tables(run, found):
    assert isinstance(found, dict) and {*found} == {*found.tables} and len(found) == len(found.tables)
    assert {"behaviours", "behaviour_memories", "behaviour_sets", "memories"} <= {*found}
    pd.testing.assert_frame_equal(found["behaviours"], run.table("behaviours"))
    pd.testing.assert_frame_equal(found.sets, run.table("behaviour_sets"))
    assert found.get("none") is None


def test_its_memories_have_names_that_traces_take_the_largest_size_first(found):
    memories = found.memories
    assert (memories["reach"] == "total").all() and memories["name"].is_unique
    assert memories["effect"].abs().is_monotonic_decreasing and (memories["effect"] < 0).any()
    names = TraceOptions(off=memories["name"]).off
    assert [parse_memory_name(name) for name in names] == [*zip(memories["layer"], memories["memory"], strict=True)]


def test_without_effects_the_contrast_orders_its_memories(run, found):
    unmeasured = found["behaviour_memories"].assign(effect=float("nan"))
    other = AskedBehaviour(run, NAME, found.settings, {**found, "behaviour_memories": unmeasured})
    assert other.memories["estimate"].abs().is_monotonic_decreasing
    assert "no exact effect was measured" in repr(other)


def test_its_repr_says_what_was_found(found):
    assert re.fullmatch(r"<Behaviour agreement in demo: .*candidates are significant.*>", repr(found))
    assert repr(found)[len("<Behaviour agreement in demo: ") : -1] in found.told


def test_a_notebook_shows_the_page_without_files(found):
    frame = found._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    page = html.unescape(html.unescape(frame))
    for text in ("<svg", "Memories of agreement", found.memories["name"].iloc[0]):
        assert text in page
    assert "text/csv" not in page and "The file " not in page and ".csv" not in page


def test_it_draws_figures(found):
    assert found.plot().axes[0].get_xlabel() == "layer"
    assert found.plot("behaviour_sets").axes[0].get_xlabel() == "n memories are patched"
    with pytest.raises(UserError, match="behaviour_sets"):
        found.plot("behaviour_set")


def test_without_a_measured_set_no_figure_of_sets_is_drawn(run, found, tmp_path):
    """Lists of prompts have no answer, so no set is measured of them."""
    other = AskedBehaviour(run, NAME, found.settings, {**found, "behaviour_sets": found.sets.iloc[:0]})
    page = other.save(tmp_path)[-1].read_text()
    assert 'id="behaviour_layers"' in page and 'id="behaviour_sets"' not in page
    assert 'id="behaviour_sets"' in found.save(tmp_path)[-1].read_text()
    with pytest.raises(UserError, match="no figure of"):
        other.plot("behaviour_sets")


def test_it_saves_tables_and_the_section_of_the_report_as_a_page(run, found, tmp_path):
    """The page has no link to a file that is not there, and offers the tables."""
    paths = found.save(tmp_path / "asked")
    assert {path.name for path in paths} == {"index.html", *(f"{name}.csv" for name in found)}
    assert {*paths} == {*(tmp_path / "asked").glob("[!.]*")}
    pd.testing.assert_frame_equal(tables.read(paths[0]), found.tables[paths[0].stem], check_dtype=False, rtol=1e-9)
    page = paths[-1].read_text()
    for text in (
        "Memories of agreement",
        "Side effects",
        "Where the memories of a behaviour are",
        "agreement.jsonl",
        ffkv.__version__,
    ):
        assert text in page
    assert summarize(found._view)[0].split(".")[0] in page.replace("&#39;", "'")
    links = re.findall(r'href="([^"]*)"', page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert all(link.startswith("data:text/csv") or link[1:] in ids for link in links if not link.startswith("http"))
    assert 'download="behaviour_memories.csv"' in page and len(ids) == len({*ids})
    assert "&lt;svg" in found._repr_html_() and found.plot("figure_4").axes  # a page changes nothing of what it shows


def test_a_copy_is_the_dictionary_of_its_tables(found):
    copy = pickle.loads(pickle.dumps(found))
    assert type(copy) is dict and copy.keys() == found.keys()


def test_the_run_stays_as_it_is(run, found, tmp_path):
    before = dict(run.files.table_files)
    found.save(tmp_path)
    assert run.files.table_files == before and "report" in vars(run.settings)
    assert found._view.settings.report.control == "none" and [*found._view.settings.behaviours] == [NAME]
