"""Entries of files in the GGUF form: a model computes with each of them, or the file is refused by its name.

The entries are those that llama.cpp's converter writes for each architecture, and that llama.cpp reads.
"""

import contextlib
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ffkv.base.errors import UserError
from ffkv_gguf.gguf_file import compare_entries

SIZES = {
    "vocab_size": 60, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OF_GPT = {"vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GEMMA = {"head_dim": 256, "sliding_window": 8}
RMS, PLAIN = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
# Architecture: type of its config, what its config has beside the sizes, and entries beside the sizes.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {RMS: 1e-6, "rope.dimension_count": 16, "rope.freq_base": 1e4}),
    "qwen2": ("qwen2", {}, {RMS: 1e-6, "rope.freq_base": 1e4}),
    "qwen3": ("qwen3", {"head_dim": 32}, {RMS: 1e-6, "attention.key_length": 32, "attention.value_length": 32}),
    "stablelm": ("stablelm", {}, {PLAIN: 1e-5, "rope.dimension_count": 4, "use_parallel_residual": False}),
    "nemotron": ("nemotron", {"head_dim": 16}, {PLAIN: 1e-5, "rope.dimension_count": 8, "rope.scaling.type": "none"}),
    "phi3": ("phi3", {}, {RMS: 1e-5, "rope.dimension_count": 16, "rope.scaling.original_context_length": 4096, "attention.sliding_window": 0}),
    "starcoder2": ("starcoder2", {}, {PLAIN: 1e-5, "rope.freq_base": 1e4}),
    "gemma2": ("gemma2", GEMMA, {RMS: 1e-6, "attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("gemma3_text", GEMMA, {RMS: 1e-6, "attention.key_length": 256, "rope.freq_base": 1e6, "attention.sliding_window": 8}),
    "falcon": ("falcon", {}, {PLAIN: 1e-5, "tensor_data_layout": "jploski"}),
    "gpt2": ("gpt2", {}, {PLAIN: 1e-5}),
    "bloom": ("bloom", {}, {PLAIN: 1e-5}),
    "qwen2moe": ("qwen2_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}, {RMS: 1e-6, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16}),
    "qwen3moe": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}, {RMS: 1e-6, "expert_count": 4, "expert_used_count": 2, "expert_weights_norm": True}),
}  # fmt: skip


# Ends of names of entries that are shapes, and one that is idle without a scaling.
UNCOMPARED = ("vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "expert_count", "data_layout", "rope.scaling.original_context_length")  # fmt: skip


def made(architecture: str, **more: Any) -> PreTrainedModel:
    kind, of_config, _ = KINDS[architecture]
    sizes = OF_GPT if architecture in ("gpt2", "bloom", "falcon") else SIZES
    config = AutoConfig.for_model(kind, **{**sizes, **of_config, **more})
    with torch.device("meta" if more else "cpu"):
        return AutoModelForCausalLM.from_config(config)


def entries(architecture: str, **more: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": 60, "context_length": 64, "embedding_length": 64, "block_count": 4, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.head_count_kv": 2,
    }  # fmt: skip
    if architecture in ("gpt2", "bloom", "falcon"):
        sizes["context_length"] = {"gpt2": 1024, "falcon": 2048, "bloom": 64}[architecture]
        sizes["attention.head_count_kv"] = 1 if architecture == "falcon" else 4
    return {f"{architecture}.{name}": value for name, value in {**sizes, **KINDS[architecture][2], **more}.items()}


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    found = {architecture: made(architecture) for architecture in KINDS}
    found["falcon"].config.num_key_value_heads = 1  # as transformers sets it from the file
    return found


@pytest.mark.parametrize("architecture", KINDS)
def test_a_file_as_the_converter_writes_it_is_read_and_every_other_number_is_refused(models, architecture):
    given = entries(architecture)
    compare_entries("a.gguf", architecture, given, models[architecture])
    for full, value in given.items():
        if full.endswith(UNCOMPARED):
            continue
        words = {"none": "longrope", False: True, True: False}
        other = value * 2 if isinstance(value, float) else words.get(value, value * 2 if value else 5)
        with pytest.raises(UserError, match=rf"a\.gguf says that {full} is "):
            compare_entries("a.gguf", architecture, {**given, full: other}, models[architecture])


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope.scaling.factor", 8.0),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 1.19),
        ("rope.scaling.alpha", 1000.0),
        ("rope.freq_base", 123.0),
        ("rope.dimension_count", 2),
        ("attention.scale", 0.5),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.temperature_scale", 0.1),
        ("attention.sliding_window", 16),
        ("attention.sliding_window_pattern", [True, True, True, False]),
        ("attention.max_alibi_bias", 4.0),
        ("final_logit_softcapping", 15.0),
        ("logit_scale", 0.25),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.22),
        ("expert_weights_scale", 2.5),
        ("expert_gating_func", 2),
        ("leading_dense_block_count", 1),
        ("swiglu_clamp_exp", [7.0, 7.0, 7.0, 7.0]),
        ("entry.of.tomorrow", 3),
    ],
)
def test_a_number_that_the_model_does_not_compute_with_is_refused_by_its_name(models, architecture, name, value):
    if name in ("rope.freq_base", "rope.dimension_count", "rope.scaling.factor") and architecture in ("gpt2", "bloom"):
        return  # these turn no positions
    if name == "attention.sliding_window_pattern" and architecture == "gemma3":
        value = [True, False, True, False]
    given = entries(architecture, **{name: value})
    with pytest.raises(UserError, match=rf"{architecture}\.{name}"):
        compare_entries("a.gguf", architecture, given, models[architecture])


