"""The vectors of interventions and controls, by hand and by brute force; their effects against formulas and torch's distributions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from ffkv.model.effects.changes import choose_kept, keep_few, measure_effects, predict, scaled, similar_memories

VALUE = torch.tensor([3.0, 4.0])
READ_AS = 7


def test_scaling_by_hand():
    """m = 2, s = 0.5: the contribution is (3, 4)."""
    found = scaled(2.0, 0.5, [0.0, 0.5, 1.0, 2.0, -1.0])
    assert np.outer(found, VALUE).tolist() == [[-3, -4], [-1.5, -2], [0, 0], [3, 4], [-6, -8]]


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
    # At the largest difference: contributions of 4, 5, 3, 5.5 and 2.5 beside its own of 4, of which a quarter is 1.
    m = np.array([4, 4, -5, 3, 5.5, 2.5], np.float32)
    assert similar_memories(0, m, np.ones(6), 0.25, 9, generator).tolist() == [1, 2, 3]


def test_keeping_few_memories_by_brute_force():
    """Of two prefixes."""
    generator = torch.Generator().manual_seed(0)
    m, mean, values, s = (torch.randn(*shape, generator=generator) for shape in ((2, 9), (9,), (9, 4), (2, 1)))
    kept = [torch.tensor([], dtype=torch.long), torch.tensor([2, 5]), torch.arange(9)]
    mask = torch.zeros(2, 3, 9, dtype=torch.bool)
    for number, few in enumerate(kept):
        mask[:, number, few] = True
    mask[1, 1] = torch.arange(9) == 7
    found = keep_few(m, mean, values, s, mask)
    for prefix, sets in enumerate([kept, [kept[0], torch.tensor([7]), kept[2]]]):
        for row, few in zip(found[prefix], sets, strict=True):
            changed = mean.clone()
            changed[few] = m[prefix, few]
            np.testing.assert_allclose(row, s[prefix] * ((changed - m[prefix]) @ values), atol=1e-5)
    assert found[:, 2].abs().max() == 0


def test_the_largest_and_random_ones_are_kept():
    m, norms = np.array([1.0, 0.0, -4.0, 2.0, 0.0], np.float32), np.array([10.0, 1, 1, 1, 1])
    generators = [np.random.default_rng(seed) for seed in (0, 0, 1)]
    kept = choose_kept(np.stack([m, m[::-1], m]), norms, [0, 2, 9], generators)
    assert kept.shape == (3, 7, 5)  # 0, 2 and 9 of the largest, as many random ones, and all
    sets = [np.flatnonzero(few).tolist() for few in kept[0]]
    assert sets[:3] == [[], [0, 2], [0, 1, 2, 3, 4]] and sets[3] == [] and sets[5:] == [[0, 2, 3], [0, 1, 2, 3, 4]]
    assert len(sets[4]) == 2 and {*sets[4]} < {0, 2, 3}
    drawn = np.random.default_rng(0).permutation([0, 2, 3])
    assert sets[4] == sorted(drawn[:2].tolist())  # each prefix by its own generator
    assert np.flatnonzero(kept[1, 1]).tolist() == [1, 2] and np.flatnonzero(kept[1, 5]).tolist() == [1, 2, 4]
    assert kept[2].tolist() == choose_kept(m[None], norms, [0, 2, 9], [np.random.default_rng(1)])[0].tolist()
    alike = choose_kept(np.tile([1.0, 2.0], 20)[None], np.ones(40), [3], generators[:1])
    assert np.flatnonzero(alike[0, 0]).tolist() == [1, 3, 5]  # of equal ones the first


class LinearHead:
    """A head that is one matrix: what `Head` promises, for the two functions that read it."""

    def __init__(self, embedding: torch.Tensor):
        self.embedding = embedding

    def logits(self, vectors, layer=None):
        return vectors @ self.embedding.T

    def chunks(self, vectors, layer):
        assert layer == READ_AS
        for row in range(0, len(vectors), 2):
            yield slice(row, min(row + 2, len(vectors))), self.logits(vectors[row : row + 2])


@pytest.fixture
def numbers():
    """An embedding, what the head reads, and a value."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((30, 8), (8,), (8,)))


def effects_of(head, end, ends, tokens):
    """The effects of changes of what the head reads on one prefix, on some tokens."""
    (effects,) = measure_effects(head, [ends], predict(head, end[None], READ_AS), [torch.tensor(tokens)], READ_AS)
    return effects


def test_a_removed_memory_takes_m_e_v_from_each_logit(numbers):
    embedding, end, value = numbers
    m, head = 1.7, LinearHead(embedding)
    change = float(scaled(m, 1.0, [0.0])[0]) * value[None]
    before, after = head.logits(end[None])[0], head.logits(end + change)[0]
    torch.testing.assert_close(after - before, -m * (embedding @ value), rtol=1e-5, atol=1e-5)
    expected = after.double().log_softmax(0) - before.double().log_softmax(0)
    found = effects_of(head, end, end + change, range(30)).log_p[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    nothing = effects_of(head, end, end[None], [0, 29])
    assert nothing.log_p.abs().max() < 1e-6 and nothing.divergence.item() < 1e-6 and not nothing.changed.item()


def test_the_divergence_is_that_of_torch_and_the_prediction_its_argmax(numbers):
    embedding, end, _ = numbers
    head = LinearHead(embedding)
    ends = end + 2 * torch.randn(7, 8, generator=torch.Generator().manual_seed(5))
    effects = effects_of(head, end, ends, [3])
    expected = kl_divergence(*(Categorical(logits=head.logits(each).double()) for each in (end[None], ends)))
    torch.testing.assert_close(effects.divergence, expected, rtol=1e-4, atol=1e-5)
    assert effects.changed.tolist() == (head.logits(ends).argmax(1) != head.logits(end[None]).argmax()).tolist()
    assert effects.changed.any() and effects.changed.dtype == torch.bool


def test_the_effects_on_several_prefixes_are_those_on_each(numbers):
    """The head hands on two rows at a time: parts of one prefix, and rows of two."""
    embedding, end, value = numbers
    head, generator = LinearHead(embedding), torch.Generator().manual_seed(6)
    bases = predict(head, torch.stack([end, value, end + value, end - value]), READ_AS)
    ends = [torch.randn(count, 8, generator=generator) for count in (3, 0, 1, 4)]
    tokens = [torch.arange(count) for count in (1, 2, 0, 5)]
    for n, effects in enumerate(measure_effects(head, ends, bases, tokens, READ_AS)):
        base = bases._make(each[n : n + 1] for each in bases)
        (by_itself,) = measure_effects(head, [ends[n]], base, [tokens[n]], READ_AS)
        for together, expected in zip(effects, by_itself, strict=True):
            assert together.shape == expected.shape
            torch.testing.assert_close(together, expected, rtol=1e-6, atol=1e-6)  # products of other shapes


def test_a_token_that_the_model_never_predicts_adds_nothing(numbers):
    embedding, end, value = numbers

    class Never(LinearHead):
        def logits(self, vectors, layer=None):
            logits = super().logits(vectors)
            logits[:, 4] = -torch.inf
            return logits

    effects = effects_of(Never(embedding), end, (end + value)[None], [1])
    others = torch.arange(30) != 4
    p, q = ((embedding @ vector)[others].double().log_softmax(0) for vector in (end, end + value))
    assert effects.divergence.item() == pytest.approx((p.exp() * (p - q)).sum().item(), rel=1e-4)
