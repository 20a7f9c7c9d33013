"""What is kept in memory of all memories: read once and only if it is asked for, the same as in the files, in both readings."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.intervention.tables import BY_MEMORY
from ffkv.run.results import indexes
from ffkv.run.results.indexes import Index
from ffkv.run.results.memory_columns import example_columns, prediction_columns, rows_of, stored_examples
from ffkv.run.results.run import open
from tests.run.results.conftest import MEMORIES, TOP, VOCABULARY, add_translation

PLACES = [(layer, memory) for layer, count in enumerate(MEMORIES) for memory in range(count)]
SIDES = {"positive": "triggers", "negative": "negative_triggers"}
ENDS = {"top": "promotes", "bottom": "demotes"}


def test_threads_that_ask_together_read_once(run, folder):
    together, calls = threading.Barrier(4), []

    @Index
    def read(files, name):
        calls.append(name)
        return [name]

    def ask(name):
        together.wait(10)
        return read(run.files, name)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, ["top", "top", "top", "bottom"]))
    assert sorted(calls) == ["bottom", "top"] and found == [["top"], ["top"], ["top"], ["bottom"]]
    assert read.in_memory(run.files, "top") is found[0] is found[1]
    assert read.in_memory(open(folder).files, "top") is None


def test_an_index_that_cannot_be_read_is_read_again(run, folder):
    moved = (folder / "triggers.h5").rename(folder / "moved.h5")
    with pytest.raises(UserError, match=r"triggers\.h5"):
        indexes.trigger_places(run.files)
    moved.rename(folder / "triggers.h5")
    assert len(indexes.trigger_places(run.files).sentence) == 5


def test_one_memory_reads_its_own_rows_alone(run):
    memory = run.memory(0, 0)
    assert len(memory.triggers) == len(memory.negative_triggers) == len(memory.patterns) == len(memory.promotes(2)) == 2
    assert len(memory.histogram) and memory.statistics["trigger_examples"] == 2
    assert not run.files.kept


@pytest.fixture(params=["files", "memory"])
def read(request, folder):
    """The small run as a reader has it: read from its files, or with everything in memory that searches ask for."""
    run = open(folder, keep_open=request.param == "memory")
    if request.param == "memory":
        for end in ENDS:
            indexes.kept_tokens(run.files, end)
        indexes.statistics(run.files)
        indexes.trigger_patterns(run.files)
        assert indexes.trigger_places(run.files).sentence.shape == (sum(MEMORIES), 2)
    return run


def test_trigger_examples_are_the_first_rows_of_the_table(subtests, run, read):
    for most in [None, 1, 2, 9]:
        for side in SIDES:
            for place in PLACES:
                with subtests.test(most=most, side=side, place=place):
                    table = getattr(run.memory(*place), SIDES[side])
                    pd.testing.assert_frame_equal(
                        pd.DataFrame(example_columns(read.files, *place, side, most)), table.head(most)
                    )


def test_predictions_statistics_and_patterns_are_those_of_the_tables(subtests, run, read):
    for place in PLACES:
        with subtests.test(place=place):
            memory = run.memory(*place)
            for end, name in ENDS.items():
                found = pd.DataFrame(prediction_columns(read.files, *place, end, 2))
                pd.testing.assert_frame_equal(found, getattr(memory, name)(2))
            assert read.memory(*place).statistics.equals(memory.statistics)
            patterns = read.memory(*place).patterns
            assert patterns.astype(str).equals(memory.patterns.astype(str))
            assert len(patterns) == (2 if place[1] == 0 else 0)


def test_the_effect_of_a_removal_is_a_statistic_where_it_is_known(folder):
    rest = dict.fromkeys([column.name for column in BY_MEMORY.columns], 0)
    one = {**rest, "layer": 1, "memory": 1, "side": "positive", "reach": "total", "own": -0.5}
    rows = [one, {**one, "reach": "direct", "own": 9}, {**one, "side": "negative", "own": 9}]
    for group in (0, 1):
        tables.write(BY_MEMORY.frame(rows if group else []), folder / f"intervention/by_memory/{group}.parquet")
    run = open(folder)
    alone = [run.memory(*place).statistics for place in PLACES]  # each is read from the files
    everything = run.memories(sort="effect")
    assert everything["name"].tolist() == ["L1.1", "L0.0", "L0.1", "L0.2", "L1.0"]  # those without one come last
    assert everything["effect"].tolist()[:1] == [-0.5] and everything["effect"][1:].isna().all()
    assert run.memories(between={"effect": (None, 0)})["name"].tolist() == ["L1.1"]
    assert all(one.equals(run.memory(*place).statistics) for one, place in zip(alone, PLACES))


def test_only_what_is_asked_for_is_given(read):
    found = stored_examples(read.files, 0, "positive", ["sentence", "next_token"], 1)
    assert {name: values.tolist() for name, values in found.items()} == {"sentence": [1], "next_token": [0]}


def test_rows_hold_plain_numbers():
    rows = rows_of({"text": ["a", "b"], "coefficient": np.array([1.5, 2], np.float32), "rank": np.arange(2)})
    assert [tuple(row) for row in rows] == [("a", 1.5, 0), ("b", 2.0, 1)]
    assert [type(value) for value in rows[0]] == [str, float, int]
    assert rows[1].coefficient == 2
    assert rows_of({"text": []}) == []


@pytest.fixture
def both(folder):
    return open(add_translation(folder))


@pytest.mark.parametrize("keep_open", [False, True])
def test_tokens_of_a_value_are_those_of_the_reading(folder, keep_open):
    run = open(add_translation(folder), keep_open)
    tops = [[VOCABULARY[token] for token in memory] for memory in TOP]
    for read_all in (False, True):  # its own rows of the files, then what is in memory of all memories
        for reading in (run, run.translated):
            if read_all:
                indexes.statistics(reading.files), indexes.kept_tokens(reading.files, "top")
                indexes.kept_tokens(reading.files, "bottom")
            memory, turn = reading.memory("L1.0"), -1 if reading is run.translated else 1
            assert memory.promotes(3)["token"].tolist() == tops[3][::turn]
            assert memory.demotes(3)["token"].tolist() == tops[3][::-turn]
            assert memory.statistics["top_token"] == tops[3][::turn][0]
            assert memory.statistics["rank"] == (2 if turn == -1 else 1)
    assert list(run.memories()["top_token"]) == [top[0] for top in tops]
    assert list(run.translated.memories()["top_token"]) == [top[2] for top in tops]
    assert [*run.translated.memories()] == [*run.memories()]


def test_the_sign_of_a_coefficient_decides_which_end_of_the_value_is_pushed(both):
    """The top token if it is positive, the bottom one if it is negative, none if it is 0 or not known."""
    asked = pd.DataFrame(
        {"layer": [1, 1, 0, 0, 1], "memory": [1, 1, 2, 0, 0], "coefficient": [0.5, -1e-9, -2, 0, np.nan]}
    )
    ends = [(TOP[4][0], TOP[4][-1], TOP[2][-1]), (TOP[4][-1], TOP[4][0], TOP[2][0])]  # translated, they change places
    for reading, ids in zip((both, both.translated), ends):
        found = indexes.pushed_tokens(reading.files, asked)
        assert found["pushes"] == [*(VOCABULARY[token] for token in ids), "", ""]
        assert np.isnan(found["top_probability"]).tolist() == [False, True, True, True, True]
    assert indexes.pushed_tokens(both.files, asked[:0])["pushes"] == []


def test_searches_find_what_the_reading_has(both):
    first = both.memories(promotes=1)[["name", "promoted_rank"]].to_numpy().tolist()
    assert sorted(first) == [["L0.0", 0], ["L0.1", 2], ["L1.0", 2], ["L1.1", 1]]
    first = both.translated.memories(promotes=1)[["name", "promoted_rank"]].to_numpy().tolist()
    assert sorted(first) == [["L0.0", 2], ["L0.1", 0], ["L1.0", 0], ["L1.1", 1]]


def test_what_is_in_memory_is_shared_but_for_values(both):
    places = indexes.trigger_places(both.files)
    assert indexes.trigger_places(both.translated.files) is places
    assert indexes.kept_tokens(both.files, "top") is not indexes.kept_tokens(both.translated.files, "top")
    assert both.translated is both.translated and both.translated.translated.files.reading == "translated"
    assert both.translated.corpus() is both.corpus()


def test_a_run_names_its_reading(both):
    assert "small, translated: synthetic" in repr(both.translated) and "translated" not in repr(both)
    assert repr(both.translated.memory("L0.1")) == "<Memory L0.1 of small, translated>"
    assert "The value promotes, translated" in both.translated.memory("L0.1")._repr_html_()


def test_a_run_without_the_reading_says_what_to_set(run):
    told = r"small has values and states in these readings only: head\. Set values\.readout to"
    for reading, wanted in (("translated", "both"), ("jacobian", r"both and translation\.fit to jacobian")):
        with pytest.raises(UserError, match=f"{told} {wanted}, see"):
            run.read_as(reading)
    with pytest.raises(UserError, match=r"no reading 'logit'\. Choose one of: head, translated"):
        run.files.read_as("logit")
