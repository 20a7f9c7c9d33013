"""Checkpoints that cannot be read are refused, with the reason; what the machine denies is named, and no file is blamed for it."""

import errno
import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import (
    CONFIGS,
    edit_json,
    known_words,
    prove_into,
    random_checkpoint,
    random_model,
    some_ids,
    word_tokenizer,
)
from transformers import AutoModelForCausalLM, BertConfig, MambaConfig

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import is_local
from ffkv.base.settings import Model
from ffkv.model.checkpoint import weights
from ffkv.model.checkpoint.checks import words_of
from ffkv.model.checkpoint.load import load, load_checkpoint
from ffkv.model.discover.prove import prove_layers
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
    known_words().save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(UserError, match=reason):
        prove_into(tmp_path / "stage", tmp_path / "checkpoint")
    assert not (tmp_path / "stage" / "values.h5").exists()


class ListOfExperts(torch.nn.Module):
    """Experts that are modules of their own, each run on its tokens, as code of checkpoints has them."""

    def __init__(self, width: int):
        super().__init__()
        self.gate = torch.nn.Linear(width, 2)
        self.experts = torch.nn.ModuleList(
            torch.nn.ModuleDict({"up_proj": torch.nn.Linear(width, 24), "down_proj": torch.nn.Linear(24, width)})
            for _ in range(2)
        )

    def forward(self, x):
        own, y = self.gate(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y[own == number] = expert["down_proj"](expert["up_proj"](x[own == number]).relu())
        return y


def test_a_list_of_experts_is_refused_by_this_name():
    model = random_model(CONFIGS["llama"])
    for layer in model.model.layers:
        layer.mlp = ListOfExperts(16)
    with pytest.raises(UserError, match=r"experts\.[01]\.down_proj sees .*: tokens pass it by: a list of experts\?"):
        prove_layers(model, some_ids(5), some_ids(6))


WEIGHT = "transformer.h.1.mlp.c_fc.weight"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda stored: stored[WEIGHT][0, 0].fill_(float("nan")), rf"not finite in {WEIGHT}"),
        (lambda stored: stored.pop(WEIGHT), rf"lacks the weights {WEIGHT}"),
        (
            lambda stored: stored.update({WEIGHT: torch.zeros(3, 3)}),
            r"c_fc\.weight of shape \(3, 3\), where a GPT2LMHeadModel of its config has \(16, 64\)",
        ),
    ],
)
def test_a_broken_tensor_is_refused_by_its_name(tmp_path, change, told):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=told):
        prove_into(tmp_path / "stage", folder)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_checkpoint_is_refused_before_the_hub_is_asked(name):
    with pytest.raises(UserError, match="no checkpoint folder"):
        load_checkpoint(Model(checkpoint=name))


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"neither config\.json"):
        load_checkpoint(Model(checkpoint=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_checkpoint(Model(checkpoint=str(tmp_path)))


def test_a_file_is_no_checkpoint(tmp_path, monkeypatch):
    """Also one in the working directory, whose name could be that of a model on the hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"no checkpoint folder model\.safetensors, but a file\. Check model\.checkpoint"
    ):
        load_checkpoint(Model(checkpoint="model.safetensors"))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    word_tokenizer([f"w{i}" for i in range(500)], bos=False).save_pretrained(folder)
    with pytest.raises(UserError, match="tokenizer of another model"):
        prove_into(tmp_path / "stage", folder)


def test_a_quantised_checkpoint_that_hides_its_weights_is_refused_by_its_method(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    packing = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    edit_json(folder / "config.json", quantization_config=packing)
    with pytest.raises(UserError, match=r"is quantised \(bitsandbytes\)"):
        prove_into(tmp_path / "stage", folder)
    assert not (tmp_path / "stage").exists()


def test_packed_weights_are_refused_by_name(tmp_path, monkeypatch):
    """A quantisation that loads, but whose parameters are packed integers."""
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    original = AutoModelForCausalLM.from_pretrained

    def packed(*args, **kwargs):
        model, info = original(*args, **kwargs)
        down = model.model.layers[0].mlp.down_proj
        down.weight = torch.nn.Parameter(down.weight.to(torch.int8), requires_grad=False)
        return model, info

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", packed)
    with pytest.raises(UserError, match=r"hides its weights, model\.layers\.0\.mlp\.down_proj\.weight"):
        prove_into(tmp_path / "stage", folder)


def test_the_embedded_model_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not trained yet"):
        prove(Model())


def test_a_config_that_changed_after_the_proof_is_refused(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "llama")
    stage = prove_into(tmp_path / "stage", folder)
    load(stage, "cpu")
    edit_json(folder / "config.json", hidden_act="relu")
    with pytest.raises(UserError, match="have changed"):
        load(stage, "cpu")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_folder_that_cannot_be_looked_up_is_not_sought_on_the_hub(monkeypatch, code):
    def fail(path, **options):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(UserError, match=f"gpt2 cannot be looked up: {os.strerror(code)}"):
        is_local("gpt2")


def test_a_name_that_no_file_can_have_is_not_local():
    assert not is_local("a" * 5000) and not is_local("a\0b")


def test_a_part_of_a_model_that_is_there_and_cannot_be_opened_is_named(tmp_path, monkeypatch):
    """safetensors calls it missing, whatever the system says."""
    part = tmp_path / "model-00001-of-00002.safetensors"
    part.touch()

    def fail(file, framework):
        raise FileNotFoundError(f"No such file or directory: {file}")

    monkeypatch.setattr(weights, "safe_open", fail)
    with pytest.raises(UserError, match=rf"{part.name} is there, but it cannot be opened\. Check the memory"):
        weights.tensors_in(part)


def test_what_the_system_said_is_not_lost_behind_the_words_of_a_library():
    error = OSError("Unable to load vocabulary from file.")
    assert words_of(error) == "Unable to load vocabulary from file."
    error.__context__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "tiny.gguf")
    assert words_of(error) == "Unable to load vocabulary from file. (Too many open files)"
    assert words_of(error.__context__) == str(error.__context__)
