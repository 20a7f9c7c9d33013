"""The shape of a model, from its config alone."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from ffkv.base.settings import Model
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load_form
from ffkv.model.shape import measure_shape
from tools.architectures.tiny import tiny_config


def shape_of(checkpoint, **model):
    return measure_shape(load_form(Model(checkpoint=str(checkpoint), **model)))


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-relu", "opt-post-norm", "phi3", "gpt-oss"])
def test_the_shape_is_the_proven_one(checkpoints, proven, kind):
    shape, anatomy = shape_of(checkpoints(kind)), read_anatomy(proven(kind))
    assert shape.memories == tuple(layer.memories for layer in anatomy.layers)
    assert (shape.width, shape.vocabulary, shape.parameters) == (anatomy.width, anatomy.vocabulary, anatomy.parameters)
    assert (shape.dtype, shape.architecture) == (anatomy.dtype, anatomy.architecture)
    assert shape.signed == any(layer.signed for layer in anatomy.layers)


def test_experts_that_a_token_is_not_sent_to_take_no_time(checkpoints):
    """Mixtral: of four experts two are at work; an expert has three matrices of 16 x 24. Two layers."""
    whole = shape_of(checkpoints("mixtral"))
    assert whole.parameters - whole.outside - whole.body == 2 * 2 * 3 * 16 * 24


def test_a_tower_beside_the_text_is_no_layer():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("gemma3"))
    assert any("vision" in name for name, _ in model.named_modules())
    assert measure_shape(model).memories == (56,) * 4


def test_no_weight_is_read(checkpoints, tmp_path):
    folder = tmp_path / "without weights"
    folder.mkdir()
    (folder / "config.json").write_text((checkpoints("llama") / "config.json").read_text())
    assert shape_of(folder) == shape_of(checkpoints("llama"))


def test_the_type_of_the_weights_is_the_settings_one(checkpoints):
    assert shape_of(checkpoints("gpt2"), dtype="bfloat16").dtype == "bfloat16"
