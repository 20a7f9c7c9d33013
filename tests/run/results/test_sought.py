"""Patterns that are sought on request, beside those of a finished tiny run."""

import pandas as pd
import pytest

import ffkv
from ffkv.run.results import sought
from ffkv.run.results.sought import kept_file


def everything_in(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_what_was_sought_is_kept_beside_the_run_until_the_run_changes(run, folder, monkeypatch):
    before = everything_in(folder)
    memory = run.memory("L0.1")
    assert memory.sought is None
    found = memory.seek_patterns()
    assert "unkept" not in found.attrs and everything_in(folder) == before
    assert kept_file(run.files, 0, 1) == folder.parent / ".small.sought/L0.1.json"
    monkeypatch.setattr(sought, "detector", None)  # would be called
    again = ffkv.open(folder).memory("L0.1")
    pd.testing.assert_frame_equal(again.seek_patterns(), found)
    pd.testing.assert_frame_equal(again.sought, found)
    assert run.memory("L1.0").sought is None  # nobody sought them
    changed = run.settings.model_copy(update={"seed": 1})
    monkeypatch.setattr(run.files, "settings", changed)
    assert memory.sought is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"made_from": 1, "patterns": []}', "\0" * 9])
def test_a_file_that_is_damaged_or_of_other_data_is_as_none(run, content):
    file = kept_file(run.files, 0, 1)
    file.parent.mkdir()
    file.write_text(content)
    assert run.memory("L0.1").sought is None
    run.memory("L0.1").seek_patterns()
    assert run.memory("L0.1").sought is not None and file.read_text() != content


def test_patterns_are_found_also_where_nothing_can_be_kept(run, folder):
    kept_file(run.files, 0, 1).parent.write_text("in the way of the folder")
    found = run.memory("L0.1").seek_patterns()
    assert "cannot be written" in found.attrs["unkept"] and run.memory("L0.1").sought is None


@pytest.mark.workflow
def test_a_pattern_that_is_sought_has_the_p_value_of_the_run(tiny):
    run = ffkv.open(tiny / "results/tiny")
    keys = run.files.details("keys/by_prefix").query("sample == 'trigger'")[["layer", "memory"]].drop_duplicates()
    common = 0
    for layer, memory in keys.itertuples(index=False):
        own = run.memory(int(layer), int(memory))
        assert own.sampled
        found = own.seek_patterns()
        pd.testing.assert_frame_equal(
            own.sought, found, check_exact=True
        )  # what is kept has the same numbers and types
        known, sought = (table.query("family == 'shallow'").set_index("label") for table in (own.patterns, found))
        both = known.index.intersection(sought.index)  # the other keys of the layer only move the q-values
        assert (
            known.loc[both, ["p_value", "prefixes", "chance"]] == sought.loc[both, ["p_value", "prefixes", "chance"]]
        ).all(None)
        common += len(both)
    assert common > len(keys) / 2
    others = {(0, memory) for memory in range(run.anatomy.layers[0].memories)} - {*map(tuple, keys.to_numpy().tolist())}
    assert not run.memory(*min(others)).sampled
