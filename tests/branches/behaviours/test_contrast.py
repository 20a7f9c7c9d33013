"""The contrast: exact p-values by hand and by brute force, uniform p-values without an effect, and the two lists."""

import itertools

import numpy as np
import pytest

from ffkv.base.intervals import mean_interval
from ffkv.base.multiple_tests import q_values
from ffkv.branches.behaviours import contrast as contrasts
from ffkv.branches.behaviours.choose import jaccard, rank_biased_overlap, resampled
from ffkv.branches.behaviours.contrast import Drawn, assignments, cells_of, estimate, p_values, smallest_p, weights_of
from ffkv.branches.behaviours.measure import choose_sets
from ffkv.branches.behaviours.stored import largest


def alone(positive) -> Drawn:
    """Prompts of which each is a group. `positive`: their number, or whether each is of the first list."""
    positive = np.ones(positive, bool) if isinstance(positive, int) else positive
    return Drawn(positive, np.arange(len(positive)))


def generator(seed=0):
    return np.random.default_rng(seed)


def test_p_values_of_few_prompts_are_exact(monkeypatch):
    """All 2**5 assignments of signs by hand: of five equal numbers, two have a mean as large, also if one is hardly any."""
    values = np.array([[1, 0, 3, 1], [1, 0, -1, 1], [1, 0, 2, 1], [1, 0, 0.5, 1], [1, 0, -4, 2e-4]], np.float32)
    expected = []
    for column in values.T:
        means = [np.dot(signs, column) for signs in itertools.product((-1, 1), repeat=5)]
        expected.append(np.mean(np.abs(means) >= abs(column.sum()) - 1e-6))
    for numbers in (contrasts.NUMBERS, 12):  # all assignments together, or three at a time
        monkeypatch.setattr(contrasts, "NUMBERS", numbers)
        assert p_values(values, alone(5), 1000, generator()) == pytest.approx(expected)
    assert expected[:2] == [2 / 32, 1]


