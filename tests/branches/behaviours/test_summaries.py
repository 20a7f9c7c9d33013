"""Summaries of a behaviour: small cases by hand."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.intervals import mean_interval, wilson
from ffkv.branches.behaviours import summarize, summary_tables
from ffkv.branches.behaviours.stored import NO_TOKEN, kind_of
from ffkv.branches.behaviours.words import LONG

NAN = float("nan")


def frame(names: str, *rows: tuple) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=names.split())


def prompts(*rows: tuple) -> pd.DataFrame:
    """Some prompts, from the ids of the other prompt of the pair, the answer, and whether it is of the first list."""
    return frame("patch answer positive", *rows).assign(unused="")


def test_the_kind_of_a_file():
    assert kind_of(prompts(([], 3, True), ([4], 3, True))) == "pairs"
    assert kind_of(prompts(([], NO_TOKEN, True), ([], NO_TOKEN, False))) == "lists"
    assert kind_of(prompts(([], NO_TOKEN, True), ([], NO_TOKEN, True))) == "prompts"
    assert kind_of(prompts(([], 3, True), ([], NO_TOKEN, False))) == "prompts"


MEMORIES = frame(
    "layer memory by_contrast by_screen screen_estimate frozen_estimate q_value screen_q screen_measured",
    (0, 1, True, False, 2.0, 1.0, 0.05, 0.05, 2.1),
    (0, 2, False, False, 9.0, NAN, 0.06, 1.0, 9.1),
    (1, 1, False, True, -0.5, NAN, 0.01, 1.0, -0.6),
).assign(smallest_p=0.05, frozen_measured=NAN)
CONTROLS = ("random_memories", "random_directions")
# Of memory (0, 1) the total effect is 4, and of 20 controls the first three have 2, -5 and 4. Of (1, 1) it is 0.5, and a control has 0.1.
LARGE = {0: (1, 3), 1: (-5, -5), 2: (4, 4)}
EFFECTS = frame(
    "layer memory reach prompt source control effect",
    *((0, 1, "total", n, "own", 0, effect) for n, effect in enumerate((3, 5))),
    *((0, 1, "total", n, "random_memories", c, LARGE.get(c, (0, 0))[n]) for c in range(20) for n in range(2)),
    *((0, 1, "total", n, "random_directions", 0, effect) for n, effect in enumerate((1, 0, 2))),
    *((0, 1, "direct", n, "own", 0, effect) for n, effect in enumerate((1, 2, 3, 5, 6, 7))),
    (0, 2, "total", 0, "own", 0, 77),
    (1, 1, "total", 0, "own", 0, 0.5),
    (1, 1, "total", 0, "random_memories", 0, 0.1),
)


GROUP = pd.Series([*"xyzuvv"])  # of each prompt


def top_tokens(memories: pd.DataFrame) -> list[str]:
    """The top token of the value of each row's memory."""
    return [{(0, 1): "b", (1, 1): "a"}.get(place, "") for place in zip(memories["layer"], memories["memory"])]


def of_memories() -> pd.DataFrame:
    return summarize.summarize_effects(EFFECTS, MEMORIES, GROUP, top_tokens)


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
            [6, 4, NAN, NAN, NAN, 1, NAN],
            [2, 4, 1 / 20, 1, 4.05, 3 / 21, 3 / 21],  # two of twenty controls are as large
            [0, *[NAN] * 6],
            [1, 0.5, 0.1, NAN, 0.1, 1 / 2, NAN],  # no p-value of one control is as small as 0.05
        ],
    )
    # Six prompts of five groups: the mean without each group.
    rest = np.array([23 / 5, 22 / 5, 21 / 5, 19 / 5, 11 / 4])
    np.testing.assert_allclose(found.loc[0, ["low", "high"]], mean_interval(4 + 4 * (rest.mean() - rest)))
    assert found.loc[1:, ["low", "high"]].isna().all(axis=None)  # fewer than five groups
    assert found["screen_estimate"].tolist() == [2, 2, -0.5, -0.5]


def test_an_effect_that_is_smaller_by_rounding_is_as_large():
    table = EFFECTS.copy()
    table.loc[(table["control"] == 2) & (table["source"] == "random_memories"), "effect"] *= 1 - 1e-6
    found = summarize.summarize_effects(table, MEMORIES, GROUP, top_tokens)
    assert found.loc[1, "effect_p"] == 3 / 21


def test_screen_and_effect_disagree_by_more_than_half_of_the_larger():
    """2.1 and 4 do not, -0.6 and 0.5 do. The total effect decides for both reaches, on the same prompts as the screen."""
    assert of_memories()["disagrees"].tolist() == [False, False, True, True]


