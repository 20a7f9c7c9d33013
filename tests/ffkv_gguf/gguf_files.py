"""Writes tiny models as files in the GGUF form, as llama.cpp's converter does."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from ffkv.model.small import train_tokenizer

LAYERS, WIDTH, MEMORIES, HEADS, KEY_HEADS, CONTEXT = 2, 64, 96, 4, 2, 64
CONTROL, NORMAL = 3, 1  # kinds of tokens
# Tensors of Qwen's linear attention in a file.
OF_QWEN = {
    "in_proj_qkv": "attn_qkv",
    "in_proj_z": "attn_gate",
    "in_proj_a": "ssm_alpha",
    "in_proj_b": "ssm_beta",
    "conv1d": "ssm_conv1d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
    "A_log": "ssm_a",
    "dt_bias": "ssm_dt.bias",
}
UNREAD = ("Q8_1", "Q8_K", "Q1_0")  # types that no library unpacks: of sums inside llama.cpp, and a new one


def tiny_llama(seed: int = 0, memories: int = MEMORIES) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A random Llama with fewer heads of keys than of queries, and a byte-level tokenizer."""
    tokenizer = train_tokenizer(["the cat and the hat. The cat sat on the mat"] * 3 + ["naïve café"], 300, CONTEXT)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=memories, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


def tiny_gemma(tokenizer: PreTrainedTokenizerFast) -> Gemma3ForCausalLM:
    """A random Gemma 3, whose two types of layers turn positions by different angles."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=MEMORIES, num_hidden_layers=LAYERS, head_dim=256,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        sliding_window=8,
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


def tiny_qwen(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5ForCausalLM:
    """A random Qwen 3.5, whose last layer has full attention and whose others have linear attention."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=MEMORIES, num_hidden_layers=4, head_dim=16,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=CONTEXT, linear_key_head_dim=16,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2, tie_word_embeddings=True,
        rope_parameters={
            "rope_theta": 1e7, "rope_type": "default", "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )  # fmt: skip
    return Qwen3_5ForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    kind: str = "F32",
    architecture: str = "llama",
    tokenizer_kind: str = "gpt2",
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
    entries: Mapping[str, float] = MappingProxyType({}),
    packed: Mapping[str, tuple[str, np.ndarray]] = MappingProxyType({}),
    name: str = "",
) -> None:
    """Writes a model.

    Args:
        path: the file.
        model: the model.
        tokenizer: its tokenizer.
        kind: the type of its matrices, such as "Q8_0"; vectors are of float32.
        architecture: what the file says that it is.
        tokenizer_kind: what the file says that its tokenizer is.
        tensors: more tensors, by name.
        entries: more numbers about the architecture, by name.
        name: what the file says that its model is called.
        packed: tensors that stand for those of the model, by their names in the file: their types and their bytes.
    """
    gemma, turned = architecture == "gemma3", model.config.rope_parameters
    writer = _begin(path, architecture, model.config, (turned["full_attention"] if gemma else turned)["rope_theta"])
    if name:
        writer.add_name(name)
    if gemma:
        writer.add_key_length(model.config.head_dim)
        writer.add_sliding_window(model.config.sliding_window)
    writer.add_vocab_size(len(tokenizer))
    _add_tokenizer(writer, tokenizer, tokenizer_kind)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3 if gemma else gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, tensor in model.state_dict().items():
        values, (stem, ending) = tensor.float().numpy(), name.rsplit(".", 1)
        if gemma and name == "lm_head.weight":  # the embedding
            continue
        if gemma:
            values = values + 1 if "norm" in name else values  # Gemma multiplies by one more than the weight
        elif "q_proj" in name or "k_proj" in name:
            values = _rotate_pairs(values, HEADS if "q_proj" in name else KEY_HEADS)
        own = f"{names.get_name(stem)}.{ending}"
        plain = (kind if values.ndim == 2 else "F32", values)
        _add(writer, own, *packed.get(own, plain))
    for name, values in tensors.items():
        _add(writer, name, "F32", values)
    for name, value in entries.items():
        writer.add_float32(f"{architecture}.{name}", value)
    _finish(writer)


def write_qwen(path: Path, model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes a Qwen 3.5 with as many heads of values as of keys, in float32."""
    config, architecture = model.config, "qwen35"
    writer = _begin(path, architecture, config, config.rope_parameters["rope_theta"])
    writer.add_key_length(config.head_dim)
    numbers = {
        "full_attention_interval": len(config.layer_types),
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
    }
    for name, number in numbers.items():
        writer.add_uint32(f"{architecture}.{name}", number)
    writer.add_array(f"{architecture}.rope.dimension_sections", [*config.rope_parameters["mrope_section"], 0])
    _add_tokenizer(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN35, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values, (stem, _, ending) = tensor.float().numpy(), name.rpartition(".")
        before, linear, leaf = name.partition("linear_attn.")
        if name == "lm_head.weight":  # the embedding
            continue
        if linear:
            stem, ending = f"blk.{before.split('.')[2]}.{OF_QWEN[leaf.removesuffix('.weight')]}", "weight"
            own = stem if leaf in ("A_log", "dt_bias") else f"{stem}.{ending}"
            values = -np.exp(values) if leaf == "A_log" else values.squeeze(1) if "conv1d" in leaf else values
        else:
            own, values = f"{names.get_name(stem)}.{ending}", values + 1 if "norm" in name else values
        _add(writer, own, "F32", values)
    _finish(writer)


def unpacked(model: LlamaForCausalLM, kind: str) -> LlamaForCausalLM:
    """The model whose matrices are what a file of this type stands for."""
    quantisation = gguf.GGMLQuantizationType[kind]
    found = LlamaForCausalLM(model.config).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        packed = gguf.quants.quantize(values, quantisation) if values.ndim == 2 else None
        state[name] = torch.from_numpy(values if packed is None else gguf.quants.dequantize(packed, quantisation))
    found.load_state_dict(state)
    return found


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random bytes of a type [row, byte] that stand for finite numbers, if the library unpacks the type."""
    quantisation, random = gguf.GGMLQuantizationType[kind], np.random.default_rng(0)
    block, size = gguf.GGML_QUANT_SIZES[quantisation]
    found = random.integers(0, 256, (64 * rows, columns // block * size), np.uint8)
    if kind in UNREAD:
        return found[:rows]
    with np.errstate(all="ignore"):
        whole = np.isfinite(gguf.dequantize(found, quantisation)).all(1)
    return found[whole][:rows]


def _begin(path: Path, architecture: str, config: PreTrainedConfig, base: float) -> gguf.GGUFWriter:
    """Begins a file with the sizes of a config. `base`: of its rotary angles."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(base)
    return writer


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast, tokenizer_kind: str = "gpt2") -> None:
    stored = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model(tokenizer_kind)
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(stored["vocab"], key=stored["vocab"].get))
    writer.add_token_types([CONTROL] + [NORMAL] * (len(tokenizer) - 1))
    writer.add_token_merges([" ".join(merge) for merge in stored["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rotate_pairs(weights: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp has the two dimensions of a rotation side by side."""
    return weights.reshape(heads, 2, len(weights) // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def _add(writer: gguf.GGUFWriter, name: str, kind: str, values: np.ndarray) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    is_packed = values.dtype == np.uint8
    writer.add_tensor(name, values if is_packed else gguf.quants.quantize(values, quantisation), raw_dtype=quantisation)
