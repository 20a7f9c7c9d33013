"""Text with memories off: equal to what whole forward passes say, token by token, for each kind of layer."""

import json

import numpy as np
import pytest
import torch
from support import LAYER_KINDS, prove_into, random_checkpoint
from transformers import AutoModelForCausalLM

import ffkv
from ffkv.model.checkpoint.load import load
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from ffkv.run.results.run_model import RunModel
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


@pytest.mark.parametrize("several", [False, True], ids=["a number", "a list"])
@pytest.mark.parametrize("where", ["generation_config", "config", "tokenizer"])
def test_a_text_ends_with_every_token_that_the_model_names(load_kind, where, several):
    loaded = load_kind("llama")
    whole = write_tokens(Model(loaded), BEGINNING, {}, GenerateOptions(tokens=6))
    end = [99, whole[2]] if several else whole[2]
    model = Model(loaded, end=end if where == "tokenizer" else None)
    if where != "tokenizer":
        getattr(loaded.model, where).eos_token_id = end
    ended = write_tokens(model, BEGINNING, {}, GenerateOptions(tokens=6))
    assert ended == whole[: whole.index(whole[2])] != whole


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_text_ends_where_that_of_transformers_does(tmp_path, file):
    """The end is a token that neither the tokenizer nor the other file names."""
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "llama")
    (checkpoint / "generation_config.json").unlink()
    plain = AutoModelForCausalLM.from_pretrained(checkpoint)
    ids = torch.from_numpy(BEGINNING[None])
    asked = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    free = plain.generate(ids, eos_token_id=1000, **asked)[0, len(BEGINNING) :].tolist()
    written = json.loads((checkpoint / file).read_text()) if (checkpoint / file).exists() else {}
    (checkpoint / file).write_text(json.dumps(written | {"eos_token_id": [1000, free[2]]}))
    run = prove_into(tmp_path / "run", checkpoint)
    model = RunModel(**vars(load(run, "cpu")), folder=run)
    by_library = model.model.generate(ids, **asked)[0, len(BEGINNING) :].tolist()
    assert [*write_tokens(model, BEGINNING, {}, GenerateOptions(tokens=6)), free[2]] == by_library != free


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


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-45, 1e-38, 1e-6, 100])
def test_every_temperature_above_0_has_probabilities(temperature):
    """Near 0 the highest logit is drawn. 100 makes all of them about as probable."""
    logits, generator = torch.tensor([-3e38, 1e4, 2e4, -torch.inf, 2e4]), torch.Generator().manual_seed(0)
    drawn = {_choose(logits, GenerateOptions(temperature=temperature), generator) for _ in range(60)}
    assert drawn == {2, 4}
    few = {_choose(torch.arange(3.0), GenerateOptions(temperature=temperature), generator) for _ in range(60)}
    assert few == ({0, 1, 2} if temperature == 100 else {2})


def test_options_that_cannot_be():
    with pytest.raises(ffkv.UserError, match="temperature"):
        GenerateOptions(temperature=-1.0)
    with pytest.raises(ffkv.UserError, match="top_p"):
        GenerateOptions(top_p=0.0)
