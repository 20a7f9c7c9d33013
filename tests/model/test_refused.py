"""Checkpoints that cannot be read are refused, with the reason."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import prove_into, random_checkpoint, word_tokenizer
from transformers import AutoModelForCausalLM, BertConfig, MambaConfig

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.checkpoint.load import load
from ffkv.model.step import prove

REFUSED = {
    "mamba": (
        MambaConfig(num_hidden_layers=2, hidden_size=16, vocab_size=60),
        "no feed-forward layer: state-space model.*MambaBlock",
    ),
    "bert": (
        BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24),
        "not causal",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_read_are_refused_with_the_reason(tmp_path, kind):
    config, reason = REFUSED[kind]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "checkpoint")
    word_tokenizer(["<bos>", *[f"w{i}" for i in range(59)]]).save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(UserError, match=reason):
        prove_into(tmp_path / "stage", tmp_path / "checkpoint")
    assert not (tmp_path / "stage" / "values.h5").exists()


def broken(tmp_path, change):
    folder = shutil.copytree(random_checkpoint(tmp_path / "good", "gpt2"), tmp_path / "bad")
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path):
    folder = broken(tmp_path, lambda weights: weights["transformer.h.1.mlp.c_fc.weight"][0, 0].fill_(float("nan")))
    with pytest.raises(UserError, match=r"not finite in transformer\.h\.1\.mlp\.c_fc\.weight"):
        prove_into(tmp_path / "stage", folder)


def test_a_missing_tensor_is_refused_by_name(tmp_path):
    folder = broken(tmp_path, lambda weights: weights.pop("transformer.h.1.mlp.c_fc.weight"))
    with pytest.raises(UserError, match=r"lacks the weights transformer\.h\.1\.mlp\.c_fc\.weight"):
        prove_into(tmp_path / "stage", folder)


def test_a_misshapen_tensor_is_refused(tmp_path):
    folder = broken(tmp_path, lambda weights: weights.__setitem__("transformer.h.1.mlp.c_fc.weight", torch.zeros(3, 3)))
    with pytest.raises(
        UserError, match=r"c_fc\.weight of shape \(3, 3\), where a GPT2LMHeadModel of its config has \(16, 64\)"
    ):
        prove_into(tmp_path / "stage", folder)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./nowhere", "no checkpoint folder"),
        ("/nowhere/at/all", "no checkpoint folder"),
        ("a/b/c", "no checkpoint folder"),
    ],
)
def test_a_missing_checkpoint_is_refused_before_the_hub_is_asked(name, reason):
    with pytest.raises(UserError, match=reason):
        from ffkv.model.checkpoint.read import load_checkpoint

        load_checkpoint(Model(checkpoint=name))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    from ffkv.model.checkpoint.read import load_checkpoint

    with pytest.raises(UserError, match=r"neither config\.json"):
        load_checkpoint(Model(checkpoint=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_checkpoint(Model(checkpoint=str(tmp_path)))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    word_tokenizer([f"w{i}" for i in range(500)], bos=False).save_pretrained(folder)
    with pytest.raises(UserError, match="tokenizer of another model"):
        prove_into(tmp_path / "stage", folder)


def test_a_quantised_checkpoint_that_hides_its_weights_is_refused_by_its_method(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"is quantised \(bitsandbytes\)"):
        prove_into(tmp_path / "stage", folder)
    assert not (tmp_path / "stage").exists()


def test_packed_weights_are_refused_by_name(tmp_path, monkeypatch):
    """A quantisation that loads, but whose parameters are packed integers."""
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    from transformers import AutoModelForCausalLM

    original = AutoModelForCausalLM.from_pretrained

    def packed(*args, **kwargs):
        model, info = original(*args, **kwargs)
        down = model.model.layers[0].mlp.down_proj
        down.weight = torch.nn.Parameter(down.weight.to(torch.int8), requires_grad=False)
        return model, info

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", packed)
    with pytest.raises(UserError, match=r"hides its weights, model\.layers\.0\.mlp\.down_proj\.weight"):
        prove_into(tmp_path / "stage", folder)


def changed_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def test_layers_that_the_config_does_not_have_are_not_left_out_silently(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    changed_config(folder, num_hidden_layers=1)
    with pytest.raises(
        UserError, match=r"feed-forward layers that its config does not have, model\.layers\.1\.mlp\.down_proj\.weight"
    ):
        prove(Model(checkpoint=str(folder)))


def test_layers_of_another_part_than_the_one_that_is_read_are_left_out_rightly(tmp_path):
    """An encoder, a vision tower: no layers that the model itself would have."""
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    weights = load_file(folder / "model.safetensors")
    weights["vision_tower.layers.0.mlp.fc2.weight"] = torch.zeros(16, 24)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    anatomy = prove(Model(checkpoint=str(folder))).anatomy
    assert [layer.block for layer in anatomy.layers] == ["model.layers.0", "model.layers.1"]


def test_the_embedded_model_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not trained yet"):
        prove(Model())


def test_a_config_that_changed_after_the_proof_is_refused(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    stage = prove_into(tmp_path / "stage", folder)
    load(stage, "cpu")
    changed_config(folder, hidden_act="relu")
    with pytest.raises(UserError, match="have changed"):
        load(stage, "cpu")
