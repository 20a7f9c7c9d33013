"""Cosines, p-values and types of memories: planted ones by hand, random ones calibrated, all against plain loops."""

import numpy as np
import pytest
import torch

from ffkv.branches.roles.cosines import compare, name_types

WIDTH, MEMORIES = 48, 400


def random_vectors(seed: int) -> torch.Tensor:
    return torch.randn(MEMORIES, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_planted_memories_are_found_and_the_others_are_not():
    """Memory 0 writes what it reads, memory 1 its opposite, memory 2 something orthogonal to it."""
    key, value = random_vectors(0), random_vectors(1)
    value[0], value[1] = 3 * key[0], -0.2 * key[1]
    value[2] -= (value[2] @ key[2]) / key[2].square().sum() * key[2]
    found = compare(key, value, np.random.default_rng(0))
    assert found.own[:3] == pytest.approx([1, -1, 0], abs=1e-6)
    # Of 8,000 permuted pairs none is as close: p = 2 · 1 / 8,001; two such p-values among 400 tests: q = p · 400 / 2.
    assert found.p[:2] == pytest.approx([2 / 8001] * 2)
    assert found.q[:2] == pytest.approx([400 / 8001] * 2)
    assert found.p[2] > 0.9
    assert (found.q <= 0.05).sum() == 2
    # The middle 95 % of cosines of random vectors: 1.96 / sqrt(48) = 0.283; 8,000 pairs give it to about 0.01.
    assert (found.null_low, found.null_high) == pytest.approx((-0.283, 0.283), abs=0.015)
    unknown = np.full(MEMORIES, np.nan)
    assert name_types(0.5, found.own, unknown, unknown)[:3].tolist() == ["enrichment", "depletion", "orthogonal output"]


def test_few_memories_meet_all_others():
    """Three memories have six pairs of different ones: p = 2 · 1 / 7, if their cosines are all lower."""
    found = compare(torch.eye(3), 2 * torch.eye(3), np.random.default_rng(0))
    assert found.p == pytest.approx([2 / 7] * 3) and found.null_mean == found.null_low == found.null_high == 0


def test_two_memories_meet_each_other():
    """Two pairs of different ones: p = 2 · 1 / 3. One memory alone has none."""
    found = compare(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[2.0, 0], [0, 2]]), np.random.default_rng(0))
    assert found.p == pytest.approx([2 / 3] * 2)
    alone = compare(torch.ones(1, 4), torch.ones(1, 4), np.random.default_rng(0))
    assert alone.own == pytest.approx([1]) and np.isnan([*alone.p, *alone.q, alone.null_high]).all()


def test_memories_that_are_all_alike_have_no_small_p_value():
    same = torch.tensor([[1.0, 0]] * 4)
    assert compare(same, same, np.random.default_rng(0)).p.tolist() == [1] * 4


def test_p_values_of_random_memories_are_uniform():
    """Over 20 layers of random weights. The deviation of a uniform p from its mean is 0.29, that of 8,000 of them 0.0032."""
    p = [compare(random_vectors(2 * n), random_vectors(2 * n + 1), np.random.default_rng(n)) for n in range(20)]
    together = np.concatenate([found.p for found in p])
    assert together.mean() == pytest.approx(0.5, abs=0.015)
    for level in (0.05, 0.2, 0.5, 0.8):  # three deviations of a share of 8,000
        assert (together <= level).mean() == pytest.approx(level, abs=3 * np.sqrt(level * (1 - level) / 8000))
    assert np.mean([(found.q < 0.05).any() for found in p]) <= 0.2  # 5 % of 20 layers are one


def test_a_common_direction_of_all_keys_and_values_is_no_role():
    """Keys and values that share a direction have positive cosines, permuted ones too: the null is not around zero."""
    key, value = random_vectors(0) + 1, random_vectors(1) + 1
    found = compare(key, value, np.random.default_rng(0))
    assert found.own.mean() > 0.4
    assert found.null_mean == pytest.approx(found.own.mean(), abs=0.02)
    assert not (found.q <= 0.05).any()


def test_the_null_is_that_of_a_plain_loop():
    key, value, order = (
        random_vectors(0)[:30].double(),
        random_vectors(1)[:30].double(),
        np.random.default_rng(5).permutation(30),
    )
    cosine = (key / key.norm(dim=1, keepdim=True)) @ (value / value.norm(dim=1, keepdim=True)).T
    null = np.array([cosine[order[i], order[(i + shift) % 30]] for i in range(30) for shift in range(1, 21)])
    found = compare(key, value, np.random.default_rng(5))
    own = cosine.diagonal().numpy()
    expected = [min(1, 2 * (1 + min((null <= c).sum(), (null >= c).sum())) / 601) for c in own]
    np.testing.assert_allclose(found.own, own, atol=1e-12)
    np.testing.assert_allclose(found.p, expected, atol=1e-12)
    assert found.null_mean == pytest.approx(null.mean())
    assert [found.null_low, found.null_high] == pytest.approx(np.quantile(null, [0.025, 0.975]).tolist())


def test_memories_without_a_vector_have_no_cosine_and_are_no_part_of_the_null():
    key, value = random_vectors(0)[:5], random_vectors(1)[:5]
    key[1], value[3] = torch.nan, 0
    found, known = compare(key, value, np.random.default_rng(0)), [0, 2, 4]
    assert np.isnan(found.own[[1, 3]]).all() and np.isnan(found.p[[1, 3]]).all()
    alone = compare(key[known], value[known], np.random.default_rng(0))
    np.testing.assert_array_equal(found.own[known], alone.own)
    assert np.isfinite(found.q[known]).all() and found.null_mean == pytest.approx(alone.null_mean, abs=1e-6)
    nothing = compare(key[[1]], value[[1]], np.random.default_rng(0))
    assert np.isnan([*nothing.p, nothing.null_mean, nothing.null_low]).all()


# Cosines of key and value, gate and value, gate and key; the type (Gerstner and Schütze 2025).
TYPED = [
    ((0.8, 0.7, 0.6), "enrichment"),
    ((0.8, -0.7, -0.6), "enrichment"),  # the signs of gate and of value and key turned
    ((0.8, 0.7, 0.1), "atypical enrichment"),
    ((0.8, 0.1, 0.1), "conditional enrichment"),
    ((0.8, 0.1, 0.9), "atypical conditional enrichment"),
    ((0.1, 0.9, 0.1), "proportional change"),
    ((0.1, -0.9, 0.1), "proportional change"),
    ((0.1, 0.9, 0.9), "atypical proportional change"),
    ((0.1, 0.1, 0.9), "orthogonal output"),  # whatever gate and key do
    ((-0.8, 0.1, 0.1), "conditional depletion"),
    ((-0.8, 0.1, -0.9), "atypical conditional depletion"),
    ((-0.8, 0.7, -0.6), "depletion"),
    ((-0.8, -0.7, 0.6), "depletion"),
    ((-0.8, -0.7, -0.6), "atypical depletion"),
    ((0.5, 0.1, 0.1), "orthogonal output"),  # not above the threshold
    ((0.6, np.nan, np.nan), "enrichment"),
    ((-0.6, np.nan, np.nan), "depletion"),
    ((0.2, np.nan, np.nan), "orthogonal output"),
    ((np.nan, 0.9, np.nan), ""),
]


def test_types_of_gated_and_of_plain_memories():
    cosines, types = zip(*TYPED)
    assert name_types(0.5, *np.array(cosines).T).tolist() == list(types)
