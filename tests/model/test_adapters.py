"""Adapters: merged whole, or refused by name and likely cause."""

import re
from pathlib import Path

import peft
import pytest
import torch
from peft.tuners.lora import Linear
from safetensors.torch import load_file, save_file
from support import edit_json, random_checkpoint, random_model
from transformers import AutoConfig, AutoModelForCausalLM

from ffkv.base.errors import UserError
from ffkv.base.process.libraries import collected
from ffkv.base.settings import Model
from ffkv.model.checkpoint.load import load, load_checkpoint
from ffkv.model.step import prove

FILE, LORA = "adapter_model.safetensors", {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["up_proj", "q_proj"]}
KINDS = {
    "lora": peft.LoraConfig(**LORA),
    "dora": peft.LoraConfig(**LORA, use_dora=True),
    "ranks": peft.LoraConfig(**LORA, rank_pattern={"q_proj": 4}, alpha_pattern={"q_proj": 3}),
    "some layers": peft.LoraConfig(**LORA, layers_to_transform=[1]),
    "whole head": peft.LoraConfig(**LORA, modules_to_save=["lm_head", "embed_tokens"]),
    "some tokens": peft.LoraConfig(**LORA, trainable_token_indices=[3, 5]),
    "ia3": peft.IA3Config(task_type="CAUSAL_LM", target_modules=["up_proj"], feedforward_modules=["up_proj"]),
    "adalora": peft.AdaLoraConfig(**{**LORA, "r": 8}, init_r=4, target_r=2, total_step=10),
    "loha": peft.LoHaConfig(task_type="CAUSAL_LM", r=2, target_modules=["up_proj"]),
    "vera": peft.VeraConfig(task_type="CAUSAL_LM", r=2, target_modules=["up_proj"]),
}


def adapter(folder: Path, base: Path, config, tokens: int = 0, layers: int = 0) -> Path:
    """An adapter of a model, or of one with more tokens or layers, whose tensors are random and of visible size."""
    shape = {"num_hidden_layers": layers, "ignore_mismatched_sizes": True} if layers else {}
    model = AutoModelForCausalLM.from_pretrained(base, **shape)
    if tokens:
        model.resize_token_embeddings(tokens)
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(adapted.named_parameters()):
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    adapted.save_pretrained(folder)
    return folder


def edit(folder: Path, change) -> Path:
    weights = load_file(folder / FILE)
    save_file(change(weights), folder / FILE)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("base") / "base", "llama")


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> Path:
    """A model whose input and output embedding are one matrix."""
    folder = random_checkpoint(tmp_path_factory.mktemp("base") / "tied", "llama")
    random_model(AutoConfig.from_pretrained(folder, tie_word_embeddings=True)).save_pretrained(folder)
    return folder