@pytest.mark.parametrize("architecture", KINDS)
def test_numbers_that_change_nothing_are_read(models, architecture):
    """None of them is of a kind that an architecture here has."""
    more = {
        "rope.scaling.type": "linear", "rope.scaling.factor": 1.0, "rope.scaling.finetuned": True, "residual_scale": 1.0,
        "attention.causal": True, "expert_group_count": 0, "nextn_predict_layers": 0, "entry.of.tomorrow": 0,
    }  # fmt: skip
    compare_entries("a.gguf", architecture, entries(architecture, **more), models[architecture])


@pytest.mark.parametrize("value", ["word", [1, 2, 3], 0, -1, "", [], 1e300])
@pytest.mark.parametrize("name", ["attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length", "attention.head_count", "rope.scaling.type", "rope.freq_base", "expert_gating_func"])  # fmt: skip
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_numbers_and_words_of_any_kind_are_refused_or_read_without_a_traceback(models, architecture, name, value):
    with contextlib.suppress(UserError):
        compare_entries("a.gguf", architecture, entries(architecture, **{name: value}), models[architecture])


@pytest.mark.parametrize(
    ("architecture", "layers", "width", "heads"), [("gemma2", 46, 4608, 32), ("gemma3", 62, 5376, 32)]
)
def test_the_scale_that_llama_cpp_adds_to_the_largest_gemma_is_missed(architecture, layers, width, heads):
    """Gemma 2 27B and Gemma 3 27B divide by the root of 144 and of 168. Of the other sizes, the file's numbers tell."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads, "head_dim": 128}
    names = {"block_count": layers, "embedding_length": width, "attention.head_count": heads}
    given = entries(architecture, **names, **{"attention.key_length": 128})
    given.pop(f"{architecture}.attention.value_length", None)
    told = rf"leaves out {architecture}\.attention\.scale, for which llama\.cpp takes 0\.0[78]\d+, .* 0\.0625"
    with pytest.raises(UserError, match=told):
        compare_entries("a.gguf", architecture, given, made(architecture, **sizes))
    right = made(architecture, **sizes, query_pre_attn_scalar=width // heads)
    compare_entries("a.gguf", architecture, given, right)


@pytest.mark.parametrize(
    ("architecture", "name", "told"),
    [
        ("gemma3", "rope.freq_base", r"rope\.freq_base"),
        ("stablelm", "rope.dimension_count", r"rope\.dimension_count"),
        ("qwen3", "attention.key_length", r"rope\.dimension_count"),
    ],
)
def test_what_a_file_leaves_out_has_the_number_of_llama_cpp(models, architecture, name, told):
    """Its default angle of positions is 10,000, it turns whole heads, and a head is as wide as the model has room for."""
    given = entries(architecture)
    del given[f"{architecture}.{name}"]
    with pytest.raises(UserError, match=rf"leaves out {architecture}\.{told}, for which llama\.cpp takes"):
        compare_entries("a.gguf", architecture, given, models[architecture])
