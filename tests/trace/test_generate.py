"""Text with memories off: equal to what whole forward passes say, token by token, for each kind of layer."""

import numpy as np
import pytest
import torch
from support import LAYER_KINDS

import ffkv
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from ffkv.run.trace.generate import _choose, write_tokens
from ffkv.run.trace.settings import GenerateOptions

BEGINNING = np.array([0, 3, 5, 7])


class Model:
    """What `write_tokens` needs of a run's model."""

    def __init__(self, loaded, end: int | None = None):
        self.__dict__.update(vars(loaded))
        self.model, self.anatomy, self.device = loaded.model, loaded.anatomy, loaded.device
        self.tokenizer = type("Tokenizer", (), {"eos_token_id": end})


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_tokens_are_those_of_whole_passes(kind, load_kind):
    """Ties of random models aside, the highest logit of a pass over all tokens is the next token, changes included."""
    loaded = load_kind(kind)
    factors = {(layer.index, memory): 5.0 * memory for layer in loaded.anatomy.layers for memory in (0, 1, 3)}
    written = {}
    for name, changed in (("untouched", {}), ("changed", factors)):
        ids = BEGINNING.tolist()
        for _ in range(6):
            with scaled(loaded.model, loaded.anatomy.layers, changed):
                ids.append(int(forward(loaded.model, torch.tensor([ids])).logits[0, -1].argmax()))
        written[name] = write_tokens(Model(loaded), BEGINNING, changed, GenerateOptions(tokens=6))
        assert written[name] == ids[len(BEGINNING) :]
    assert not any(module._forward_pre_hooks for module in loaded.model.modules())


def test_a_text_ends_with_the_token_that_ends_documents(load_kind):
    loaded = load_kind("llama")
    whole = write_tokens(Model(loaded), BEGINNING, {}, GenerateOptions(tokens=6))
    ended = write_tokens(Model(loaded, end=whole[2]), BEGINNING, {}, GenerateOptions(tokens=6))
    assert ended == whole[: whole.index(whole[2])]


def test_drawn_tokens_follow_the_probabilities():
    """10,000 draws: shares within 0.02, four standard errors; and nothing outside of the most probable tokens."""
    logits = torch.log(torch.tensor([0.1, 0.6, 0.3]))
    generator = torch.Generator().manual_seed(0)
    drawn = np.array([_choose(logits, GenerateOptions(temperature=1.0), generator) for _ in range(10_000)])
    assert np.bincount(drawn, minlength=3) / 10_000 == pytest.approx([0.1, 0.6, 0.3], abs=0.02)
    few = {_choose(logits, GenerateOptions(temperature=1.0, top_p=0.7), generator) for _ in range(200)}
    assert few == {1, 2}
    assert {_choose(logits, GenerateOptions(temperature=1.0, top_p=0.5), generator) for _ in range(50)} == {1}
    assert _choose(logits, GenerateOptions(), generator) == 1


def test_options_that_cannot_be():
    with pytest.raises(ffkv.UserError, match="temperature"):
        GenerateOptions(temperature=-1.0)
    with pytest.raises(ffkv.UserError, match="top_p"):
        GenerateOptions(top_p=0.0)
