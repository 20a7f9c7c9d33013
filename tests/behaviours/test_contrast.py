"""The contrast: exact p-values by hand and by brute force, uniform p-values without an effect, and the two lists."""

import itertools

import numpy as np
import pytest

from ffkv.branches.behaviours import contrast as contrasts
from ffkv.branches.behaviours.contrast import assignments, contrast, estimate, is_exact, p_values, weights_of
from ffkv.branches.behaviours.sets import choose_sets
from ffkv.branches.behaviours.stability import jaccard, largest, rank_biased_overlap, resampled

ALL_TRUE = np.ones(20, bool)


def generator():
    return np.random.default_rng(0)


def test_p_values_of_few_prompts_are_exact(monkeypatch):
    """All 2**5 assignments of signs by hand: of five equal numbers, two have a mean as large, also if one is hardly any."""
    values = np.array([[1, 0, 3, 1], [1, 0, -1, 1], [1, 0, 2, 1], [1, 0, 0.5, 1], [1, 0, -4, 2e-4]], np.float32)
    positive = np.ones(5, bool)
    expected = []
    for column in values.T:
        means = [np.dot(signs, column) for signs in itertools.product((-1, 1), repeat=5)]
        expected.append(np.mean(np.abs(means) >= abs(column.sum()) - 1e-6))
    for numbers in (contrasts.NUMBERS, 12):  # all assignments together, or three at a time
        monkeypatch.setattr(contrasts, "NUMBERS", numbers)
        assert p_values(values, positive, 1000, generator()) == pytest.approx(expected)
    assert expected[:2] == [2 / 32, 1]


