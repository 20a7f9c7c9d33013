"""The adaptive softmax as a head: what it promises, and what no linear head does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffkv.model.fairseq.modeling import AdaptiveInput, AdaptiveSoftmax, FairseqConfig


def softmax(ends=(3, 8), d=4, seed=0) -> AdaptiveSoftmax:
    bands = [[end, max(d // 2**band, 1)] for band, end in enumerate(ends)]
    config = FairseqConfig(vocab_size=ends[-1], hidden_size=d, input_bands=bands, output_bands=bands)
    torch.manual_seed(seed)
    made = AdaptiveSoftmax(config, AdaptiveInput(config))
    for weight in made.parameters():
        weight.requires_grad_(False).normal_()
    return made


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 99), st.floats(0.01, 100))
def test_probabilities_sum_to_one_whatever_the_bands(sizes, seed, scale):
    ends = torch.tensor(sizes).cumsum(0).tolist()
    states = scale * torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    found = softmax(ends, seed=seed)(states)
    assert found.shape == (3, ends[-1])
    # Logits of some 1,000 have a rounding error of 1e-4 in float32.
    torch.testing.assert_close(found.double().exp().sum(-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=5e-4)


def test_a_band_has_the_probability_that_the_head_gives_it():
    head, states = softmax((3, 8, 20)), torch.randn(5, 4)
    found = head(states).exp()
    shares = torch.cat([head.head[part](states) for part in ("word_proj", "class_proj")], 1).softmax(-1)
    torch.testing.assert_close(found[:, :3], shares[:, :3])
    torch.testing.assert_close(found[:, 3:8].sum(-1), shares[:, 3])
    torch.testing.assert_close(found[:, 8:].sum(-1), shares[:, 4])


def test_the_prediction_depends_on_the_coefficient():
    """The paper calls the ranking of a value's tokens independent of its coefficient; with an adaptive softmax it is not.

    One frequent word, and a band of ten rare ones that the vector favours, of which it means one. Times 1/2 the band's
    probability is spread over its words and the frequent word wins; times 20 the one word has it all.
    """
    head = softmax((1, 11), d=2)
    head.head["word_proj"].weight.copy_(torch.tensor([[1.0, 0.0]]))
    head.head["class_proj"].weight.copy_(torch.tensor([[1.1, 0.0]]))
    head.tail[0][0].weight.copy_(torch.tensor([[1.0], [0.0]]))
    head.tail[0][2].weight.zero_()[6] = 1.0
    v = torch.tensor([[1.0, 0.0]])
    assert head(0.5 * v).argmax().item() == 0
    assert head(20 * v).argmax().item() == 7


def test_residual_and_output_of_the_layer_may_agree_and_their_sum_not():
    """The case `other` of figure 11, which the paper's caption calls impossible: the same vector twice."""
    head = softmax((1, 11), d=2)
    head.head["word_proj"].weight.copy_(torch.tensor([[1.0, 0.0]]))
    head.head["class_proj"].weight.copy_(torch.tensor([[1.1, 0.0]]))
    head.tail[0][0].weight.copy_(torch.tensor([[1.0], [0.0]]))
    head.tail[0][2].weight.zero_()[6] = 1.0
    r = y = torch.tensor([[2.0, 0.0]])
    assert head(r).argmax() == head(y).argmax() != head(r + y).argmax()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_give_float32(dtype):
    head, states = softmax(), torch.randn(4, 4)
    found = head.to(dtype)(states.to(dtype))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head.float()(states.to(dtype).float()), rtol=0, atol=0.1)


def test_embeddings_of_every_band_are_projected_to_one_width():
    bands = [[3, 4], [8, 2]]
    config = FairseqConfig(vocab_size=8, hidden_size=4, input_bands=bands, output_bands=bands)
    table = AdaptiveInput(config)
    ids = torch.tensor([[0, 2, 3, 7], [5, 1, 4, 6]])
    with torch.no_grad():
        found = table(ids)
    for row in range(2):
        for column in range(4):
            band, start = (0, 0) if ids[row, column] < 3 else (1, 3)
            words, projection = table.embeddings[band]
            torch.testing.assert_close(
                found[row, column], projection.weight @ words.weight[ids[row, column] - start], rtol=1e-5, atol=1e-6
            )


@torch.enable_grad()  # a command that another test called in this process switches gradients off
def test_a_gradient_is_that_of_the_definition():
    """log p(word) = log p(band) + log p(word | band), by plain operations of torch."""
    head, states = softmax((3, 8, 20)), torch.randn(2, 4, requires_grad=True)
    first = torch.cat([head.head[part](states) for part in ("word_proj", "class_proj")], 1).log_softmax(-1)
    bands = [first[:, 3 + number, None] + tail(states).log_softmax(-1) for number, tail in enumerate(head.tail)]
    expected = torch.cat([first[:, :3], *bands], 1)
    weights = torch.randn(2, 20)
    torch.testing.assert_close(head(states), expected)
    (found,) = torch.autograd.grad((weights * head(states)).sum(), states)
    torch.testing.assert_close(found, *torch.autograd.grad((weights * expected).sum(), states))