def settings(base: Path, folder: Path) -> Model:
    return Model(checkpoint=str(base), adapter=str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_any_kind_gives_the_logits_of_peft_and_is_proven(tmp_path, base, kind):
    folder = adapter(tmp_path / "a", base, KINDS[kind])
    ids = torch.arange(1, 20)[None]
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    before = plain(ids).logits
    expected = peft.PeftModel.from_pretrained(plain, folder).eval()(ids).logits
    assert (expected - before).abs().max() > 0.01
    proven = prove(settings(base, folder))
    # Merging rounds once more than the adapter beside the weights.
    torch.testing.assert_close(proven.model(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert proven.anatomy.remarks == []
    (tmp_path / "model").mkdir()
    proven.write(tmp_path / "model")
    load(tmp_path / "model", "cpu")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda weights: {k: v for k, v in weights.items() if "layers.1" not in k}, r"its file lacks .*layers\.1\.mlp\.up_proj\.lora_A\.weight, .*\. Fetch it again"),
        (lambda weights: {"other.weight": torch.zeros(2)}, r"its file holds other\.weight, for which the model has no place.*another model"),
        (lambda weights: {k.replace("model.model.", "model.transformer."): v for k, v in weights.items()}, r"its file holds .*transformer.*no place.*other names for the layers"),
        (lambda weights: {k: v for k, v in weights.items() if "lora_B" not in k}, r"its file lacks .*lora_B\.weight"),
        (lambda weights: {k: v for k, v in weights.items() if "lm_head" not in k}, r"its file lacks .*lm_head.*Fetch it again"),
        (lambda weights: weights | {"base_model.model.model.layers.0.mlp.up_proj.bias": torch.ones(24)}, r"its file holds .*up_proj\.bias, for which"),
        (lambda weights: {k: v[:, :1].contiguous() if k.endswith("lora_B.weight") else v for k, v in weights.items()}, r"its tensor .*lora_B\.weight has the size \(\d+, 1\), where the model has \(\d+, 2\).*rank_pattern"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused_by_name(tmp_path, base, change, told):
    whole = ["lm_head"] if "lm_head" in told else None
    folder = edit(adapter(tmp_path / "a", base, peft.LoraConfig(**LORA, modules_to_save=whole)), change)
    with pytest.raises(UserError, match=rf"The adapter {re.escape(str(folder))} cannot be merged.*{told}") as refused:
        load_checkpoint(settings(base, folder))
    assert "\n" not in str(refused.value)


def test_random_tensors_in_place_of_missing_ones_are_refused(tmp_path, base):
    folder = adapter(tmp_path / "a", base, peft.LoraConfig(**LORA))
    edit(folder, lambda weights: {"other.weight": torch.zeros(2)})
    edit_json(folder / "adapter_config.json", init_lora_weights=False)
    with pytest.raises(UserError, match="no place"):
        load_checkpoint(settings(base, folder))


def test_an_adapter_of_another_model_is_refused_with_the_cause(tmp_path, base):
    with pytest.raises(UserError, match=r"layers\.2\..* It is of a model with more than 2 layers"):
        load_checkpoint(settings(base, adapter(tmp_path / "deep", base, peft.LoraConfig(**LORA), layers=4)))
    resized = adapter(tmp_path / "tokens", base, peft.LoraConfig(**LORA, modules_to_save=["embed_tokens"]), tokens=64)
    with pytest.raises(UserError, match=r"\(64, 16\), where the model has \(60, 16\).*resize_token_embeddings"):
        load_checkpoint(settings(base, resized))
    tuned = adapter(tmp_path / "prompt", base, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(UserError, match="changes the text or the layers"):
        load_checkpoint(settings(base, tuned))


def test_what_peft_does_not_know_is_refused_and_a_tokenizer_is_named(tmp_path, base):
    folder = adapter(tmp_path / "a", base, peft.LoraConfig(**LORA))
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    (remark,) = prove(settings(base, folder)).anatomy.remarks
    assert "brings a tokenizer, which is not read" in remark
    edit_json(folder / "adapter_config.json", use_a_new_way=False)
    load_checkpoint(settings(base, folder))
    edit_json(folder / "adapter_config.json", use_a_new_way=True)
    with pytest.raises(UserError, match=r"sets use_a_new_way in adapter_config\.json, which this release of peft"):
        load_checkpoint(settings(base, folder))


def beside(base: Path, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a model with the adapter beside its weights."""
    with torch.no_grad():
        return peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()(ids).logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("names", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_what_is_meant_for_one_of_two_embeddings_and_merged_into_both_is_refused(tmp_path, tied, names, dtype):
    folder = adapter(tmp_path / "a", tied, peft.LoraConfig(**LORA | {"target_modules": ["q_proj", *names]}))
    given = settings(tied, folder).model_copy(update={"dtype": dtype})
    with pytest.raises(UserError, match=rf"logits that are off by .*It changes .*{names[0]}.*tie_word_embeddings"):
        load_checkpoint(given)


@pytest.mark.parametrize(
    "more",
    [
        {"trainable_token_indices": [3, 5]},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True},
    ],
)
def test_an_adapter_that_respects_two_embeddings_in_one_is_merged(tmp_path, tied, more):
    """peft stores the changed tokens of the two once, and ties them when it reads them."""
    folder = adapter(tmp_path / "a", tied, peft.LoraConfig(**LORA | more))
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        found = load_checkpoint(settings(tied, folder))(ids).logits
    torch.testing.assert_close(found, beside(tied, folder, ids), rtol=1e-4, atol=1e-4)  # merging rounds once more


def test_what_is_refused_for_one_matrix_is_read_with_a_matrix_for_each_as_the_refusal_advises(tmp_path, tied):
    folder = adapter(tmp_path / "a", tied, peft.LoraConfig(**LORA | {"target_modules": ["q_proj", "lm_head"]}))
    model = AutoModelForCausalLM.from_pretrained(tied)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "tied")
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        found = load_checkpoint(settings(tmp_path / "tied", folder))(ids).logits
    torch.testing.assert_close(found, beside(tied, folder, ids), rtol=1e-4, atol=1e-4)


def test_a_merge_that_computes_something_else_is_refused_whatever_its_kind(tmp_path, base, monkeypatch):
    """peft would scale what it merges otherwise than what it runs."""
    folder = adapter(tmp_path / "a", base, peft.LoraConfig(**LORA))
    original = Linear.get_delta_weight
    monkeypatch.setattr(Linear, "get_delta_weight", lambda layer, name: 0.9 * original(layer, name))
    with pytest.raises(UserError, match=r"merged, it gives logits that are off by .*with the release of peft"):
        load_checkpoint(settings(base, folder))


def test_another_name_of_the_model_that_an_adapter_was_trained_on_is_told(tmp_path, base):
    folder = adapter(tmp_path / "a", base, peft.LoraConfig(**LORA))
    for name, told in ((str(base), False), ("someone/Base", False), ("", False), ("someone/another-7b", True)):
        edit_json(folder / "adapter_config.json", base_model_name_or_path=name)
        with collected() as remarks:
            load_checkpoint(settings(base, folder))
        assert [f"names {name} as the model" in remark for remark in remarks] == [True] * told
