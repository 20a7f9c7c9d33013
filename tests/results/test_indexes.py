"""What is kept in memory of all memories: read once, and only if it is asked for."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ffkv.base.errors import UserError
from ffkv.run.results import indexes
from ffkv.run.results.indexes import Index
from ffkv.run.results.run import open


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
