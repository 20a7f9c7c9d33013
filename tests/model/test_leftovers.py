"""What the files of a checkpoint hold and the model does not use is refused if it changes the computation, else named."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import SMALL, edit_json, known_words, prove_into, random_checkpoint, random_model
from transformers import LlamaConfig

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.checkpoint.load import load, load_checkpoint, load_form
from ffkv.model.step import describe, prove

LAYER = "model.layers.1"
FREQUENCIES = 10_000.0 ** -(torch.arange(0, 8, 2) / 8)  # of a Llama with heads of 8 dimensions
MASK = torch.ones(1, 1, 32, 32).tril().bool()

# Tensors that change what a Llama computes, and what the refusal says beside their names.
NEEDED = {
    f"{LAYER}.mlp.up_proj.bias": (torch.ones(24), "attention_bias, mlp_bias"),
    f"{LAYER}.self_attn.q_proj.bias": (torch.ones(16), "attention_bias, mlp_bias"),
    f"{LAYER}.mlp.norm.weight": (torch.ones(24), "What is computed with them"),
    f"{LAYER}.self_attn.q_norm.weight": (torch.ones(8), "What is computed with them"),
    f"{LAYER}.mlp.up_proj.lora_A.weight": (torch.ones(2, 16), "An adapter was saved"),
    f"{LAYER}.mlp.visual_gate.weight": (torch.zeros(1), "What is computed with them"),
    f"{LAYER}.mlp.up_proj.weight_scale": (torch.ones(24), "Its weights are packed"),
    "model.layers.2.mlp.down_proj.weight": (torch.ones(16, 24), "check its number of layers"),
    "model.norm.bias": (torch.ones(16), "attention_bias, mlp_bias"),
    "model.embed_norm.weight": (torch.ones(16), "What is computed with them"),
    "lm_head.bias": (torch.ones(60), "attention_bias, mlp_bias"),
    f"{LAYER}.self_attn.rotary_emb.inv_freq": (FREQUENCIES / 4, "check rope_theta"),
    f"{LAYER}.self_attn.attn.bias": (torch.ones(16), "attention_bias, mlp_bias"),
}
# Harmless ones, and what a remark says of them.
HARMLESS = {
    f"{LAYER}.self_attn.rotary_emb.inv_freq": (FREQUENCIES.half(), "frequencies of rotary positions"),
    f"{LAYER}.self_attn.rotary_emb.cos_cached": (torch.ones(1, 1, 32, 8), "tables of rotary positions"),
    f"{LAYER}.self_attn.attn.bias": (MASK, "masks of attention"),
    f"{LAYER}.attention.masked_bias": (torch.tensor(-1e4), "masks of attention"),
    f"{LAYER}.self_attn.k_scale": (torch.ones(1), "scales of a packed cache"),
    f"{LAYER}.self_attn.q_proj.bias": (torch.zeros(16), "biases that are zero"),
    "model.embeddings.position_ids": (torch.arange(32)[None], "numbers and tables of positions"),
    "model.vision_tower.layers.0.mlp.fc2.weight": (torch.ones(16, 24), "a part for images"),
    "multi_modal_projector.linear_1.bias": (torch.ones(16), "a part for images"),
    "model.encoder.layers.0.fc2.weight": (torch.ones(16, 24), "an encoder"),
    "mtp.layers.0.mlp.down_proj.weight": (torch.ones(16, 24), "several tokens ahead"),
    "v_head.summary.weight": (torch.ones(1, 16), "a head for another task"),
    "score.weight": (torch.ones(2, 16), "a head for another task"),
}


def with_tensors(folder: Path, tensors: dict[str, torch.Tensor], form: str = "safetensors") -> Path:
    """A Llama of two layers whose files hold more tensors: in one file, in two parts, or in a pickle of torch."""
    random_checkpoint(folder, "llama")
    file = folder / "model.safetensors"
    weights = load_file(file) | tensors
    if form == "safetensors":
        save_file(weights, file, metadata={"format": "pt"})
        return folder
    file.unlink()
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
        return folder
    parts = {f"model-{part:05}-of-00002.safetensors": dict(list(weights.items())[part - 1 :: 2]) for part in (1, 2)}
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, "safetensors") for name in NEEDED), (next(iter(NEEDED)), "parts"), (next(iter(NEEDED)), "bin")],
)
def test_a_tensor_that_the_computation_needs_is_refused_by_name(tmp_path, name, form):
    tensor, cause = NEEDED[name]
    folder = with_tensors(tmp_path / "a", {name: tensor}, form)
    with pytest.raises(UserError, match=rf"The checkpoint .*{re.escape(name)}.*{cause}") as refused:
        load_checkpoint(Model(checkpoint=str(folder)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("form", ["safetensors", "parts", "bin"])
def test_what_is_harmless_is_named_in_the_anatomy_and_changes_nothing(tmp_path, form):
    plain = load_checkpoint(Model(checkpoint=str(with_tensors(tmp_path / "plain", {}))))
    folder = with_tensors(tmp_path / "a", {name: tensor for name, (tensor, _) in HARMLESS.items()}, form)
    proven = prove(Model(checkpoint=str(folder)))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, proven.model.state_dict()[name])
    remarks = proven.anatomy.remarks
    kinds = {what for _, what in HARMLESS.values()}
    assert len(remarks) == len(kinds), remarks
    for name, (_, what) in HARMLESS.items():
        assert any(name in remark and what in remark and "which is not read" in remark for remark in remarks), name
        assert name in describe(proven.anatomy)
    (tmp_path / "model").mkdir()
    assert proven.write(tmp_path / "model").remarks == load(tmp_path / "model", "cpu").anatomy.remarks == remarks


def test_biases_that_the_config_forgot_are_refused_and_read_if_it_names_them(tmp_path):
    """A model whose biases are as large as its weights: without them, nearly every coefficient is another one."""
    folder = tmp_path / "a"
    model = random_model(LlamaConfig(**SMALL, intermediate_size=24, mlp_bias=True, attention_bias=True))
    model.save_pretrained(folder)
    known_words().save_pretrained(folder)
    ids = torch.arange(1, 20)[None]
    torch.testing.assert_close(load_checkpoint(Model(checkpoint=str(folder)))(ids).logits, model(ids).logits)
    edit_json(folder / "config.json", mlp_bias=False, attention_bias=False)
    with pytest.raises(UserError, match=r"mlp\.down_proj\.bias, .* and 11 more tensors"):
        prove(Model(checkpoint=str(folder)))


def test_names_that_a_class_lists_as_unused_are_named_but_not_the_bias_of_a_matrix(tmp_path):
    """GPT-2 lists "attn.bias", which c_attn.bias matches too."""
    folder = random_checkpoint(tmp_path / "a", "gpt2")
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"transformer.h.0.attn.bias": MASK}, file, metadata={"format": "pt"})
    (remark,) = prove(Model(checkpoint=str(folder))).anatomy.remarks
    assert "transformer.h.0.attn.bias" in remark
    more = {"transformer.h.3.attn.c_attn.bias": torch.ones(48)}  # of a layer that the config does not have
    save_file(weights | more, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"h\.3\.attn\.c_attn\.bias"):
        load_checkpoint(Model(checkpoint=str(folder)))


def test_a_head_of_its_own_is_read_and_named_where_the_config_ties_it(tmp_path):
    folder = random_checkpoint(tmp_path / "a", "llama")
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    edit_json(folder / "config.json", tie_word_embeddings=True)
    proven = prove(Model(checkpoint=str(folder)))
    assert torch.equal(proven.model.lm_head.weight, head)
    assert any("another lm_head.weight than model.embed_tokens.weight" in remark for remark in proven.anatomy.remarks)
    (tmp_path / "model").mkdir()
    proven.write(tmp_path / "model")  # proves the head as it was written


@pytest.mark.parametrize(
    "name", ["LlamaForSequenceClassification", "LlamaModel", "BertForMaskedLM", "Qwen2ForRewardModel"]
)
def test_a_class_that_is_no_causal_language_model_is_refused(tmp_path, name):
    folder = random_checkpoint(tmp_path / "a", "llama")
    edit_json(folder / "config.json", architectures=[name])
    for read in (load_checkpoint, load_form, prove):
        with pytest.raises(UserError, match=f"is a {name} .*not a causal language model"):
            read(Model(checkpoint=str(folder)))
    for right in ("LlamaForCausalLM", "SomeOwnForCausalLM", "LlavaForConditionalGeneration"):
        edit_json(folder / "config.json", architectures=[right])
        load_checkpoint(Model(checkpoint=str(folder)))


def test_wishes_for_the_way_a_model_runs_do_not_matter(tmp_path):
    """Code for attention that is not installed, tuples in place of named outputs."""
    folder = random_checkpoint(tmp_path / "a", "llama")
    blocks = [layer.block for layer in prove(Model(checkpoint=str(folder))).anatomy.layers]
    wishes = {"_attn_implementation": "flash_attention_2", "attn_implementation": "flash_attention_2"}
    for number, (name, wish) in enumerate([*wishes.items(), ("return_dict", False), ("use_cache", False)]):
        before = edit_json(folder / "config.json", **{name: wish})
        load_form(Model(checkpoint=str(folder)))
        anatomy = load(prove_into(tmp_path / str(number), folder), "cpu").anatomy
        assert [layer.block for layer in anatomy.layers] == blocks, name
        (folder / "config.json").write_text(json.dumps(before))


def test_one_tensor_in_two_parts_is_refused_and_a_part_that_is_not_read_is_named(tmp_path):
    folder = with_tensors(tmp_path / "a", {}, "parts")
    save_file({"old": torch.ones(2)}, folder / "model-00003-of-00003.safetensors")
    assert any("model-00003-of-00003" in remark for remark in prove(Model(checkpoint=str(folder))).anatomy.remarks)
    first, second = (folder / f"model-0000{part}-of-00002.safetensors" for part in (1, 2))
    name, tensor = next(iter(load_file(first).items()))
    save_file(load_file(second) | {name: 2 * tensor}, second, metadata={"format": "pt"})
    with pytest.raises(UserError, match=rf"the tensor {re.escape(name)} twice, in model-00001.* and model-00002"):
        load_checkpoint(Model(checkpoint=str(folder)))


def test_a_warning_of_a_library_that_nobody_knows_is_shown(tmp_path):
    folder = random_checkpoint(tmp_path / "a", "llama")
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0, "an_unknown_key": 3}
    edit_json(folder / "config.json", rope_parameters=rope)
    remarks = prove(Model(checkpoint=str(folder))).anatomy.remarks
    assert any(remark.startswith("transformers says: ") and "an_unknown_key" in remark for remark in remarks)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int32])
def test_weights_in_whole_numbers_without_scales_are_refused(tmp_path, form, kind):
    """Nobody could compute with them: they are numbers up to 127 in the place of weights."""
    name = f"{LAYER}.mlp.up_proj.weight"
    folder = with_tensors(tmp_path / "a", {name: torch.full((24, 16), 50, dtype=kind)}, form)
    with pytest.raises(UserError, match=rf"stores {re.escape(name)} in whole numbers, .*quantization_config"):
        load_checkpoint(Model(checkpoint=str(folder)))
