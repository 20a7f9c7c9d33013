"""CPR and CMD: by hand, and as the sum of trapezoids of what a planted model keeps."""

import numpy as np
import pandas as pd
import pytest

from ffkv.branches.behaviours.measure import choose_parts, choose_sets
from ffkv.branches.behaviours.summarize import summarize_areas
from ffkv.branches.behaviours.words import SHARES
from tests.branches.behaviours.conftest import make
from tests.branches.behaviours.test_planted import PAIRS, SETTINGS

GROUP = pd.Series([*"uvwxyz"])
SETS = pd.DataFrame({"choice": "all", "prompt": range(6), "patched": -1.0})


def summarized(kept, difference: float = 3.0) -> list[dict]:
    """The areas of six prompts, on which m is `kept` of the share; it is -1 if all memories are patched."""
    parts = [
        {"choice": "screen", "prompt": n, "share": share, "kept": kept(share)} for n in range(6) for share in SHARES
    ]
    answers = pd.DataFrame({"prompt": range(6), "difference": difference})
    return summarize_areas(pd.DataFrame(parts), SETS, answers, GROUP).to_dict("records")


def test_areas_by_hand():
    [line] = summarized(lambda share: -1 + 4 * share)  # f is the share
    assert line["cpr"] == pytest.approx((1 - 0.001**2) / 2) and line["cmd"] == pytest.approx((1 - 0.001) ** 2 / 2)
    assert line["cpr_low"] == pytest.approx(line["cpr"]) == line["cpr_high"]  # all groups are alike
    [at_once] = summarized(lambda share: 3.0)
    assert (at_once["cpr"], at_once["cmd"]) == pytest.approx((0.999, 0))
    [double] = summarized(lambda share: 7.0)  # memories that work against the behaviour are not in it
    assert (double["cpr"], double["cmd"]) == pytest.approx((2 * 0.999, 0.999))


def test_no_end_of_an_area_between_f_and_1_is_below_0():
    """One prompt lacks all, the others nothing. An area below f can be below 0, and so can its interval."""
    parts = [
        {"choice": "screen", "prompt": n, "share": share, "kept": -1.0 if n == 0 and share < 1 else 3.0}
        for n in range(6)
        for share in SHARES
    ]
    answers = pd.DataFrame({"prompt": range(6), "difference": 3.0})
    [line] = summarize_areas(pd.DataFrame(parts), SETS, answers, GROUP).to_dict("records")
    assert line["cmd_low"] == 0 < line["cmd"] < line["cmd_high"]
    [line] = summarized(lambda share: -1 - 4 * share)  # all groups are alike
    assert line["cpr_low"] == pytest.approx(line["cpr"]) and line["cpr"] < 0


def test_no_area_of_what_is_not_there():
    assert summarized(lambda share: share, difference=-1.5) == []


def test_parts_are_the_first_of_each_ranking():
    screen, sizes = np.array([0.0, -3, 2, 1]), np.array([1.0, 5, 2, 0])
    parts = choose_parts(screen, sizes, np.random.default_rng(0))
    found = {(part.choice, part.share): part.memories.tolist() for part in parts}
    assert [found["screen", share] for share in (0.001, 0.2, 0.5, 1.0)] == [[2], [2], [2, 3], [0, 1, 2, 3]]
    assert [found["size", share] for share in (0.001, 0.5, 1.0)] == [[1], [1, 2], [0, 1, 2, 3]]
    assert {*found["shuffled", 0.2]} < {*found["shuffled", 0.5]} and len(parts) == 3 * len(SHARES)


def test_the_longest_changes_are_a_set_beside():
    sizes = np.array([1.0, 5, 2, 0])
    sets = choose_sets(np.array([0.0, -3, 2, 1]), sizes, [1, 2], 1, np.random.default_rng(0))
    assert [each.memories.tolist() for each in sets if each.choice == "size"] == [[1], [1, 2]]


def test_areas_of_a_planted_model(planted_inputs, tmp_path):
    made = make(tmp_path, planted_inputs, prompts=PAIRS, **SETTINGS)
    parts = made.parts.set_index(["choice", "share", "prompt"])["kept"].astype(float).sort_index()
    sets = made.sets.set_index(["choice", "size", "prompt"]).sort_index()
    difference = made.answers.set_index("prompt")["difference"].astype(float)
    prompts = sorted({*made.sets["prompt"]})
    # The whole model is what it is; and 1 of 12 memories, and 6 of them, are sets, too (batches of other sizes round otherwise).
    for choice in ("screen", "size", "shuffled"):
        np.testing.assert_allclose(parts[choice, 1.0].loc[prompts], difference.loc[prompts], atol=1e-4)
    for choice, share, size in (("screen", 0.001, 1), ("screen", 0.5, 6), ("size", 0.05, 1), ("size", 0.5, 6)):
        np.testing.assert_allclose(parts[choice, share], sets.loc[(choice, size), "kept"], atol=1e-4)
    none = sets.loc[("all", 12), "patched"].astype(float).mean()
    table = made.summaries["behaviour_areas"].set_index("choice")
    for choice, row in table.iterrows():
        f = np.array(
            [(parts[choice, share].mean() - none) / (difference.loc[prompts].mean() - none) for share in SHARES]
        )
        steps = np.diff(SHARES)
        assert row["cpr"] == pytest.approx((steps * (f[1:] + f[:-1]) / 2).sum(), abs=1e-5)
        assert row["cmd"] == pytest.approx((steps * (abs(1 - f[1:]) + abs(1 - f[:-1])) / 2).sum(), abs=1e-5)
    assert table.loc["screen", "cpr"] > table.loc["shuffled", "cpr"]
