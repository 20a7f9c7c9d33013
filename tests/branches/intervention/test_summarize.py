"""Removals beside their controls, and summaries of interventions: small cases by hand."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.intervals import mean_interval, wilson
from ffkv.base.multiple_tests import permutation_p
from ffkv.branches.intervention.summarize import describe_memories, summarize_doses, summarize_kept, summarize_sources
from ffkv.branches.intervention.tables import SOURCES
from ffkv.branches.intervention.units import UnitResults, add_q_values, choose_silent, compare_with_controls


def test_memories_come_by_reach_then_size_then_place_then_side():
    """The largest effect comes first, whatever its sign. Each row has the top token of its own memory."""
    expected = [
        ["total", 2.0, 0, 4, "bottom", "d"],
        ["total", 2.0, 0, 4, "top", "d"],
        ["total", 2.0, 0, 5, "top", "c"],
        ["total", -2.0, 1, 3, "top", "b"],
        ["total", 1.0, 0, 0, "top", "a"],
        ["direct", 9.0, 0, 0, "top", "a"],
    ]
    names = ["reach", "specific", "layer", "memory", "side", "token"]
    table = pd.DataFrame([expected[n] for n in (4, 5, 3, 2, 1, 0)], columns=names)
    found = describe_memories(table.drop(columns="token"), table["token"].tolist())
    assert found[names].to_numpy().tolist() == expected
    assert found.index.tolist() == [*range(6)] and "magnitude" not in found


def test_the_removal_beside_its_controls_by_hand():
    """Only the memories themselves have q-values: one of 0.05 counts. A control that no memory has is a row of nothing."""
    own = {"own": [-1.0, -2, -6, 0], "q_value": [0.05, 0.01, 0.051, 1]}
    table = pd.DataFrame({"layer": 2, "side": "positive", "reach": "total", **dict.fromkeys(SOURCES, np.nan)} | own)
    table["random_memories"] = [3, np.nan, 5, np.nan]
    rows = summarize_sources(table).set_index("source")
    assert rows.index.tolist() == [*SOURCES] and rows[["layer", "side", "reach"]].drop_duplicates().size == 3
    assert rows.loc["own", ["memories", "mean", "significant"]].tolist() == [4, -2.25, 2]
    assert rows.loc["own", ["low", "high"]].tolist() == [*mean_interval(np.array(own["own"]))]
    assert rows.loc["random_memories", ["memories", "mean"]].tolist() == [2, 4]
    memories, *nothing = rows.loc["placebo", ["memories", "mean", "low", "high"]].tolist()
    assert memories == 0 and np.isnan(nothing).all()
    assert rows["significant"].isna().tolist() == [False, *[True] * 5]


def test_doses_are_averaged_over_prefixes_then_over_memories():
    """A memory with two prefixes counts as much as one with a single one. `mean` has no factor."""
    rows = [
        (0, 4, "scale", 2.0, "own", 1.0, 0.0, 3.0, True),
        (0, 4, "scale", 2.0, "own", 3.0, 4.0, 5.0, False),
        (1, 4, "scale", 2.0, "own", 6.0, -2.0, 0.0, False),
        (0, 4, "scale", 2.0, "placebo", 99.0, 99.0, 99.0, True),
        (0, 4, "mean", np.nan, "own", 7.0, 7.0, 7.0, True),
    ]
    names = ["layer", "memory", "change", "scale", "source", "top", "next", "divergence", "changed"]
    table = pd.DataFrame(rows, columns=names).assign(side="positive", reach="direct")
    found = summarize_doses(table).set_index(["layer", "change"])
    assert found.index.tolist() == [(-1, "mean"), (-1, "scale"), (0, "mean"), (0, "scale"), (1, "scale")]
    numbers = ["scale", "memories", "top", "next", "divergence", "changed"]
    assert found.loc[(-1, "scale"), numbers].tolist() == [2, 2, 4, 0, 2, 0.25]
    assert found.loc[(0, "scale"), numbers].tolist() == [2, 1, 2, 2, 4, 0.5]
    assert found.loc[(-1, "mean"), numbers[1:]].tolist() == [1, 7, 7, 7, 1] and np.isnan(found["scale"].iloc[0])
    assert found.loc[(-1, "scale"), ["low", "high"]].tolist() == [*mean_interval(np.array([2.0, 6.0]))]
    assert (found["side"] == "positive").all() and (found["reach"] == "direct").all()


def test_kept_memories_by_hand():
    """Of two layers, and of two numbers of memories that are kept."""
    rows = [(0, "largest", 1, True, 0.5), (0, "largest", 1, False, 1.5), (0, "largest", 8, True, 0.0)]
    names = ["layer", "choice", "kept", "unchanged", "divergence"]
    found = summarize_kept(pd.DataFrame([*rows, (1, "random", 1, False, 2.0)], columns=names))
    expected = [(0, "largest", 1, 2, 1, 0.5, 1), (0, "largest", 8, 1, 1, 1, 0), (1, "random", 1, 1, 0, 0, 2)]
    names = ["layer", "choice", "kept", "prefixes", "unchanged", "share", "divergence"]
    assert [*found[names].itertuples(index=False, name=None)] == expected
    low, high = wilson(np.array([1, 1, 0]), np.array([2, 1, 1]))
    assert (found["low"].tolist(), found["high"].tolist()) == (low.tolist(), high.tolist())


def test_a_removal_beside_its_controls_by_hand():
    """Two prefixes; the total effect has no control. Other changes of the coefficient do not count."""
    names = ["reach", "source", "scale", "top", "coefficient", "size", "next", "divergence", "changed"]
    rows = [
        ("direct", "own", 0.0, -2.0, 1.0, 4.0, 0.5, 0.25, True),
        ("direct", "own", 0.0, -4.0, 3.0, 6.0, 1.5, 0.75, False),
        ("direct", "own", 2.0, 99.0, 1.0, 4.0, 99.0, 99.0, True),
        ("direct", "own", np.nan, 99.0, 1.0, 4.0, 99.0, 99.0, True),
        ("direct", "placebo", 0.0, 7.0, 0.1, 0.1, 99.0, 99.0, True),
        ("direct", "placebo", 0.0, 9.0, 0.1, 0.1, 99.0, 99.0, True),
        ("total", "own", 0.0, -1.0, 1.0, 4.0, 0.0, 0.0, False),
    ]
    place = {"layer": 3, "memory": 5, "side": "positive"}
    unit = UnitResults(
        [place | dict(zip(names, row, strict=True)) for row in rows],
        {
            ("direct", "random_memories"): [np.array([1.0, -3.0]), np.array([3.0, -5.0])],
            ("direct", "random_directions"): [np.array([1.0, 2.0]), np.array([3.0, 4.0])],
            ("direct", "similar_size"): [np.array([1.0, 3.0]), np.array([5.0])],
        },
        {"direct": [1.0, 2.0], "total": [3.0]},
    )
    direct, total = compare_with_controls(unit)
    prefixes = {"prefixes": 2, "silent_prefixes": 2, "similar_prefixes": 2}
    controls = {"random_directions": 2.5, "similar_size": 3.5, "placebo": 8, "other_tokens": 1.5}
    controls |= {"random_memories": -1}  # of 2 and -4, the means over prefixes
    means = {"coefficient": 2, "size": 5, "next": 1, "divergence": 0.5, "changed": 0.5}
    tested = {"own": -3, "specific": -2, "p_value": pytest.approx(2 / 3)}
    assert direct == place | {"reach": "direct"} | prefixes | controls | means | tested
    assert [total[name] for name in ("reach", "prefixes", "silent_prefixes", "similar_prefixes")] == ["total", 1, 0, 0]
    assert (total["own"], total["other_tokens"], total["p_value"]) == (-1, 3, 1)
    unknown = ("random_memories", "random_directions", "similar_size", "placebo", "specific")
    assert np.isnan([total[name] for name in unknown]).all()


def test_p_values_are_adjusted_for_the_memories_of_a_layer_and_a_reach():
    rows = [(0, "total", 0.01), (1, "total", 0.04), (0, "total", 0.04), (0, "direct", 0.04), (0, "total", 0.9)]
    found = add_q_values(pd.DataFrame(rows, columns=["layer", "reach", "p_value"]))
    assert found["q_value"].tolist() == pytest.approx([0.03, 0.04, 0.06, 0.04, 0.9])
    assert found["p_value"].tolist() == [0.01, 0.04, 0.04, 0.04, 0.9]


def test_p_values_by_hand():
    assert permutation_p(-3.0, np.array([1.0, -2.0, 3.0, 4.0])) == 3 / 5
    assert permutation_p(9.0, np.array([1.0, -2.0, 3.0, 4.0])) == 1 / 5
    assert permutation_p(0.0, np.zeros(4)) == 1


def test_a_placebo_can_have_an_effect():
    found = choose_silent(np.array([2.0, -2.0]), np.array([0.5, -0.01, 0.0, 0.09, -0.11]), 0.05, 10)
    assert found.tolist() == [3, 1]  # not 2, where the removal of nothing changes nothing
    assert choose_silent(np.array([2.0, -2.0]), np.array([0.5, 0.01, 0.03, -0.03]), 0.05, 1).tolist() == [2]
    assert choose_silent(np.array([1.0]), np.array([0.5]), 0.05, 1).tolist() == []
