"""Direct effects, divergences and predictions, against formulas and torch's own distributions."""

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from ffkv.model.checkpoint.load import load
from ffkv.model.effects.changes import scaled
from ffkv.model.effects.measured import measure_effects, predict
from ffkv.model.head.head_file import load_head

READ_AS = 7


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
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(30, 8, generator=generator),
        torch.randn(8, generator=generator),
        torch.randn(8, generator=generator),
    )


def test_a_removed_memory_takes_m_e_v_from_each_logit(numbers):
    embedding, end, value = numbers
    m, head = 1.7, LinearHead(embedding)
    change = scaled(m, value, 1.0, [0.0])
    before, after = head.logits(end[None])[0], head.logits(end + change)[0]
    torch.testing.assert_close(after - before, -m * (embedding @ value), rtol=1e-5, atol=1e-5)
    tokens = torch.arange(30)
    (effects,) = measure_effects(head, [end + change], predict(head, end[None], READ_AS), [tokens], READ_AS)
    expected = after.double().log_softmax(0) - before.double().log_softmax(0)
    torch.testing.assert_close(effects.log_p[0], expected, rtol=1e-4, atol=1e-5)


def test_the_divergence_is_that_of_torch_and_the_prediction_its_argmax(numbers):
    embedding, end, _ = numbers
    head = LinearHead(embedding)
    ends = end + 2 * torch.randn(7, 8, generator=torch.Generator().manual_seed(5))
    (effects,) = measure_effects(head, [ends], predict(head, end[None], READ_AS), [torch.tensor([3])], READ_AS)
    p = Categorical(logits=head.logits(end[None]).double())
    expected = kl_divergence(p, Categorical(logits=head.logits(ends).double()))
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
    for effects, *alone in zip(measure_effects(head, ends, bases, tokens, READ_AS), ends, bases, tokens, strict=True):
        for together, expected in zip(
            effects, measure_effects(head, *([each] for each in alone), READ_AS)[0], strict=True
        ):
            assert together.shape == expected.shape
            torch.testing.assert_close(together, expected, rtol=1e-6, atol=1e-6)  # products of other shapes


def test_a_change_of_nothing_does_nothing(numbers):
    embedding, end, _ = numbers
    head = LinearHead(embedding)
    (effects,) = measure_effects(head, [end[None]], predict(head, end[None], READ_AS), [torch.tensor([0, 29])], READ_AS)
    assert effects.log_p.abs().max() < 1e-6 and effects.divergence.item() < 1e-6 and not effects.changed.item()


def test_a_token_that_the_model_never_predicts_adds_nothing(numbers):
    embedding, end, value = numbers

    class Never(LinearHead):
        def logits(self, vectors, layer=None):
            logits = super().logits(vectors)
            logits[:, 4] = -torch.inf
            return logits

    head = Never(embedding)
    (effects,) = measure_effects(
        head, [(end + value)[None]], predict(head, end[None], READ_AS), [torch.tensor([1])], READ_AS
    )
    others = torch.arange(30) != 4
    p, q = ((embedding @ vector)[others].double().log_softmax(0) for vector in (end, end + value))
    assert effects.divergence.item() == pytest.approx((p.exp() * (p - q)).sum().item(), rel=1e-4)


def test_a_real_head(inputs):
    """The final norm is part of it."""
    loaded, head = load(inputs("gpt2")[0], "cpu"), load_head(inputs("gpt2")[0], "cpu")
    end, change = torch.randn(2, 16, generator=torch.Generator().manual_seed(2))
    model = loaded.model
    before, after = (
        model.lm_head(model.transformer.ln_f(vector)).double().log_softmax(0) for vector in (end, end + change)
    )
    (effects,) = measure_effects(head, [(end + change)[None]], predict(head, end[None], 2), [torch.arange(60)], 2)
    torch.testing.assert_close(effects.log_p[0], (after - before).detach(), rtol=1e-4, atol=1e-5)
