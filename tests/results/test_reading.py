"""A run in both readings: by the head, and translated."""

import pytest

from ffkv.base.errors import UserError
from ffkv.run.results import indexes
from ffkv.run.results.run import open

from .conftest import TOP, VOCABULARY, add_translation


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
    with pytest.raises(
        UserError, match=r"small has values and states as the head reads them only: set values\.readout to both"
    ):
        _ = run.translated
    with pytest.raises(UserError, match=r"no reading 'logit'\. Choose one of: head, translated"):
        run.files.read_as("logit")