def test_effects_that_were_not_measured_are_not_known():
    found = summarize.summarize_effects(EFFECTS[:0], MEMORIES, GROUP, top_tokens)
    numbers = found[["effect", "low", "high", *CONTROLS, "chance", "effect_p", "effect_q"]]
    assert len(numbers) == 4 and numbers.isna().all(axis=None) and {*numbers.dtypes} == {np.dtype(float)}
    assert (found["prompts"] == 0).all() and not found["disagrees"].any()


def test_no_candidates_have_no_effects():
    none = MEMORIES.assign(by_contrast=False, by_screen=False)
    assert summarize.summarize_effects(EFFECTS, none, GROUP, top_tokens).empty


def test_the_correlation_of_screen_and_effect():
    rows = [("total", 1, 2), ("total", 2, 1), ("total", 6, 6), ("total", 9, NAN), ("direct", 50, -50)]
    table = frame("reach screen effect", *rows)
    # Deviations (-2, -1, 3) and (-1, -2, 3): 13 / 14.
    assert summarize.correlation(table, "screen") == pytest.approx(13 / 14)
    assert np.isnan(summarize.correlation(table.iloc[1:], "screen"))  # two are left
    assert np.isnan(summarize.correlation(table.assign(screen=1), "screen"))
    assert np.isnan(summarize.correlation(table.assign(effect=1), "screen"))
    assert np.isnan(summarize.correlation(pd.DataFrame(), "screen"))


ANSWERS = frame("prompt difference floor", (0, 4.0, 0.0), (1, 2.0, -2.0), (2, 6.0, 2.0))
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
    """Prompts 2 and 0 have a behaviour of 4 each. Two groups have no interval."""
    found = summarize.summarize_sets(SETS, ANSWERS, GROUP)
    assert found[["choice", "size", "memories", "prompts"]].to_numpy().tolist() == [
        ["screen", 1, 1, 2],
        ["random", 1, 5, 2],
        ["all", 9, 9, 2],
    ]
    assert found[SHARES[::3]].to_numpy().tolist() == [[5 / 8, 3 / 8], [1.5 / 8, 1 / 16], [10 / 8, 1]]
    assert found[[*SHARES[1:3], *SHARES[4:]]].isna().all(axis=None)


def many(behaviours: list[float], lost: list[float]) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """A set on some prompts, from what each has and loses. The first two prompts are of one group."""
    number = np.arange(len(lost))
    answers = pd.DataFrame({"prompt": number, "difference": behaviours, "floor": 0.0})
    sets = pd.DataFrame({"choice": "screen", "size": 1, "draw": 0, "prompt": number, "memories": 1})
    patched = np.array(behaviours) - lost
    return sets.assign(patched=patched, kept=patched), answers, pd.Series(np.maximum(number, 1))


def test_intervals_of_shares_are_over_groups():
    """The share without each of five groups, by hand."""
    has, lost = np.array([2.0, 4, 4, 5, 3, 2]), np.array([1.0, 1, 3, 2, 2, 1])
    found = summarize.summarize_sets(*many(has.tolist(), lost.tolist())).iloc[0]
    rest = np.array([(lost.sum() - a) / (has.sum() - b) for a, b in ((2, 6), (3, 4), (2, 5), (2, 3), (1, 2))])
    assert found["completeness"] == 10 / 20
    expected = mean_interval(0.5 + 4 * (rest.mean() - rest))
    assert found[["completeness_low", "completeness_high"]].tolist() == pytest.approx(expected)
    # Group by group is not prompt by prompt.
    alone = summarize.summarize_sets(*many(has.tolist(), lost.tolist())[:2], pd.Series(range(6))).iloc[0]
    assert alone["completeness_high"] != found["completeness_high"]


@pytest.mark.parametrize("behaviours", [[1, 1, 9, -8, 8, -7, 6], [-2] * 7])
def test_there_is_no_share_of_what_may_be_nothing(behaviours):
    found = summarize.summarize_sets(*many([float(each) for each in behaviours], [1.0] * 7))
    assert found[SHARES].isna().all(axis=None)


@pytest.mark.parametrize("known", [NAN, 1.0])
def test_without_a_floor_the_behaviour_is_what_all_memories_carry(known):
    """Also if a single prompt has none. Both prompts have a behaviour of 5 then, all of which is no finding."""
    found = summarize.summarize_sets(SETS, ANSWERS.assign(floor=[known, NAN, NAN]), GROUP)
    np.testing.assert_array_equal(found["completeness"], [5 / 10, 1.5 / 10, NAN])
    np.testing.assert_array_equal(found["faithfulness"], [5 / 10, 2.5 / 10, NAN])


