"""Overlap of lists of trigger examples: by hand, by the definition, and its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.run.comparison import overlap
from ffkv.run.comparison.overlap import NONE, jaccard, rank_biased_overlap

EXACT = 1e-12  # the same sums of the same numbers, in another order


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
    monkeypatch.setattr(overlap, "BLOCK_BYTES", 5 * 4 * 4)  # five memories of four examples
    generator = np.random.default_rng(0)
    a, b = (np.argsort(generator.random((13, 9)), 1)[:, :4] for _ in range(2))
    for found in (jaccard, rank_biased_overlap):
        one_by_one = [found(a[i : i + 1], b[i : i + 1])[0] for i in range(len(a))]
        np.testing.assert_allclose(found(a, b), one_by_one, atol=EXACT)


def test_a_block_of_long_lists_has_few_memories():
    """Ten thousand examples per memory: a thousand memories at a time would take 100 GB."""
    assert overlap.block_size(25, 25) > 100_000
    assert overlap.block_size(10_000, 10_000) == 1
    assert overlap.block_size(0, 0) > 0