def test_p_values_without_an_effect_are_uniform():
    """2,000 memories of 20 prompts: the share of p <= 0.05 is 0.05 with a standard error of 0.005; four of them are allowed."""
    values = generator().standard_t(4, (20, 2000)).astype(np.float32)
    p = p_values(values, alone(20), 10_000, np.random.default_rng(1))
    for level in (0.05, 0.2, 0.5):
        assert abs((p <= level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 2000)
    assert (q_values(p, len(p)) <= 0.05).mean() <= 0.05
    _, low, high = estimate(values[10:], alone(10))
    covered = (low <= 0) & (high >= 0)
    assert 0.93 < covered.mean() < 0.99  # heavy tails make the t interval a little long


def test_a_memory_with_an_effect_takes_all_flips():
    values = generator().normal(0, 1, (20, 50)).astype(np.float32)
    values[:, 7] += 3
    p = p_values(values, alone(20), 50_000, np.random.default_rng(1))
    assert p[7] == pytest.approx(1 / 50_001) and p.argmin() == 7


def test_a_memory_takes_no_more_flips_after_enough_that_are_as_large(monkeypatch):
    values = generator().normal(0.2, 1, (20, 1)).astype(np.float32)
    in_first_round = round(1001 * p_values(values, alone(20), 1000, generator())[0] - 1)
    found = {}
    for enough in (in_first_round, in_first_round + 1):
        monkeypatch.setattr(contrasts, "ENOUGH", enough)
        found[enough] = p_values(values, alone(20), 10_000, generator())[0]
    assert found[in_first_round] == (1 + in_first_round) / 1001
    in_both = found[in_first_round + 1] * 10_001 - 1
    assert in_both == pytest.approx(round(in_both)) and 0.8 < in_both / (10 * in_first_round) < 1.2


def test_as_many_flips_as_there_are_assignments_make_all_of_them():
    """Of equal numbers, two assignments are as large: exactly 2 of 2**15, also if a half has more prompts than groups."""
    values = np.full((15, 1), 1.0, np.float32)
    assert p_values(values, alone(15), 2**15, generator())[0] == 2 / 2**15
    assert p_values(values, alone(15), 2**15 - 1, generator())[0] >= 1 / 2**15
    seven = alone(7)
    assert [cells_of(seven).all, cells_of(alone(np.arange(7) > 0)).all] == [128, 7]
    for most in (127, 128):
        rounds = np.concatenate([*assignments(cells_of(seven), most, generator())])
        assert len(rounds) == most and (len(np.unique(rounds, axis=0)) == 128) == (most == 128)


@pytest.mark.parametrize("count", [999, 1000, 1001, 10_000, 12_345])
def test_rounds_add_up(count):
    assert sum(map(len, assignments(cells_of(alone(20)), count, generator()))) == count


def test_two_lists_change_places(monkeypatch):
    """Three and two prompts: a difference that only the true assignment and its like have, by brute force."""
    positive = np.array([True, True, True, False, False])
    values = np.array([5, 6, 7, 0, 1], np.float32)[:, None]
    assert weights_of(positive) @ values == pytest.approx(5.5)
    every = [*itertools.combinations(range(5), 3)]
    differences = [values[[*one], 0].mean() - np.delete(values[:, 0], one).mean() for one in every]
    expected = np.mean(np.abs(differences) >= 5.5 - 1e-6)
    assert p_values(values, alone(positive), 20_000, generator())[0] == pytest.approx(expected)
    monkeypatch.setattr(contrasts.Cells, "all", 10**9)  # random places
    assert p_values(values, alone(positive), 20_000, generator())[0] == pytest.approx(expected, abs=0.015)
    assert estimate(values, alone(positive))[0] == pytest.approx(5.5)


def test_fewer_than_five_groups_have_no_interval():
    values = np.array([[1.0], [3.0], [2.0], [6.0], [8.0]])
    mean, *ends = estimate(values[:4], alone(4))
    assert mean == 3 and np.isnan(ends).all()
    assert estimate(values, alone(5))[:, 0] == pytest.approx((4, *mean_interval(values[:, 0])))
    half = 2.776445 * np.sqrt(2.5 / 5)  # t of 4 degrees; 1 to 5 have no skewness
    assert estimate(np.arange(1.0, 6)[:, None], alone(5))[:, 0] == pytest.approx((3, 3 - half, 3 + half))
    lists = np.repeat(values, 2, 0), Drawn(np.tile([True, False], 5), np.arange(10))
    assert not np.isnan(estimate(*lists)).any()
    assert np.isnan(estimate(lists[0], Drawn(lists[1].positive, np.tile([0, 1], 5)))[1:]).all()


@pytest.mark.parametrize("lists", [False, True])
def test_intervals_of_memories_that_are_rarely_active_cover(lists):
    """Half of 16 values are 0, the rest exponential; of the second list a fifth are not 0. Student's t covers 88 % of such means."""
    values = generator().exponential(size=(32, 4000)) * (generator(1).random((32, 4000)) < 0.5)
    values[16:] *= generator(2).random((16, 4000)) < 0.4
    drawn, mean = (Drawn(np.arange(32) < 16, np.arange(32)), 0.3) if lists else (alone(16), 0.5)
    _, low, high = estimate(values[: len(drawn.group)], drawn)
    assert 0.92 < ((low <= mean) & (mean <= high)).mean() < 0.985


def test_prompts_of_a_group_count_once():
    """Each prompt three times: the same p-value, interval and smallest p-value as once. Alone they would count for more."""
    values = generator().normal(0.5, 1, (12, 7)).astype(np.float32)
    once, thrice = alone(12), Drawn(np.ones(36, bool), np.repeat(np.arange(12), 3))
    many = np.repeat(values, 3, 0)
    np.testing.assert_array_equal(
        p_values(values, once, 10_000, generator()), p_values(many, thrice, 10_000, generator())
    )
    for own, other in zip(estimate(values, once), estimate(many, thrice)):
        np.testing.assert_allclose(own, other, rtol=1e-6)
    assert smallest_p(once, 10_000) == smallest_p(thrice, 10_000) == 2 / 2**12
    assert (p_values(many, alone(36), 10_000, generator()) < p_values(values, once, 10_000, generator())).mean() > 0.8


def test_groups_of_two_lists_change_places_as_a_whole():
    """Groups of one list, of 1, 2, 2 and 3 prompts, and one of both lists, by brute force."""
    group = np.array([*"abbccddd", *"eee"])
    positive = np.array([True, True, True, False, False, False, False, False, True, True, False])
    values = generator().normal(0, 1, (11, 5)).astype(np.float32)

    def difference(chosen):
        return values[chosen].mean(0) - values[~chosen].mean(0)

    every = []
    for first in itertools.combinations("abcd", 2):
        for turned in (False, True):
            every.append(difference(np.where(group == "e", positive ^ turned, np.isin(group, first))))
    expected = (np.abs(every) >= np.abs(difference(positive)) - 1e-6).mean(0)
    drawn = Drawn(positive, group)
    assert cells_of(drawn).all == 12
    np.testing.assert_allclose(p_values(values, drawn, 1000, generator()), expected)


@pytest.mark.parametrize(
    ("drawn", "most", "expected"),
    [
        (alone(4), 100, 1 / 8),
        (alone(5), 100, 1 / 16),
        (alone(20), 999, 1 / 1000),
        (alone(np.arange(8) < 4), 100, 2 / 70),  # both lists can change places
        (alone(np.arange(8) < 3), 100, 1 / 56),
        (Drawn(np.ones(9, bool), np.zeros(9)), 100, 1),
    ],
)
def test_the_smallest_p(drawn, most, expected):
    """It is what a memory has that tells all groups apart."""
    assert smallest_p(drawn, most) == pytest.approx(expected)
    values = np.where(drawn.positive, 1, 0).astype(np.float32)[:, None]
    assert p_values(values, drawn, most, generator())[0] == pytest.approx(expected)


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
    assert all(found.tolist() == [4, 9] for found in resampled(values, alone(30), 2, 20, generator()))


def test_each_time_other_prompts_are_drawn():
    """Each prompt has a memory of its own."""
    sets = resampled(np.eye(9, dtype=np.float32), alone(9), 3, 20, generator())
    assert len({tuple(found.tolist()) for found in sets}) > 10 and {len(found) for found in sets} == {3}


def test_two_lists_are_drawn_again_each_by_itself():
    positive = np.arange(30) < 10
    values = np.tile(np.array([5, 0, 0], np.float32), (30, 1))  # the first is as strong on both
    values[:, 1], values[:, 2] = np.where(positive, 1, 0), np.where(positive, 0, 2)
    assert all(found.tolist() == [2, 1, 0] for found in resampled(values, alone(positive), 3, 20, generator()))


def test_random_sets_have_the_same_summed_length():
    sizes = np.abs(generator().normal(0, 1, 500))
    sizes[:100] = 0
    screen = np.where(np.arange(500) >= 100, sizes, 0)
    assert not [
        each for each in choose_sets(screen, sizes, [300], 4, generator()) if each.choice == "random"
    ]  # too few
    sets = choose_sets(screen, sizes, [5, 900], 4, generator())
    own = [each for each in sets if each.choice == "screen"]
    assert own[0].memories.tolist() == sorted(np.argsort(-screen, kind="stable")[:5].tolist())
    assert len(own[1].memories) == 500
    for each in (each for each in sets if each.choice == "random" and each.size == 5):
        assert sizes[each.memories].sum() == pytest.approx(sizes[own[0].memories].sum(), abs=sizes.max() / 2)
        assert sizes[each.memories].all()
        assert not {*each.memories} & {*own[0].memories}
    assert not [each for each in sets if each.choice == "random" and each.size == 900]  # there are no others
    assert sets[-1].choice == "all" and len(sets[-1].memories) == 500
