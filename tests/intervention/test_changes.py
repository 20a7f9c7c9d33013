"""The vectors of interventions and controls, worked by hand and by brute force."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffkv.branches.intervention.sample import choose_silent
from ffkv.model.effects.changes import (
    as_long_as_removed,
    choose_kept,
    keep_few,
    scaled,
    set_to,
    similar_memories,
)
from ffkv.model.effects.controls import permutation_p

VALUE = torch.tensor([3.0, 4.0])


def test_scaling_by_hand():
    """m = 2, s = 0.5: the contribution is (3, 4)."""
    found = scaled(2.0, VALUE, 0.5, [0.0, 0.5, 1.0, 2.0, -1.0])
    assert found.tolist() == [[-3, -4], [-1.5, -2], [0, 0], [3, 4], [-6, -8]]
    assert set_to(2.0, VALUE, 0.5, 5.0).tolist() == [[4.5, 6.0]]


@given(st.integers(0, 1000), st.floats(0.01, 100), st.sampled_from([-1.5, 2.0]))
def test_controls_have_the_length_that_they_claim_and_the_sign_of_the_memory(seed, size, m):
    values = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)) + 0.1
    found = as_long_as_removed(m, size, values)
    np.testing.assert_allclose(found.norm(dim=1), size, rtol=1e-5)
    np.testing.assert_allclose((found * values).sum(1), -np.sign(m) * size * values.norm(dim=1), rtol=1e-4)


@given(st.integers(0, 10_000))
def test_similar_memories_are_similar_and_never_the_memory_itself(seed):
    generator = np.random.default_rng(seed)
    m, norms = generator.standard_normal(40).astype(np.float32), generator.random(40) + 0.5
    m[generator.random(40) < 0.3] = 0
    found = similar_memories(7, m, norms, 0.5, 4, generator)
    sizes = np.abs(m) * norms
    assert len(found) <= 4 and 7 not in found and len(np.unique(found)) == len(found)
    assert (np.abs(sizes[found] - sizes[7]) <= 0.5 * sizes[7] * (1 + 1e-6)).all() and (m[found] != 0).all()
    possible = [j for j in range(40) if j != 7 and sizes[j] > 0 and abs(sizes[j] - sizes[7]) <= 0.5 * sizes[7]]
    assert len(found) == min(4, len(possible))


def test_a_memory_at_the_largest_difference_is_similar():
    """Contributions of 4, 5, 3, 5.5 and 2.5 beside the memory's own of 4, from which a quarter of it is 1."""
    m = np.array([4, 4, -5, 3, 5.5, 2.5], np.float32)
    assert similar_memories(0, m, np.ones(6), 0.25, 9, np.random.default_rng(0)).tolist() == [1, 2, 3]


def test_keeping_few_memories_by_brute_force():
    generator = torch.Generator().manual_seed(0)
    m, mean, values = (torch.randn(*shape, generator=generator) for shape in ((9,), (9,), (9, 4)))
    kept = [torch.tensor([], dtype=torch.long), torch.tensor([2, 5]), torch.arange(9)]
    found = keep_few(m, mean, values, 0.5, kept)
    for row, few in zip(found, kept, strict=True):
        changed = mean.clone()
        changed[few] = m[few]
        np.testing.assert_allclose(row, 0.5 * ((changed - m) @ values), atol=1e-5)
    assert found[2].abs().max() < 1e-5


def test_the_largest_and_random_ones_are_kept():
    m = np.array([1.0, 0.0, -4.0, 2.0, 0.0], np.float32)
    sets = choose_kept(m, np.array([10.0, 1, 1, 1, 1]), [0, 2, 9], np.random.default_rng(0))
    assert [(choice, count) for choice, count, _ in sets] == [
        *(("largest", count) for count in (0, 2, 9)), *(("random", count) for count in (0, 2, 9)), ("all", 5),
    ]  # fmt: skip
    largest, random = (
        [memories.tolist() for _, _, memories in sets[:3]],
        [memories.tolist() for _, _, memories in sets[3:6]],
    )
    assert largest[0] == [] and largest[1] == [0, 2] and sorted(largest[2]) == [0, 1, 2, 3, 4]
    assert random[0] == [] and len(random[1]) == 2 and sorted(random[2]) == [0, 2, 3]
    alike = choose_kept(np.tile([1.0, 2.0], 20), np.ones(40), [3], np.random.default_rng(0))
    assert alike[0][2].tolist() == [1, 3, 5]  # of equal ones the first


def test_a_placebo_can_have_an_effect():
    found = choose_silent(np.array([2.0, -2.0]), np.array([0.5, -0.01, 0.0, 0.09, -0.11]), 0.05, 10)
    assert found.tolist() == [3, 1]  # not 2, where the removal of nothing changes nothing
    assert choose_silent(np.array([2.0, -2.0]), np.array([0.5, 0.01, 0.03, -0.03]), 0.05, 1).tolist() == [2]
    assert choose_silent(np.array([1.0]), np.array([0.5]), 0.05, 1).tolist() == []


def test_p_values_by_hand():
    assert permutation_p(-3.0, np.array([1.0, -2.0, 3.0, 4.0])) == 3 / 5
    assert permutation_p(9.0, np.array([1.0, -2.0, 3.0, 4.0])) == 1 / 5
    assert permutation_p(0.0, np.zeros(4)) == 1
