"""What weights say of memories: planted ones by hand, random ones calibrated; heads of all kinds against a second computation."""

import numpy as np
import pytest
import torch
from support import LAYER_KINDS

from ffkv.branches.roles.measure import compare, ignores_mean, make_readout, measure, name_types, read_matrix
from ffkv.model.anatomy import read_anatomy
from ffkv.model.head.head_file import load_head

WIDTH, MEMORIES = 48, 400
VOCABULARY, D = 50, 8  # of a small head


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
    """n memories have n (n - 1) pairs of different ones, all with a lower cosine: of three p = 2 · 1 / 7. One has no pair."""
    for n in (2, 3):
        found = compare(torch.eye(n), 2 * torch.eye(n), np.random.default_rng(0))
        assert found.p == pytest.approx([2 / (n * (n - 1) + 1)] * n)
        assert found.null_mean == found.null_low == found.null_high == 0
    alone = compare(torch.ones(1, 4), torch.ones(1, 4), np.random.default_rng(0))
    assert alone.own == pytest.approx([1]) and np.isnan([*alone.p, *alone.q, alone.null_high]).all()
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
    key, value = (random_vectors(seed)[:30].double() for seed in (0, 1))
    order = np.random.default_rng(5).permutation(30)
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


@pytest.fixture
def matrix() -> torch.Tensor:
    """W [d, vocabulary], of which the first two directions write nothing."""
    matrix = torch.randn(D, VOCABULARY, generator=torch.Generator().manual_seed(0))
    matrix[:2] = 0
    return matrix


def test_values_in_ignored_directions_and_along_the_unigram_direction(matrix):
    """A value that the head ignores, one of which it ignores 16 / 25, one along Wᵀf, one that writes f itself, and none."""
    counts = np.arange(VOCABULARY) ** 2
    f = np.log(counts + 1.0)
    f -= f.mean()
    centred = (matrix - matrix.mean(1, keepdim=True)).double()
    values = torch.zeros(5, D)
    values[0, :2] = torch.tensor([1.0, -2.0])
    values[1, 1], values[1, 5] = 4, 3
    values[2] = -2 * (centred @ torch.from_numpy(f)).float()
    most_like = np.linalg.lstsq(centred.T.numpy(), f, rcond=None)[0]  # what writes the most like f
    values[3] = torch.from_numpy(most_like).float()
    found = measure(make_readout(matrix, counts, 0.01, False), values)
    # Two directions write nothing, which is more than a hundredth of eight. The others are read, and the unigram direction
    # is among them, so that it has no part in the ignored ones.
    assert found["ignored_share"][:3] == pytest.approx([1, 16 / 25, 0], abs=1e-5)
    assert found["unigram_cosine"][2] == pytest.approx(-1, abs=1e-5)
    written = values.double() @ centred
    for row in (1, 2, 3):
        assert found["unigram_correlation"][row] == pytest.approx(np.corrcoef(written[row], f)[0, 1], abs=1e-5)
    assert found["unigram_correlation"][3] >= np.abs(found["unigram_correlation"][1:3]).max()
    assert np.isnan([found[name][4] for name in found]).all()
    assert np.isnan(found["unigram_correlation"][0])  # it writes nothing


def test_a_hundredth_of_the_directions_is_ignored_where_the_head_reads_all():
    """The direction with the smallest singular value of the centred W, by hand."""
    matrix = torch.randn(200, 300, generator=torch.Generator().manual_seed(1))
    made = make_readout(matrix.clone(), np.ones(300), 0.01, False)
    centred = (matrix - matrix.mean(1, keepdim=True)).double()
    smallest = torch.linalg.svd(centred).U[:, -2:]
    assert made.ignored.shape == (200, 2)
    np.testing.assert_allclose((made.ignored.double() @ made.ignored.double().T), smallest @ smallest.T, atol=1e-4)


@pytest.mark.parametrize("unit", [1e-3, 1, 1e3])
def test_a_direction_is_ignored_that_writes_nothing_beside_the_others_whatever_the_unit(unit):
    matrix = unit * torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    assert make_readout(matrix.clone(), np.ones(50), 0.01, False).ignored.shape == (4, 1)  # one at least
    matrix[:2] *= 1e-3
    assert make_readout(matrix, np.ones(50), 0.01, False).ignored.shape == (4, 2)


def test_products_are_added_in_float64_over_all_tokens(monkeypatch):
    """Two tokens at a time: 2e8 + 2 + ... + 2, which float32 would leave at 2e8."""
    monkeypatch.setattr("ffkv.branches.roles.measure.TOKENS", 2)
    matrix = torch.tensor([[1e4, -1e4, *[1, -1] * 40], [0, 0, *[3, -3] * 40], [0] * 82])
    gram = make_readout(matrix, np.ones(82), 0.01, False).gram
    assert gram.tolist() == torch.tensor([[2e8 + 80, 240, 0], [240, 720, 0], [0, 0, 0]]).tolist()


def test_the_mean_is_no_direction_where_the_head_takes_it_off(matrix):
    """A head behind a LayerNorm writes nothing for equal numbers in all dimensions, and they do not make the norm larger."""
    matrix -= matrix.mean(0)
    values = torch.randn(3, D, generator=torch.Generator().manual_seed(0))
    made = make_readout(matrix.clone(), np.ones(VOCABULARY), 0.01, True)
    assert made.ignored.shape == (D, 1) and abs(made.ignored.sum()) < 1e-4
    plain, moved = measure(made, values), measure(made, values + torch.tensor([[5.0], [-2.0], [0.5]]))
    np.testing.assert_allclose(plain["ignored_share"], moved["ignored_share"], atol=1e-5)
    assert np.isfinite(plain["ignored_share"]).all()


@pytest.mark.parametrize("weight", [0, 1e-4, 0.01])
def test_a_head_that_reads_a_hundredth_of_the_mean_does_not_ignore_it(weight):
    """Logits may differ by a thousandth."""

    class Reader:
        def logits(self, vectors, layer):
            return vectors - vectors.mean(1, keepdim=True) + weight * vectors.mean(1, keepdim=True)

    assert ignores_mean(Reader(), D, 0) == (weight < 0.001)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_the_matrix_of_heads_of_all_kinds(load_kind, proven, kind, tmp_path):
    """What vectors of length one add to the logits, in float64, is in proportion to their products with the matrix.

    Two random vectors have a cosine of some 0.1 over 60 tokens. The adaptive head of fairseq is no matrix.
    """
    folder = tmp_path / "stage/model" if kind == "fairseq" else proven(kind)
    if kind == "fairseq":
        load_kind(kind)
    head, width = load_head(folder, "cpu"), read_anatomy(folder).width
    matrix = read_matrix(head, width, 1)
    if kind == "fairseq":
        assert matrix is None
        unknown = measure(None, torch.ones(2, width)).values()
        assert all(np.isnan(numbers).all() and numbers.dtype == np.float32 for numbers in unknown)
        return
    vectors = torch.randn(20, width, generator=torch.Generator().manual_seed(7))
    written = head.uncapped(vectors, 1) - head.uncapped(torch.zeros(1, width), 1)
    products = vectors.double() @ matrix.double()
    assert torch.cosine_similarity(written.double(), products, dim=1).min() > 0.9999
    assert ignores_mean(head, width, 1) == (kind in ("gpt2", "gpt-neox", "opt-post-norm"))
