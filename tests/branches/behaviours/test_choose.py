"""From states to candidates: small cases by hand."""

import itertools

import numpy as np
import pandas as pd
import pytest

from ffkv.branches.behaviours.choose import measure_memories, measure_stability
from ffkv.branches.behaviours.stored import PromptStates, accuracy_of, join_states
from ffkv.branches.settings import Behaviour

PARTS = np.array(["choose", "estimate"] * 4)
ALL_TRUE = np.ones(8, bool)


def table(part=PARTS, positive=ALL_TRUE, labels="") -> pd.DataFrame:
    """Prompts of a file: pairs, or two lists; each is a group."""
    order = {"prompt": np.arange(len(part)), "order": np.arange(len(part)), "group": np.arange(len(part)).astype(str)}
    made = pd.DataFrame({"part": part, "positive": positive, "label": labels, "answer": -1, **order})
    return made.assign(patch=[[1] * bool(np.all(positive))] * len(part))


def states(contribution, screen=None, offset=(0, 2, 3), **others) -> PromptStates:
    """States of some prompts, from what matters [prompt, memory]."""
    contribution = np.array(contribution, np.float32)
    prompts, memories = contribution.shape
    one = np.zeros(prompts, np.float32)
    screen = np.zeros_like(contribution) if screen is None else np.array(screen, np.float32)
    made = {
        "difference": one,
        "patch_difference": one,
        "probability": one,
        "prompt": np.arange(prompts, dtype=np.int32),
    }
    made |= {"norm": np.ones(memories, np.float32), "coefficient": contribution, "change": contribution}
    made |= {"contribution": contribution, "screen": screen, "frozen_screen": screen, "attributes": {"run": 1}}
    return PromptStates(layer_offset=np.array(offset), **{**made, **others})


def test_shards_are_put_below_each_other():
    one, other = states([[1, 2, 3]], norm=np.float32([7, 8, 9])), states([[4, 5, 6], [7, 8, 9]])
    found = join_states([one, other], {})
    assert found.contribution.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]] and found.prompt.tolist() == [0, 0, 1]
    assert found.norm.tolist() == [7, 8, 9] and found.layer_offset.tolist() == [0, 2, 3]
    assert found.attributes == {"run": 1}


def test_accuracy_is_of_known_answers():
    assert accuracy_of(pd.DataFrame({"difference": [1.0, 0.0, -1.0, 2.0, np.nan]})) == 0.5
    assert np.isnan(accuracy_of(pd.DataFrame({"difference": [np.nan]})))


# Prompts of the two halves take turns. Four prompts have 2**4 assignments of signs.
CONTRIBUTION = [[1, 0, -4], [2, 0, -2], [1, 0, -4], [4, 0, -6], [1, 0, -4], [2, 0, -2], [1, 0, 2], [4, 0, -6]]
SCREEN = [[0, 1, 0], [8, 0, 0], [0, 2, 0], [8, 1, 0], [0, 3, 0], [8, 0, 0], [0, 4, 0], [8, 1, 0]]


