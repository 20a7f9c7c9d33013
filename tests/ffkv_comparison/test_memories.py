"""The same memory in several runs, the overlap of its trigger examples, and memories that are matched by their coefficients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ffkv_comparison
from ffkv.base.errors import UserError
from ffkv.base.multiple_tests import q_values
from ffkv.base.settings import Comparison
from ffkv_comparison import same_memories
from ffkv_comparison.same_memories import (
    NONE,
    block_size,
    find_partners,
    jaccard,
    match_memories,
    p_values,
    rank_biased_overlap,
    standardise,
)
from tests.ffkv_comparison.conftest import opened

EXACT = 1e-12  # the same sums of the same numbers, in another order


def test_equal_runs_have_equal_memories(pair):
    by_memory, by_layer = same_memories.follow_memories(pair)
    for measure in ("jaccard", "rank_biased_overlap", "same_top_token", "key_cosine", "value_cosine"):
        np.testing.assert_allclose(by_memory[measure].dropna(), 1, atol=1e-6)  # lengths of 1 in float32
        assert (by_layer[f"permuted_{measure}"] < 0.9).all()  # a few tokens are on top of most values
    assert set(by_memory["kind"]) <= {"stayed", ""} and (by_layer[["appeared", "lost", "changed"]] == 0).all(axis=None)
    assert (by_memory["top_token"] == by_memory["reference_token"]).all()
    assert len(by_memory) == 2 * 2 * pair.runs[0].anatomy.layer_offset[-1]


def test_permuted_memories_have_chance_overlap(pair, monkeypatch):
    """A run whose memories are permuted overlaps as much as the permutations that the tables show beside it."""
    monkeypatch.chdir(pair.runs[0].folder.parents[1])
    run = pair.runs[0]
    memories, offset = same_memories.read_memories(run), np.asarray(run.anatomy.layer_offset)
    permuted = same_memories.take(memories, same_memories.permute(offset, np.random.default_rng(3)))
    overlap = same_memories.compare_memories(memories, permuted, True)["jaccard"].mean()
    chance = same_memories.follow_memories(pair)[1]["permuted_jaccard"].mean()
    assert overlap == pytest.approx(chance, abs=0.05) and overlap < 0.3


def test_kinds_by_hand():
    def memories(agrees, top):
        nothing = np.zeros((5, 1))
        return same_memories.Memories(nothing, np.array(top), np.ones(5), np.array(agrees, bool), None, nothing)

    before, after = memories([0, 1, 1, 1, 0], [1, 2, 3, 4, 5]), memories([1, 0, 1, 1, 0], [1, 2, 3, 9, 9])
    assert same_memories.classify(before, after).tolist() == ["appeared", "lost", "stayed", "changed", ""]


def test_keys_are_the_rows_of_the_first_matrix(pair):
    run = pair.runs[0]
    model = run.model("cpu").model
    first = torch.cat([block.mlp.c_fc.weight.T for block in model.transformer.h])  # Conv1D: inputs by outputs
    expected = torch.nn.functional.normalize(first, dim=1).detach().numpy()
    np.testing.assert_allclose(same_memories.read_keys(run), expected, atol=1e-6)  # lengths of 1 in float32


def test_a_partner_stands_out_and_others_do_not():
    generator = np.random.default_rng(0)
    own = generator.standard_normal((2000, 5)).astype(np.float32)
    others = generator.standard_normal((2000, 80)).astype(np.float32)
    others[:, [7, 11, 53]] = own[:, [2, 0, 4]] + 0.1 + 0.2 * generator.standard_normal((2000, 3))
    others[:, 5] = 1  # never changes
    found = find_partners(standardise(own), [others[:, :40], others[:, 40:]])
    assert found.loc[[2, 0, 4], "matched_layer"].tolist() == [0, 0, 1]
    assert found.loc[[2, 0, 4], "matched_memory"].tolist() == [7, 11, 13]
    correlation = np.corrcoef(own.T, np.delete(others, 5, 1).T)[:5, 5:]
    expected = -np.sort(-correlation, 1)[:, :2]
    np.testing.assert_allclose(found[["correlation", "next_correlation"]], expected, atol=1e-5)  # float32
    assert (found.loc[[2, 0, 4], "p_value"] < 1e-4).all() and (found.loc[[1, 3], "p_value"] > 0.05).all()


def test_memories_that_vary_on_few_prefixes_are_left_out():
    m = np.zeros((1000, 3), np.float32)
    m[:9, 0] = m[:11, 1] = 1
    m[:11, 2] = np.arange(11)  # of which the largest few count
    assert np.isfinite(standardise(m)).all(0).tolist() == [False, True, False]


def test_p_values_by_hand():
    """The gaps, times their ranks, are 3, 2 and 1: with two others of mean 1.5, (1 + 3 / 1.5 / 2)^-2 = 1/4."""
    highest = np.append(np.tanh([4.5, 1.5, 0.5, 1 / 6]), -np.inf)
    assert p_values(highest[None]) == pytest.approx(1 / 4)


def test_what_is_tied_or_alone_has_no_partner():
    tied, alone, none = [0.9, 0.9, 0.2, 0.1], [0.9, -np.inf, -np.inf, -np.inf], [-np.inf] * 4
    assert p_values(np.array([tied, alone, none])).tolist() == [1, 1, 1]


@pytest.mark.parametrize("activation", ["relu", "gelu", "gated"])
def test_random_layers_that_read_the_same_have_no_partners(activation):
    """They share what they read, and nothing else. Of their highest correlations, 5 % have a p-value up to 0.05."""
    generator, small = torch.Generator().manual_seed(0), []

    def coefficients():
        x_g, x_u = (x @ torch.randn(16, 150, generator=generator) / 4 for _ in range(2))
        if activation == "gated":
            return (torch.nn.functional.silu(x_g) * x_u).numpy()
        return getattr(torch.nn.functional, activation)(x_g).numpy()

    for _ in range(4):
        x = torch.randn(1000, 16, generator=generator)
        found = find_partners(standardise(coefficients()), [coefficients(), coefficients()])
        small += (found["p_value"] <= 0.05).tolist()
        assert (q_values(found["p_value"].to_numpy(), len(found)) > 0.05).all()
    assert np.mean(small) < 0.08  # of 600 that are not independent


def test_matching_a_run_with_itself_finds_each_memory(folders, monkeypatch):
    monkeypatch.chdir(folders[0].parents[1])
    compared = opened(folders, Comparison(runs=["tiny", "again"], memories="by_correlation", sampled_memories=40))
    found = match_memories(compared)
    assert len(found) > 20 and (found["correlation"] > 1 - 1e-4).all()  # float32
    own = (found["layer"] == found["matched_layer"]) & (found["memory"] == found["matched_memory"])
    assert own.mean() > 0.9  # two memories may fire on the same single prefix
    alone = found["correlation"] - found["next_correlation"] > 0.1
    assert (found.loc[alone, "q_value"] < 0.05).mean() > 0.9


def test_other_runs_than_those_of_the_settings_are_refused(folders):
    with pytest.raises(UserError, match="The folders are of the runs tiny, again, not of tiny, other"):
        ffkv_comparison.compare_runs(folders, Comparison(runs=["tiny", "other"]))
    with pytest.raises(UserError, match=r"runs is \['tiny'\]: must be 2 or more"):
        ffkv_comparison.compare_runs(str(folders[0]))


def row(numbers: list[int], length: int = 6) -> np.ndarray:
    return np.array([[*numbers, *[NONE] * (length - len(numbers))]])


def by_definition(a: list[int], b: list[int], p: float) -> float:
    """Equation 32 of Webber, Moffat and Zobel (2010), term by term."""
    s, l = sorted((len(a), len(b)))  # noqa: E741 (the paper's letters)

    def common(depth: int) -> int:
        return len({*a[:depth]} & {*b[:depth]})

    total = sum(common(d) / d * p**d for d in range(1, l + 1))
    total += sum(common(s) * (d - s) / (s * d) * p**d for d in range(s + 1, l + 1))
    return (1 - p) / p * total + ((common(l) - common(s)) / l + common(s) / s) * p**l


def test_by_hand():
    # 2 of 4 examples are shared. Depths 1 to 3: 0/1, 1/2 and 2/3 in common.
    a, b = row([1, 2, 3]), row([2, 3, 4])
    assert jaccard(a, b).tolist() == [0.5]
    p = 0.5
    expected = (0 * p + 1 / 2 * p**2 + 2 / 3 * p**3) * (1 - p) / p + 2 / 3 * p**3
    assert rank_biased_overlap(a, b, p)[0] == pytest.approx(expected, abs=EXACT)


def test_limits():
    equal, disjoint, empty = row([5, 1, 9]), row([2, 3]), row([])
    assert jaccard(equal, equal) == 1 and rank_biased_overlap(equal, equal)[0] == pytest.approx(1, abs=EXACT)
    assert jaccard(equal, disjoint) == 0 and rank_biased_overlap(equal, disjoint) == 0
    assert jaccard(equal, empty) == 0 and np.isnan(rank_biased_overlap(equal, empty))
    assert np.isnan(jaccard(empty, empty)) and np.isnan(rank_biased_overlap(empty, empty))


lists = st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True)


@given(lists, lists, st.floats(0.1, 0.95))
def test_the_fast_way_is_the_definition(a, b, p):
    found = rank_biased_overlap(row(a), row(b), p)[0]
    assert found == pytest.approx(by_definition(a, b, p), abs=1e-9)  # powers of p are summed in another order
    assert -EXACT <= found <= 1 + EXACT
    assert jaccard(row(a), row(b))[0] == len({*a} & {*b}) / len({*a} | {*b})
    assert found == pytest.approx(rank_biased_overlap(row(b), row(a), p)[0], abs=1e-9)


def test_memories_do_not_mix_over_blocks(monkeypatch):
    monkeypatch.setattr(same_memories, "BLOCK_BYTES", 5 * 4 * 4)  # five memories of four examples
    generator = np.random.default_rng(0)
    a, b = (np.argsort(generator.random((13, 9)), 1)[:, :4] for _ in range(2))
    for found in (jaccard, rank_biased_overlap):
        one_by_one = [found(a[i : i + 1], b[i : i + 1])[0] for i in range(len(a))]
        np.testing.assert_allclose(found(a, b), one_by_one, atol=EXACT)


def test_a_block_of_long_lists_has_few_memories():
    """Ten thousand examples per memory: a thousand memories at a time would take 100 GB."""
    assert block_size(25, 25) > 100_000
    assert block_size(10_000, 10_000) == 1
    assert block_size(0, 0) > 0
