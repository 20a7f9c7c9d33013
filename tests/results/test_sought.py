"""Patterns that are sought on request, beside those of a finished tiny run."""

import pytest

import ffkv

pytestmark = pytest.mark.workflow


def test_a_pattern_that_is_sought_has_the_p_value_of_the_run(tiny):
    run = ffkv.open(tiny / "results/tiny")
    keys = run.files.details("keys/by_prefix").query("sample == 'trigger'")[["layer", "memory"]].drop_duplicates()
    common = 0
    for layer, memory in keys.itertuples(index=False):
        own = run.memory(int(layer), int(memory))
        assert own.sampled
        known, sought = (
            table.query("family == 'shallow'").set_index("label") for table in (own.patterns, own.seek_patterns())
        )
        both = known.index.intersection(sought.index)  # the other keys of the layer only move the q-values
        assert (
            known.loc[both, ["p_value", "prefixes", "chance"]] == sought.loc[both, ["p_value", "prefixes", "chance"]]
        ).all(None)
        common += len(both)
    assert common > len(keys) / 2
    others = {(0, memory) for memory in range(run.anatomy.layers[0].memories)} - {*map(tuple, keys.to_numpy().tolist())}
    assert not run.memory(*min(others)).sampled