def test_memories_are_tested_on_one_half_and_estimated_on_the_other():
    made = states(CONTRIBUTION, SCREEN, norm=np.float32([1, 2, 3]), frozen_screen=2 * np.float32(SCREEN))
    found = measure_memories(made, table(), Behaviour(prompts="p", candidates=1, effect_prompts=2), 0)
    assert found.iloc[:, :2].to_dict("list") == {"layer": [0, 0, 1], "memory": [0, 1, 0]}
    assert found.columns[:2].tolist() == ["layer", "memory"]
    numbers = ["contrast", "estimate", "coefficient", "screen", "screen_estimate", "frozen_screen", "frozen_estimate"]
    numbers += ["screen_measured", "frozen_measured", "smallest_p"]
    assert found[numbers].to_numpy().tolist() == [
        [1, 3, 2, 0, 8, 0, 16, 8, 16, 1 / 8],
        [0, 0, 0, 2.5, 0.5, 5, 1, 0.5, 1, 1 / 8],
        [-2.5, -4, -3.25, 0, 0, 0, 0, 0, 0, 1 / 8],
    ]
    # Of four equal numbers, two assignments are as large; of 4, 4, 4 and -2 those with sums of 10 or more.
    sums = [abs(np.dot(signs, [4, 4, 4, -2])) for signs in itertools.product((-1, 1), repeat=4)]
    p = [2 / 16, 1, np.mean(np.array(sums) >= 10)]
    assert found["p_value"].tolist() == p and found["q_value"].tolist() == [2 * p[0], 1, p[2]]
    assert found["screen_p"].tolist() == [1, 2 / 16, 1] and found["screen_q"].tolist() == [1, 2 / 16 * 2, 1]
    assert found["size"].tolist() == [1, 0, -7.5]
    assert found["by_contrast"].tolist() == [False, False, True]
    assert found["by_screen"].tolist() == [False, True, False]
    assert found[["estimate_low", "estimate_high"]].isna().all(axis=None)  # of four prompts


def test_each_layer_measure_and_seed_has_flips_of_its_own():
    """Of the same numbers in two layers."""
    made = states(values := np.random.default_rng(0).normal(0.2, 1, (32, 1)) * [1, 1], values, (0, 1, 2))
    prompts, its = table(np.tile(PARTS, 4), True), Behaviour(prompts="p", flips=1000)
    p = [measure_memories(made, prompts, its, seed) for seed in (0, 1)]
    assert len({*pd.concat(p)[["p_value", "screen_p"]].to_numpy().flat}) > 6  # of 8


def test_candidates_do_not_have_a_value_of_zero():
    found = measure_memories(states(CONTRIBUTION), table(), Behaviour(prompts="p", candidates=3), 0)
    assert found["by_contrast"].tolist() == [True, False, True] and not found["by_screen"].any()


def test_candidates_do_not_have_what_rounding_leaves_of_pairs_in_both_directions():
    """Three pairs and their mirror images in each half: the last memory alone does not cancel."""
    one = np.float32([[0.1, 0.7, 1e-8], [0.3, 0.11, 1e-8], [0.7, 0.13, 1e-8]])
    both = np.concatenate([one, one * np.float32([-1, -1, 1])])[[0, 4, 2, 3, 1, 5]]
    part = np.repeat(["choose", "estimate"], 6)
    found = measure_memories(
        states(np.tile(both, (2, 1))), table(part, np.ones(12, bool)), Behaviour(prompts="p", candidates=2), 0
    )
    assert (found["contrast"].abs() > 0).any() and found["contrast"][:2].abs().max() < 1e-15
    assert found["by_contrast"].tolist() == [False, False, True]


def test_two_lists_are_contrasted():
    """Two of the first half and one of the second are of the first list: their mean minus that of the others."""
    positive = np.array([True] * 3 + [False] * 5)
    made = states(CONTRIBUTION, np.square(SCREEN))
    found = measure_memories(made, table(positive=positive), Behaviour(prompts="p", flips=1000), 0)
    assert found["contrast"].tolist() == pytest.approx([0, 0, -4 - (-4 + 2) / 2])
    assert found["estimate"].tolist() == pytest.approx([2 - 10 / 3, 0, -2 - (-6 - 2 - 6) / 3])
    assert found["screen"].tolist() == pytest.approx([0, 5 / 2 - 25 / 2, 0])
    assert found["screen_p"].tolist() == [1, 2 / 6, 1]  # of 6 ways to choose two of 1, 4, 9, 16


def stability(made: PromptStates, labels=(), positive=ALL_TRUE, **settings) -> pd.DataFrame:
    labels = np.array([*labels, *[""] * (8 - len(labels))], object)
    its = Behaviour(prompts="p", bootstraps=10, **settings)
    return measure_stability(made, table(positive=positive, labels=labels), its, 0)


