"""Summaries of a behaviour: small cases by hand."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.intervals import mean_interval, wilson
from ffkv.branches.behaviours import summaries, tables
from ffkv.branches.behaviours.encode import NO_TOKEN
from ffkv.branches.behaviours.words import LONG

NAN = float("nan")


def frame(names: str, *rows: tuple) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=names.split())


def prompts(*rows: tuple) -> pd.DataFrame:
    """Some prompts, from the ids of the other prompt of the pair, the answer, and whether it is of the first list."""
    return frame("patch answer positive", *rows).assign(unused="")


def test_the_kind_of_a_file():
    assert summaries.kind_of(prompts(([], 3, True), ([4], 3, True))) == "pairs"
    assert summaries.kind_of(prompts(([], NO_TOKEN, True), ([], NO_TOKEN, False))) == "lists"
    assert summaries.kind_of(prompts(([], NO_TOKEN, True), ([], NO_TOKEN, True))) == "prompts"
    assert summaries.kind_of(prompts(([], 3, True), ([], NO_TOKEN, False))) == "prompts"


MEMORIES = frame(
    "layer memory by_contrast by_screen screen_estimate frozen_estimate q_value screen_q",
    (0, 1, True, False, 2.0, 1.0, 0.05, 0.05),
    (0, 2, False, False, 9.0, NAN, 0.06, 1.0),
    (1, 1, False, True, -0.5, NAN, 0.01, 1.0),
)
CONTROLS = ("random_memories", "random_directions")
# Of memory (0, 1) the total effect is 4, and three controls have 2, -5 and 4. Of (1, 1) it is 0.5, and a control has 0.1.
EFFECTS = frame(
    "layer memory reach source control effect",
    *((0, 1, "total", "own", 0, effect) for effect in (3, 5)),
    *((0, 1, "total", "random_memories", *each) for each in ((0, 1), (0, 3), (1, -5), (1, -5), (2, 4), (2, 4))),
    *((0, 1, "total", "random_directions", 0, effect) for effect in (1, 0, 2)),
    *((0, 1, "direct", "own", 0, effect) for effect in (1, 2, 3)),
    (0, 2, "total", "own", 0, 77),
    (1, 1, "total", "own", 0, 0.5),
    (1, 1, "total", "random_memories", 0, 0.1),
)


def of_memories() -> pd.DataFrame:
    return summaries.summarize_effects(EFFECTS, MEMORIES, {(0, 1): 1, (1, 1): 0}, ["a", "b"])


def test_effects_of_candidates_beside_their_controls():
    found = of_memories()
    assert found[["layer", "memory", "reach", "token"]].to_numpy().tolist() == [
        [0, 1, "direct", "b"],
        [0, 1, "total", "b"],
        [1, 1, "direct", "a"],
        [1, 1, "total", "a"],
    ]
    numbers = ["prompts", "effect", "random_memories", "random_directions", "chance", "effect_p", "effect_q"]
    np.testing.assert_allclose(
        found[numbers].to_numpy(float),
        [
            [3, 2, NAN, NAN, NAN, 1, 1],
            [2, 4, 1 / 3, 1, 4.9, 3 / 4, 3 / 4],  # two of three controls are as large
            [0, *[NAN] * 6],
            [1, 0.5, 0.1, NAN, 0.1, 1 / 2, 3 / 4],
        ],
    )
    bounds = [mean_interval(np.array([1.0, 2, 3])), mean_interval(np.array([3.0, 5])), (NAN, NAN), (NAN, NAN)]
    np.testing.assert_array_equal(found[["low", "high"]], bounds)
    assert found["screen_estimate"].tolist() == [2, 2, -0.5, -0.5]


def test_screen_and_effect_disagree_by_more_than_half_of_the_larger():
    """2 and 4 do not, -0.5 and 0.5 do. The total effect decides for both reaches."""
    assert of_memories()["disagrees"].tolist() == [False, False, True, True]


def test_effects_that_were_not_measured_are_not_known():
    found = summaries.summarize_effects(EFFECTS[:0], MEMORIES, {(0, 1): 1, (1, 1): 0}, ["a", "b"])
    numbers = found[["effect", "low", "high", *CONTROLS, "chance", "effect_p", "effect_q"]]
    assert len(numbers) == 4 and numbers.isna().all(axis=None) and {*numbers.dtypes} == {np.dtype(float)}
    assert (found["prompts"] == 0).all() and not found["disagrees"].any()


def test_no_candidates_have_no_effects():
    none = MEMORIES.assign(by_contrast=False, by_screen=False)
    assert summaries.summarize_effects(EFFECTS, none, {}, []).empty


def test_the_correlation_of_screen_and_effect():
    rows = [("total", 1, 2), ("total", 2, 1), ("total", 6, 6), ("total", 9, NAN), ("direct", 50, -50)]
    table = frame("reach screen effect", *rows)
    # Deviations (-2, -1, 3) and (-1, -2, 3): 13 / 14.
    assert summaries.correlation(table, "screen") == pytest.approx(13 / 14)
    assert np.isnan(summaries.correlation(table.iloc[1:], "screen"))  # two are left
    assert np.isnan(summaries.correlation(table.assign(screen=1), "screen"))
    assert np.isnan(summaries.correlation(table.assign(effect=1), "screen"))
    assert np.isnan(summaries.correlation(pd.DataFrame(), "screen"))


ANSWERS = frame("prompt difference patch_difference", (0, 4.0, 0.0), (1, 2.0, -2.0), (2, 6.0, 2.0))
SETS = frame(
    "choice size draw prompt patched kept memories",
    ("screen", 1, 0, 2, 4.0, 4.0, 1),
    ("screen", 1, 0, 0, 1.0, 1.0, 1),
    ("random", 1, 0, 2, 6.0, 2.0, 2),
    ("random", 1, 1, 2, 4.0, 2.0, 4),
    ("random", 1, 0, 0, 4.0, 0.0, 6),
    ("random", 1, 1, 0, 3.0, 1.0, 8),
    ("all", 9, 0, 0, -1.0, 4.0, 9),
    ("all", 9, 0, 2, 1.0, 6.0, 9),
)
SHARES = ["completeness", "completeness_low", "completeness_high"]
SHARES += ["faithfulness", "faithfulness_low", "faithfulness_high"]


def test_shares_of_sets_by_hand():
    """Prompts 2 and 0 have a behaviour of 4 each. Drawn again, either can be there twice: these are the ends of the intervals."""
    found = summaries.summarize_sets(SETS, ANSWERS, 0)
    assert found[["choice", "size", "memories", "prompts"]].to_numpy().tolist() == [
        ["screen", 1, 1, 2],
        ["random", 1, 5, 2],
        ["all", 9, 9, 2],
    ]
    assert found[SHARES].to_numpy().tolist() == [
        [5 / 8, 1 / 2, 3 / 4, 3 / 8, 1 / 4, 1 / 2],
        [1.5 / 8, 1 / 8, 1 / 4, 1 / 16, 0, 1 / 8],
        [10 / 8, 5 / 4, 5 / 4, 1, 1, 1],
    ]


def test_intervals_are_of_the_draws_alone(monkeypatch):
    monkeypatch.setattr(summaries, "BOOTSTRAPS", 1)
    found = summaries.summarize_sets(SETS, ANSWERS, 0).iloc[0]
    assert found["completeness_low"] == found["completeness_high"] != found["completeness"]


@pytest.mark.parametrize("known", [NAN, 1.0])
def test_without_patch_prompts_the_behaviour_is_what_all_memories_carry(known):
    """Also if a single prompt has none. Both prompts have a behaviour of 5 then."""
    found = summaries.summarize_sets(SETS, ANSWERS.assign(patch_difference=[known, NAN, NAN]), 0)
    assert found["completeness"].tolist() == [5 / 10, 1.5 / 10, 1]
    assert found["faithfulness"].tolist() == [5 / 10, 2.5 / 10, 1]


def test_side_effects_are_averaged_over_draws_then_over_prefixes():
    side_effects = frame(
        "choice size prefix divergence loss memories",
        ("screen", 1, 3, 1.0, 0.0, 1),
        ("screen", 1, 5, 3.0, -2.0, 1),
        ("random", 1, 3, 1.0, 2.0, 2),
        ("random", 1, 3, 2.0, 4.0, 4),
        ("random", 1, 5, 4.0, 9.0, 6),
    )
    found = summaries.summarize_side_effects(side_effects)
    names = ["choice", "size", "memories", "prefixes", "divergence", "loss"]
    assert found[names].to_numpy().tolist() == [["screen", 1, 1, 2, 2, -1], ["random", 1, 4.5, 2, 2.75, 6]]
    assert found.loc[0, ["divergence_low", "divergence_high"]].tolist() == [*mean_interval(np.array([1.0, 3]))]
    assert found.loc[1, ["loss_low", "loss_high"]].tolist() == [*mean_interval(np.array([3.0, 9]))]


OF_ANSWERS = frame(
    "difference patch_difference probability",
    (0.5, 1.0, 0.5),
    (-1.0, 3.0, 0.25),
    (0.0, NAN, NAN),
    (NAN, NAN, NAN),
)


def test_the_row_of_a_behaviour():
    """Of three known answers one is right; a difference of 0 is not."""
    of_sets = frame(
        "choice completeness completeness_low completeness_high", ("screen", 9, 9, 9), ("all", 0.5, 0.25, 0.75)
    )
    effects = frame(
        "reach effect screen_estimate frozen_estimate", *(("total", n, n, -n) for n in (1, 2, 4)), ("direct", 0, 9, 9)
    )
    row = summaries.summarize_behaviour(OF_ANSWERS, MEMORIES, effects, of_sets)
    low, high = wilson(1, 3)
    assert row == {
        "prompts": 4,
        "accuracy": pytest.approx(1 / 3),
        "low": float(low),
        "high": float(high),
        "explained": True,
        "difference": pytest.approx(-1 / 6),
        "patch_difference": 2,
        "probability": 0.375,
        "significant": 2,
        "screened": 1,
        "by_memories": 0.5,
        "by_memories_low": 0.25,
        "by_memories_high": 0.75,
        "pearson": pytest.approx(1),
        "frozen_pearson": pytest.approx(-1),
    }


def test_the_row_of_lists_has_no_accuracy_and_no_effects():
    answers = OF_ANSWERS.assign(difference=NAN)
    row = summaries.summarize_behaviour(answers, MEMORIES, pd.DataFrame(), pd.DataFrame())
    names = ("accuracy", "low", "high", "by_memories", "by_memories_low", "by_memories_high", "pearson")
    assert np.isnan([row[name] for name in names]).all() and row["explained"] is False


def test_layers_of_a_behaviour():
    found = summaries.summarize_layers(MEMORIES)
    names = ["layer", "memories", "significant", "screened", "screen", "frozen_screen"]
    np.testing.assert_array_equal(found[names], [[0, 2, 1, 1, 11, 1], [1, 1, 1, 0, -0.5, NAN]])


def test_stability_is_averaged_over_pairs():
    rows = [("screen", "halves", 5, 0.5, 0.25), ("screen", "halves", 5, 1.0, 0.75), ("contrast", "labels", 3, 0.0, 0.5)]
    found = summaries.summarize_stability(frame("ranking compared memories jaccard overlap", *rows))
    names = ["ranking", "compared", "pairs", "memories", "jaccard", "overlap"]
    assert found[names].to_numpy().tolist() == [
        ["screen", "halves", 2, 5, 0.75, 0.5],
        ["contrast", "labels", 1, 3, 0, 0.5],
    ]


def test_every_table_of_a_behaviour():
    """With sets, and without any."""
    own = {
        "encode": prompts(([4], 3, True), ([4], 3, True), ([], 3, True)).assign(unused=["", LONG, ""]),
        "answers": ANSWERS.assign(probability=0.5),
        "memories": MEMORIES,
        "effects": EFFECTS,
        "sets": SETS,
        "side_effects": frame("choice size prefix divergence loss memories", ("screen", 1, 3, 1.0, 0.0, 1)),
        "stability": frame("ranking compared memories jaccard overlap", ("screen", "halves", 5, 0.5, 0.25)),
    }
    found = summaries.summarize(own, {(0, 1): 1, (1, 1): 0}, ["a", "b"], 0)
    assert found.keys() == {*tables.SUMMARIES}
    row = found[tables.SUMMARY].iloc[0]
    assert (row["kind"], row["lines"], row["prompts"], row["by_memories"]) == ("pairs", 3, 3, 10 / 8)
    assert found[tables.UNUSED].to_dict("list") == {"unused": ["", LONG], "prompts": [2, 1]}
    pd.testing.assert_frame_equal(found[tables.OF_MEMORIES], of_memories())
    pd.testing.assert_frame_equal(found[tables.OF_SETS], summaries.summarize_sets(SETS, own["answers"], 0))
    assert [len(found[table]) for table in (tables.BY_LAYER, tables.OF_SIDE_EFFECTS, tables.OF_STABILITY)] == [2, 1, 1]
    nothing = summaries.summarize(own | {"sets": SETS[:0]}, {(0, 1): 1, (1, 1): 0}, ["a", "b"], 0)
    assert nothing[tables.OF_SETS].empty and not nothing[tables.SUMMARY]["explained"].any()