@pytest.mark.parametrize("choice", ["all_experts", "screen"])
def test_without_a_floor_no_set_of_all_memories_has_a_share(choice):
    """Whatever chose them: all experts, where all layers have some; or as many as there are."""
    every = SETS[SETS["choice"] == "all"].assign(choice=choice)
    found = summarize.summarize_sets(pd.concat([SETS, every]), ANSWERS.assign(floor=NAN), GROUP).set_index("choice")
    assert found[found["memories"] == 9][SHARES].isna().all(axis=None)
    assert found[found["memories"] < 9][SHARES[::3]].notna().all(axis=None)
    told = summarize.summarize_sets(pd.concat([SETS, every]), ANSWERS, GROUP)
    assert told[told["memories"] == 9]["completeness"].tolist() == [10 / 8] * 2


def test_side_effects_are_averaged_over_draws_then_over_prefixes():
    side_effects = frame(
        "choice size prefix divergence loss memories",
        ("screen", 1, 3, 1.0, 0.0, 1),
        ("screen", 1, 5, 3.0, -2.0, 1),
        ("random", 1, 3, 1.0, 2.0, 2),
        ("random", 1, 3, 2.0, 4.0, 4),
        ("random", 1, 5, 4.0, 9.0, 6),
    )
    found = summarize.summarize_side_effects(side_effects)
    names = ["choice", "size", "memories", "prefixes", "divergence", "loss"]
    assert found[names].to_numpy().tolist() == [["screen", 1, 1, 2, 2, -1], ["random", 1, 4.5, 2, 2.75, 6]]
    assert found.loc[0, ["divergence_low", "divergence_high"]].tolist() == [0, mean_interval(np.array([1.0, 3]))[1]]
    assert found.loc[1, ["loss_low", "loss_high"]].tolist() == [*mean_interval(np.array([3.0, 9]))]


OF_ANSWERS = frame(
    "difference patch_difference probability prompt",
    (0.5, 1.0, 0.5, 0),
    (-1.0, 3.0, 0.25, 1),
    (0.0, NAN, NAN, 4),
    (NAN, NAN, NAN, 5),
)


def test_the_row_of_a_behaviour():
    """Of three known answers one is right; a difference of 0 is not. Four prompts are of three groups."""
    of_sets = frame(
        "choice completeness completeness_low completeness_high", ("screen", 9, 9, 9), ("all", 0.5, 0.25, 0.75)
    )
    effects = frame(
        "reach effect screen_measured frozen_measured", *(("total", n, n, -n) for n in (1, 2, 4)), ("direct", 0, 9, 9)
    )
    row = summarize.summarize_behaviour(OF_ANSWERS, MEMORIES, GROUP, effects, of_sets)
    low, high = wilson(1, 3)
    assert row == {
        "prompts": 4,
        "groups": 3,
        "accuracy": pytest.approx(1 / 3),
        "low": float(low),
        "high": float(high),
        "explained": True,
        "difference": pytest.approx(-1 / 6),
        "patch_difference": 2,
        "probability": 0.375,
        "smallest_p": 0.05,
        "significant": 2,
        "screened": 1,
        "by_memories": 0.5,
        "by_memories_low": 0.25,
        "by_memories_high": 0.75,
        "pearson": pytest.approx(1),
        "frozen_pearson": pytest.approx(-1),
    }


def test_where_no_p_value_can_be_small_nothing_is_counted():
    few = MEMORIES.assign(smallest_p=0.0625)
    row = summarize.summarize_behaviour(OF_ANSWERS, few, GROUP, pd.DataFrame(), pd.DataFrame())
    assert np.isnan([row["significant"], row["screened"]]).all() and row["smallest_p"] == 0.0625
    assert summarize.summarize_layers(few)[["significant", "screened"]].isna().all(axis=None)


def test_the_row_of_lists_has_no_accuracy_and_no_effects():
    answers = OF_ANSWERS.assign(difference=NAN)
    row = summarize.summarize_behaviour(answers, MEMORIES, GROUP, pd.DataFrame(), pd.DataFrame())
    names = ("accuracy", "low", "high", "by_memories", "by_memories_low", "by_memories_high", "pearson")
    assert np.isnan([row[name] for name in names]).all() and row["explained"] is False


def test_layers_of_a_behaviour():
    found = summarize.summarize_layers(MEMORIES)
    names = ["layer", "memories", "significant", "screened", "screen", "frozen_screen"]
    np.testing.assert_array_equal(found[names], [[0, 2, 1, 1, 11, 1], [1, 1, 1, 0, -0.5, NAN]])


