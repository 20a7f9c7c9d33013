"""Models of random weights: the control under a run's figures."""

import pytest
import torch
from model.gguf_files import tiny_llama, write_gguf
from support import random_checkpoint

from ffkv.base.errors import UserError
from ffkv.base.settings import Model, section
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.read import load_checkpoint
from ffkv.model.step import describe, prove


def weights_of(model) -> torch.Tensor:
    return torch.cat([parameter.detach().float().ravel() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gpt-oss", "gemma2", "fairseq"])
def test_random_weights_are_proven_and_loaded_again(tmp_path, kind, write_checkpoint):
    folder = tmp_path / "checkpoint"
    checkpoint = write_checkpoint(folder) if kind == "fairseq" else random_checkpoint(folder, kind)
    settings = Model(checkpoint=str(checkpoint), device="cpu", weights="random", weights_seed=3)
    state = torch.random.get_rng_state()
    proven = prove(settings)
    assert torch.equal(torch.random.get_rng_state(), state), "other random numbers of the process are as before"
    weights = weights_of(proven.model)
    (tmp_path / "run/model").mkdir(parents=True)
    proven.write(tmp_path / "run/model", tmp_path / "run/values.h5")
    again = load(tmp_path / "run/model", "cpu")  # refuses weights with another hash
    assert torch.equal(weights_of(again.model), weights)
    assert (again.anatomy.weights, again.anatomy.weights_seed) == ("random", 3)
    assert "random weights, seed 3" in describe(again.anatomy)
    trained = load_checkpoint(settings.model_copy(update={"weights": "checkpoint"}))
    assert weights_of(trained).shape == weights_of(again.model).shape
    assert not torch.equal(weights_of(trained), weights_of(again.model))


def test_the_seed_decides(tmp_path):
    checkpoint = str(random_checkpoint(tmp_path / "checkpoint", "gpt2"))
    first, same, other = (
        prove(Model(checkpoint=checkpoint, weights="random", weights_seed=seed)).anatomy.model_hash
        for seed in (1, 1, 2)
    )
    trained = prove(Model(checkpoint=checkpoint)).anatomy.model_hash
    assert first == same and len({first, other, trained}) == 3


def test_the_scale_of_the_weights_is_that_of_the_config(tmp_path):
    """GPT-2 initialises its matrices with a standard deviation of `initializer_range`."""
    checkpoint = str(random_checkpoint(tmp_path / "checkpoint", "gpt2"))
    model = load_checkpoint(Model(checkpoint=checkpoint, weights="random"))
    assert model.transformer.h[0].mlp.c_fc.weight.std().item() == pytest.approx(model.config.initializer_range, rel=0.1)
    assert model.transformer.h[0].ln_1.weight.eq(1).all()
    assert load_checkpoint(Model(checkpoint=checkpoint, weights="random", dtype="bfloat16")).dtype == torch.bfloat16


def test_an_adapter_does_not_go_with_random_weights():
    with pytest.raises(
        UserError, match=r"model.weights is 'random' and model.adapter is 'a': random weights take nothing"
    ):
        section(Model, weights="random", adapter="a")


def test_the_config_of_random_weights_can_come_from_a_gguf_file(tmp_path):
    model, tokenizer = tiny_llama(seed=0)
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    settings = Model(checkpoint=str(tmp_path), gguf="tiny.gguf", weights="random", weights_seed=1, device="cpu")
    proven = prove(settings)
    trained = load_checkpoint(settings.model_copy(update={"weights": "checkpoint"}))
    assert weights_of(proven.model).shape == weights_of(trained).shape
    assert not torch.equal(weights_of(proven.model), weights_of(trained))
    assert (proven.anatomy.weights, proven.anatomy.gguf) == ("random", "tiny.gguf")
