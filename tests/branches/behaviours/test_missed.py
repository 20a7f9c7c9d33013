"""What the screen missed: strata, exact bounds that cover, and a memory whose gradient is 0 although it has an effect."""

import math

import numpy as np
import pandas as pd
import pytest
from transformers import AutoModelForCausalLM

from ffkv.branches.behaviours.missed import STRATA, draw_outside, most_of, strata_of
from ffkv.branches.behaviours.summarize import summarize_missed
from tests.branches.behaviours.conftest import make
from tests.branches.behaviours.test_planted import PAIRS, WORDS, planted_checkpoint
from tests.branches.intervention.conftest import write_inputs


def memories(count: int, seed: int = 0) -> pd.DataFrame:
    """A layer of memories whose screen falls, the first of which is a candidate."""
    screen = np.sort(np.random.default_rng(seed).exponential(size=count))[::-1] * np.tile([1, -1], count)[:count]
    table = pd.DataFrame({"layer": 0, "memory": np.arange(count), "screen": screen})
    table["by_contrast"], table["by_screen"] = False, table["memory"] == 0
    return table


def measured(table: pd.DataFrame, rows: np.ndarray, effects: np.ndarray) -> pd.DataFrame:
    """Effects of drawn memories, as two prompts whose mean they are."""
    own = table.iloc[rows][["layer", "memory"]].assign(source="outside", reach="total")
    return pd.concat([own.assign(effect=effects[rows] - 1), own.assign(effect=effects[rows] + 1)])


CANDIDATES = pd.DataFrame(
    {"reach": ["total", "direct", "total"], "effect": [-0.5, 0.1, 0.2], "effect_q": [0.01, 0.01, 0.2]}
)


def test_the_ends_of_strata_grow_geometrically():
    strata = strata_of(memories(1025))
    assert strata[0] == -1
    assert np.bincount(strata[1:]).tolist() == [2, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert (np.diff(strata[1:]) >= 0).all()  # by size, whatever the sign
    assert strata_of(memories(1)).tolist() == [-1]


def test_so_many_are_drawn_of_each_stratum_and_all_of_a_small_one():
    table = memories(1025)
    rows = draw_outside(table, 140, np.random.default_rng(0))
    assert np.bincount(strata_of(table)[rows]).tolist() == [2, 2, 4, 8, 10, 10, 10, 10, 10, 74]
    assert len({*rows}) == len(rows) == 140
    assert (
        len(draw_outside(table, 0, np.random.default_rng(0)))
        == len(draw_outside(memories(1), 99, np.random.default_rng(0)))
        == 0
    )


@pytest.mark.parametrize(
    ("found", "drawn", "size"), [(0, 20, 20), (3, 20, 20), (0, 5, 40), (2, 7, 30), (5, 5, 12), (0, 0, 9)]
)
def test_the_bound_by_counting_draws(found, drawn, size):
    """The largest number of which so few are among the drawn ones in at least one of 200 draws."""

    def chance(number: int) -> float:
        ways = sum(math.comb(number, k) * math.comb(size - number, drawn - k) for k in range(found + 1))
        return ways / math.comb(size, drawn)

    possible = [number for number in range(found, size - drawn + found + 1) if chance(number) >= 0.005]
    assert most_of(found, drawn, size, 0.005) == max(possible)


def test_the_bound_covers_and_tightens_with_all():
    """In 200 models, true effects are drawn at random; the bound of all strata together has the true number in at least 95 %."""
    covered = 0
    for seed in range(200):
        table, generator = memories(2001, seed), np.random.default_rng([1, seed])
        effects = generator.standard_t(2, 2001) * generator.choice([0.05, 0.2])
        rows = draw_outside(table, 280, generator)
        found = summarize_missed(measured(table, rows, effects), table, CANDIDATES)
        assert (found["limit"] == 0.5).all() and found["memories"].sum() == 2000
        covered += found["most"].sum() >= (np.abs(effects[1:]) >= 0.5).sum()
    assert covered >= 190
    every = np.arange(1, 2001)
    found = summarize_missed(measured(table, every, effects), table, CANDIDATES)
    true = (np.abs(effects[1:]) >= 0.5).sum()
    assert found["most"].sum() == found["above"].sum() == true == pytest.approx(found["estimate"].sum())
    assert len(found) == STRATA and found["largest"].max() == pytest.approx(np.abs(effects[1:]).max())


def test_without_a_significant_candidate_nothing_is_counted():
    table = memories(201)
    rows = draw_outside(table, 28, np.random.default_rng(0))
    none = CANDIDATES.assign(effect_q=0.3)
    found = summarize_missed(measured(table, rows, np.ones(201)), table, none)
    assert found[["limit", "above", "estimate", "most"]].isna().all(None) and (found["largest"] == 1).all()
    assert summarize_missed(measured(table, rows[:0], np.ones(201)), table, none).empty


def test_a_memory_without_a_gradient_is_seen_outside_the_candidates(tmp_path):
    """Layer 0 has a memory that keeps one of layer 1 silent. That one's activation function is flat there, so no gradient passes it."""
    checkpoint = planted_checkpoint(tmp_path / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    first, second = (block.mlp for block in model.transformer.h)
    b, q = (WORDS.index(word) for word in "bo")
    first.c_proj.weight.data[4] = 0
    first.c_proj.weight.data[4, q] = -0.15
    second.c_fc.bias.data[0], second.c_proj.weight.data[0] = 0.8, 0
    second.c_proj.weight.data[0, b] = -8
    model.save_pretrained(checkpoint)
    words = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    files = write_inputs(tmp_path / "run", checkpoint, words)
    settings = {"candidates": 3, "controls": 3, "directions": 2, "sets": [1], "random_sets": 1}
    made = make(tmp_path / "with", files, prompts=PAIRS, **settings)
    hidden = made.memories.set_index(["layer", "memory"]).loc[0, 4]
    assert not hidden["by_screen"] and not hidden["by_contrast"]
    effect = made.effects.query("source == 'outside' and layer == 0 and memory == 4")["effect"]
    assert abs(hidden["screen_estimate"]) < 0.2 * effect.mean() and effect.mean() > 0.8
    assert made.summaries["behaviour_missed"]["largest"].max() == pytest.approx(effect.mean())
    without = make(tmp_path / "without", files, prompts=PAIRS, missed=0, **settings)
    assert without.summaries["behaviour_missed"].empty and "outside" not in {*without.effects["source"]}
    candidates = made.effects[made.effects["source"] != "outside"].reset_index(drop=True)
    pd.testing.assert_frame_equal(candidates, without.effects)  # the others are measured as before
