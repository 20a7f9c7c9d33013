"""The form of a model from its config alone, against what the proof finds in its weights."""

import pytest
import torch
from support import ROOT
from transformers import AutoModelForCausalLM

from ffkv.architectures.tiny import tiny_config
from ffkv.embedded.training import make_model
from ffkv.errors import UserError
from ffkv.model.anatomy import read_anatomy
from ffkv.plan.shape import shape_of_model, shape_of_run
from ffkv.settings import Settings


def shape_of(checkpoint):
    return shape_of_run(Settings(model={"checkpoint": str(checkpoint)}))


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-relu", "opt-post-norm", "phi3", "gpt-oss"])
def test_the_form_is_the_proven_one(checkpoints, proven, kind):
    shape, anatomy = shape_of(checkpoints(kind)), read_anatomy(proven(kind))
    assert shape.memories == tuple(layer.memories for layer in anatomy.layers)
    assert (shape.width, shape.vocabulary, shape.context) == (anatomy.width, anatomy.vocabulary, anatomy.context)
    assert (shape.parameters, shape.dtype, shape.architecture) == (
        anatomy.parameters,
        anatomy.dtype,
        anatomy.architecture,
    )
    assert shape.signed == any(layer.signed for layer in anatomy.layers)
    assert shape.gated == any(layer.gated for layer in anatomy.layers)


def test_entries_that_a_token_is_multiplied_with(checkpoints):
    """GPT-2: four matrices d x d of attention and two d x 4d a layer. Mixtral: two of four experts, and the router."""
    assert shape_of(checkpoints("gpt2")).body == 3 * (4 * 16 * 16 + 2 * 16 * 64)
    attention, router, expert = 4 * 16 * 16, 4 * 16, 3 * 16 * 24
    assert shape_of(checkpoints("mixtral")).body == 2 * (attention + router + 2 * expert)
    assert shape_of(checkpoints("gpt2")).head == 60 * 16


def test_a_tower_beside_the_text_is_no_layer():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("gemma3"))
    assert any("vision" in name for name, _ in model.named_modules())
    assert shape_of_model(model).memories == (56,) * 4


def test_no_weight_is_read(checkpoints, tmp_path):
    folder = tmp_path / "without weights"
    folder.mkdir()
    (folder / "config.json").write_text((checkpoints("llama") / "config.json").read_text())
    assert shape_of(folder) == shape_of(checkpoints("llama"))


def test_the_embedded_model_has_the_form_that_is_trained():
    settings = Settings()
    shape, model = shape_of_run(settings), make_model(settings.embedded, settings.embedded.vocabulary, 0)
    assert shape.parameters == model.num_parameters()
    assert shape.memories == (640,) * 6
    assert not shape.signed  # ReLU


def test_a_fairseq_checkpoint(oracle_folder):
    shape = shape_of(oracle_folder)
    assert shape.memories == (512,) * 6
    assert (shape.width, shape.vocabulary, shape.signed) == (128, 13_784, False)


@pytest.fixture
def oracle_folder():
    folder = ROOT.parent / "shared" / "oracle" / "model"
    if not folder.exists():
        pytest.skip("the authors' checkpoint is not beside the project")
    return folder


def test_the_type_of_the_weights_is_the_settings_one(checkpoints):
    half = Settings(model={"checkpoint": str(checkpoints("gpt2")), "dtype": "bfloat16"})
    assert (shape_of_run(half).dtype, shape_of_run(half).itemsize) == ("bfloat16", torch.bfloat16.itemsize)


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [("./nowhere", "There is no checkpoint folder ./nowhere"), ("nobody/nothing", "offline: HF_HUB_OFFLINE is set")],
)
def test_an_unknown_model_is_refused_by_name(monkeypatch, checkpoint, message):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=message):
        shape_of(checkpoint)