# Two prompts of the one group and one of the other; attention does 3, 1 and 2 of 4, 4 and 1.
WRITERS = frame(
    "reach positions prompt layer writer effect",
    *(("total", "last", prompt, 0, "attention", effect) for prompt, effect in zip((2, 3, 4), (3.0, 1.0, 2.0))),
    *(("total", "last", prompt, -1, "everything", effect) for prompt, effect in zip((2, 3, 4), (4.0, 4.0, 1.0))),
)


def test_shares_of_writers_are_of_means_over_prompts():
    """3 and 1 and 2 of 4 and 4 and 1; with six groups there is an interval, and without a whole above 0 there is no share."""
    rows = summarize.summarize_writers(WRITERS, GROUP).set_index("writer")
    assert rows["prompts"].tolist() == [3, 3] and rows["effect"].tolist() == [2, 3]
    assert rows["share"].to_dict() == {"attention": pytest.approx(2 / 3), "everything": 1}
    assert rows[["low", "high", "share_low", "share_high"]].isna().all(axis=None)  # fewer than five groups
    none = summarize.summarize_writers(WRITERS.assign(effect=-WRITERS["effect"]), GROUP)
    assert none["share"].isna().all() and none["effect"].tolist() == [-2, -3]
    six = pd.concat([WRITERS.assign(prompt=WRITERS["prompt"] + 3 * half) for half in (0, 1)])
    many = summarize.summarize_writers(six, pd.Series({prompt: str(prompt) for prompt in range(2, 8)})).set_index(
        "writer"
    )
    assert (many["share_low"] <= many["share"]).all() and (many["share"] <= many["share_high"]).all()
    assert many.loc["attention", "low"] < 2 < many.loc["attention", "high"]
    assert many.loc["everything", ["share_low", "share_high"]].tolist() == [1, 1]
    assert summarize.summarize_writers(WRITERS[:0], GROUP).empty


def test_stability_is_averaged_over_pairs():
    rows = [("screen", "halves", 5, 0.5, 0.25), ("screen", "halves", 5, 1.0, 0.75), ("contrast", "labels", 3, 0.0, 0.5)]
    found = summarize.summarize_stability(frame("ranking compared memories jaccard overlap", *rows))
    names = ["ranking", "compared", "pairs", "memories", "jaccard", "overlap"]
    assert found[names].to_numpy().tolist() == [
        ["screen", "halves", 2, 5, 0.75, 0.5],
        ["contrast", "labels", 1, 3, 0, 0.5],
    ]


def test_every_table_of_a_behaviour():
    """With sets, and without any."""
    own = {
        "encode": prompts(*[([4], 3, True)] * 6).assign(
            unused=["", LONG, *[""] * 4],
            prompt=range(6),
            group=GROUP,
            part=["choose", "estimate", "estimate", *[""] * 3],
            answer_rest=[[], [], [5], [5], [], []],
            wrong_rest=[[5, 6], [], [5], [], [], []],
            grouped_by="words",
        ),
        "answers": ANSWERS.assign(probability=0.5, patch_difference=ANSWERS["floor"]),
        "memories": MEMORIES,
        "effects": EFFECTS,
        "sets": SETS,
        "parts": frame("choice prompt share kept"),
        "writers": WRITERS,
        "side_effects": frame("choice size prefix divergence loss memories", ("screen", 1, 3, 1.0, 0.0, 1)),
        "stability": frame("ranking compared memories jaccard overlap", ("screen", "halves", 5, 0.5, 0.25)),
    }
    found = summarize.summarize(own, top_tokens)
    assert found.keys() == {*summary_tables.SUMMARIES}
    row = found[summary_tables.SUMMARY].iloc[0]
    assert (row["kind"], row["lines"], row["prompts"], row["by_memories"]) == ("pairs", 6, 3, 10 / 8)
    assert (row["groups"], row["several"], row["grouped_by"]) == (3, 2, "words")  # of the prompts that are used
    assert found[summary_tables.UNUSED].to_dict("list") == {"unused": ["", LONG], "prompts": [5, 1]}
    pd.testing.assert_frame_equal(found[summary_tables.OF_MEMORIES], of_memories())
    pd.testing.assert_frame_equal(found[summary_tables.OF_SETS], summarize.summarize_sets(SETS, own["answers"], GROUP))
    assert [
        len(found[table])
        for table in (summary_tables.BY_LAYER, summary_tables.OF_SIDE_EFFECTS, summary_tables.OF_STABILITY)
    ] == [2, 1, 1]
    nothing = summarize.summarize(own | {"sets": SETS[:0]}, top_tokens)
    assert nothing[summary_tables.OF_SETS].empty and not nothing[summary_tables.SUMMARY]["explained"].any()
