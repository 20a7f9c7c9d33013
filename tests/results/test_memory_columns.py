"""What pages show of a memory is what its tables hold, whether it is read from files or is in memory."""

import numpy as np
import pandas as pd
import pytest
from results.conftest import MEMORIES

from ffkv.base.files import tables
from ffkv.branches.intervention.tables import BY_MEMORY
from ffkv.run.results import indexes
from ffkv.run.results.memory_columns import example_columns, prediction_columns, rows_of, stored_examples
from ffkv.run.results.run import open

PLACES = [(layer, memory) for layer, count in enumerate(MEMORIES) for memory in range(count)]
SIDES = {"positive": "triggers", "negative": "negative_triggers"}
ENDS = {"top": "promotes", "bottom": "demotes"}


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