def test_sets_of_prompts_that_are_alike_are_equal():
    """Five pairs of sets of prompts drawn again, one of halves, five of random memories that are not 0."""
    values = [[5, 3, 0, 1, 0, 0]] * 8
    found = stability(states(values, np.array(values)[:, ::-1], (0, 6)), candidates=2)
    assert found["ranking"].tolist() == ["contrast"] * 11 + ["screen"] * 11
    assert found["compared"].tolist() == [*["bootstraps"] * 5, "halves", *["random"] * 5] * 2
    assert (found["first"] == "").all() and (found["second"] == "").all() and (found["memories"] == 2).all()
    alike = found["compared"] != "random"
    np.testing.assert_allclose(found[alike][["jaccard", "overlap"]], 1)
    assert set(found[~alike]["jaccard"]) == {1 / 3, 1.0}  # two of the same three


def test_halves_that_differ_have_nothing_in_common():
    values = [[9, 0, 0], [0, 0, 9]] * 4
    found = stability(states(values, None, (0, 3)), candidates=1).set_index("compared")
    assert found.loc["halves", ["jaccard", "overlap"]].tolist() == [0, 0]
    assert found.loc["bootstraps", "jaccard"].tolist() == [1] * 5  # of the first half alone
    assert set(found["ranking"]) == {"contrast"}  # without a screen


def test_labels_of_three_prompts_are_compared():
    """`b` has two prompts alone. Negative values are as large as positive ones."""
    values = [[9, 0, 1]] * 3 + [[0, 40, 1]] * 2 + [[0, 1, -9]] * 3
    found = stability(states(values, None, (0, 3)), ["c", "c", "c", "b", "b", "a", "a", "a"], candidates=2)
    of_labels = found[found["compared"] == "labels"]
    assert of_labels[["first", "second", "memories", "jaccard"]].to_numpy().tolist() == [["c", "a", 2, 1 / 3]]
    assert of_labels["overlap"].tolist() == pytest.approx([0.9 / 2])  # none on the first rank, one of two on the second
    of_labels = stability(states(np.array(values), None, (0, 3)), ["c"] * 3 + ["d"] * 5, candidates=1)
    assert of_labels.set_index("compared").loc["labels", ["jaccard", "overlap"]].tolist() == [0, 0]


def test_labels_of_two_lists_have_prompts_of_both():
    values = [[9, 0, 1]] * 4 + [[0, 9, 1]] * 4
    positive = np.array([True, True, False, False] * 2)
    labels = ["c"] * 4 + ["a"] * 4
    of_both = stability(states(values, None, (0, 3)), labels, positive, candidates=1)
    assert (of_both["compared"] == "labels").sum() == 1
    of_one = stability(states(values, None, (0, 3)), labels, np.array([True] * 5 + [False] * 3), candidates=1)
    assert not (of_one["compared"] == "labels").any()


def test_of_many_labels_twenty_are_compared():
    made, part = states(np.ones((69, 3)), None, (0, 3)), np.array(["choose", "estimate", "choose"] * 23)
    prompts = table(part, True, np.repeat([*"abcdefghijklmnopqrstuvw"], 3))
    found = measure_stability(made, prompts, Behaviour(prompts="p"), 0)
    of_labels = found[found["compared"] == "labels"]
    assert len(of_labels) == 20 * 19 / 2 and {*of_labels["first"], *of_labels["second"]} == {*"abcdefghijklmnopqrst"}


def test_sets_of_prompts_that_are_drawn_again_have_as_many_memories_as_candidates():
    """Each prompt has a memory of its own, which is first where it is drawn most often."""
    found = stability(states(np.eye(8), None, (0, 8)), candidates=1)
    of_draws = found.loc[found["compared"] == "bootstraps", "jaccard"]
    assert len(of_draws) == 5 and set(of_draws) == {0, 1}
