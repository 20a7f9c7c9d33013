"""Summaries of interventions: small cases by hand."""

import pandas as pd

from ffkv.branches.intervention.summaries import describe_memories


def test_memories_come_by_reach_then_size_then_place_then_side():
    """The largest effect comes first, whatever its sign. Each row has the top token of its own memory."""
    rows = [
        ("total", 1.0, 0, 0, "top"),
        ("direct", 9.0, 0, 0, "top"),
        ("total", -2.0, 1, 3, "top"),
        ("total", 2.0, 0, 5, "top"),
        ("total", 2.0, 0, 4, "top"),
        ("total", 2.0, 0, 4, "bottom"),
    ]
    table = pd.DataFrame(rows, columns=["reach", "specific", "layer", "memory", "side"])
    top_token = {(0, 0): 0, (1, 3): 1, (0, 5): 2, (0, 4): 3}
    found = describe_memories(table, top_token, ["a", "b", "c", "d"])
    assert found[["reach", "specific", "layer", "memory", "side", "token"]].to_numpy().tolist() == [
        ["total", 2.0, 0, 4, "bottom", "d"],
        ["total", 2.0, 0, 4, "top", "d"],
        ["total", 2.0, 0, 5, "top", "c"],
        ["total", -2.0, 1, 3, "top", "b"],
        ["total", 1.0, 0, 0, "top", "a"],
        ["direct", 9.0, 0, 0, "top", "a"],
    ]
    assert found.index.tolist() == [*range(6)] and "magnitude" not in found