def test_p_values_without_an_effect_are_uniform():
    """2,000 memories of 20 prompts: the share of p <= 0.05 is 0.05 with a standard error of 0.005; four of them are allowed."""
    values = generator().standard_t(4, (20, 2000)).astype(np.float32)
    p = p_values(values, ALL_TRUE, 10_000, np.random.default_rng(1))
    for level in (0.05, 0.2, 0.5):
        assert abs((p <= level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 2000)
    halves = values[:10], values[10:]
    found = contrast(*halves, (np.ones(10, bool), np.ones(10, bool)), 10_000, generator())
    assert (found["q_value"] <= 0.05).mean() <= 0.05
    covered = (found["estimate_low" if "estimate_low" in found else "low"] <= 0) & (found["high"] >= 0)
    assert 0.93 < covered.mean() < 0.99  # heavy tails make the t interval a little long


def test_a_memory_with_an_effect_takes_all_flips():
    values = generator().normal(0, 1, (20, 50)).astype(np.float32)
    values[:, 7] += 3
    p = p_values(values, ALL_TRUE, 50_000, np.random.default_rng(1))
    assert p[7] == pytest.approx(1 / 50_001) and p.argmin() == 7


def test_a_memory_takes_no_more_flips_after_enough_that_are_as_large(monkeypatch):
    values = generator().normal(0.2, 1, (20, 1)).astype(np.float32)
    in_first_round = round(1001 * p_values(values, ALL_TRUE, 1000, generator())[0] - 1)
    found = {}
    for enough in (in_first_round, in_first_round + 1):
        monkeypatch.setattr(contrasts, "ENOUGH", enough)
        found[enough] = p_values(values, ALL_TRUE, 10_000, generator())[0]
    assert found[in_first_round] == (1 + in_first_round) / 1001
    in_both = found[in_first_round + 1] * 10_001 - 1
    assert in_both == pytest.approx(round(in_both)) and 0.8 < in_both / (10 * in_first_round) < 1.2


def test_a_round_of_as_many_flips_as_there_are_assignments_is_not_exact():
    """15 prompts have 2**15 assignments. After 10,000 random flips, a round of that many is random too: no p-value is 0."""
    values = np.full((15, 1), 1.0, np.float32)
    most = 10_000 + 2**15
    assert p_values(values, np.ones(15, bool), most, generator())[0] >= 1 / (most + 1)


def test_as_many_flips_as_there_are_assignments_make_all_of_them():
    seven = np.ones(7, bool)
    assert is_exact(seven, 128) and not is_exact(seven, 127) and not is_exact(np.arange(7) > 0, 128)
    assert is_exact(np.ones(14, bool), 2**20) and not is_exact(np.ones(15, bool), 2**20)


@pytest.mark.parametrize("count", [999, 1000, 1001, 10_000, 12_345])
def test_rounds_add_up(count):
    assert sum(map(len, assignments(ALL_TRUE, count, generator()))) == count


def test_two_lists_change_places():
    """Three and two prompts: a difference that only the true assignment and its like have, by brute force."""
    positive = np.array([True, True, True, False, False])
    values = np.array([5, 6, 7, 0, 1], np.float32)[:, None]
    assert weights_of(positive) @ values == pytest.approx(5.5)
    every = [*itertools.combinations(range(5), 3)]
    differences = [values[[*one], 0].mean() - np.delete(values[:, 0], one).mean() for one in every]
    expected = np.mean(np.abs(differences) >= 5.5 - 1e-6)
    assert p_values(values, positive, 20_000, generator())[0] == pytest.approx(expected, abs=0.015)  # random places
    assert estimate(values, positive).mean[0] == pytest.approx(5.5)


def test_one_prompt_has_no_interval():
    found = estimate(np.array([[2.0]]), np.array([True]))
    assert found.mean[0] == 2 and np.isnan(found.low[0]) and np.isnan(found.high[0])


def test_two_prompts_have_an_interval():
    found = estimate(np.array([[1.0], [3.0]]), np.array([True, True]))
    assert (found.mean[0], found.high[0] - 2, 2 - found.low[0]) == pytest.approx((2, 12.7062, 12.7062))  # t of 1 degree


def test_each_half_has_lists_of_its_own():
    """Of 6 ways to choose two of 1, 2, 3 and 4, two have a difference as large as 2."""
    values = np.array([[1], [2], [3], [4]], np.float32)
    lists = np.array([True, True, False, False]), np.array([True, False, False, False])
    found = contrast(values, 2 * values, lists, 1000, generator()).loc[0]
    assert (found["contrast"], found["estimate"]) == pytest.approx((-2, 2 - 6))
    assert found["p_value"] == pytest.approx(2 / 6, abs=0.06)


def test_overlaps_by_hand():
    first, same, other = np.array([3, 1, 2]), np.array([3, 1, 2]), np.array([7, 8, 9])
    assert (jaccard(first, same), jaccard(first, other)) == (1, 0)
    assert rank_biased_overlap(first, same) == pytest.approx(1) and rank_biased_overlap(first, other) == 0
    # One in common, on the first rank of both: overlaps 1, 1/2, 1/3.
    p = 0.9
    expected = (1 - p) * (1 + p / 2 + p**2 / 3) + p**3 / 3
    assert rank_biased_overlap(first, np.array([3, 8, 9])) == pytest.approx(expected)
    assert jaccard(first, np.array([3, 8, 9])) == 1 / 5
    assert np.isnan([jaccard(first[:0], first[:0]), rank_biased_overlap(first[:0], first[:0])]).all()


def test_of_equal_values_the_first_are_the_largest():
    assert largest(np.tile([0.0, 5.0], 20), 22).tolist() == [*range(1, 40, 2), 0, 2]


def test_resampled_sets_are_stable_where_memories_differ():
    values = generator().normal(0, 0.01, (30, 40)).astype(np.float32)
    values[:, [4, 9]] += [[-2, 1]]  # a memory that counts against the answer is as strong
    assert all(found.tolist() == [4, 9] for found in resampled(values, np.ones(30, bool), 2, 20, generator()))


def test_each_time_other_prompts_are_drawn():
    """Each prompt has a memory of its own."""
    sets = resampled(np.eye(9, dtype=np.float32), np.ones(9, bool), 3, 20, generator())
    assert len({tuple(found.tolist()) for found in sets}) > 10 and {len(found) for found in sets} == {3}


def test_two_lists_are_drawn_again_each_by_itself():
    positive = np.arange(30) < 10
    values = np.tile(np.array([5, 0, 0], np.float32), (30, 1))  # the first is as strong on both
    values[:, 1], values[:, 2] = np.where(positive, 1, 0), np.where(positive, 0, 2)
    assert all(found.tolist() == [2, 1, 0] for found in resampled(values, positive, 3, 20, generator()))


def test_random_sets_have_the_same_summed_length():
    sizes = np.abs(generator().normal(0, 1, 500))
    sizes[:100] = 0
    screen = np.where(np.arange(500) >= 100, sizes, 0)
    sets = choose_sets(screen, sizes, [5, 900], 4, generator())
    own = [each for each in sets if each.choice == "screen"]
    assert own[0].memories.tolist() == sorted(np.argsort(-screen, kind="stable")[:5].tolist())
    assert len(own[1].memories) == 500
    for each in (each for each in sets if each.choice == "random" and each.size == 5):
        assert sizes[each.memories].sum() == pytest.approx(sizes[own[0].memories].sum(), abs=sizes.max() / 2)
        assert sizes[each.memories].all()
    assert sets[-1].choice == "all" and len(sets[-1].memories) == 500
