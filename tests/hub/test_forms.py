"""The forms in which weights are published: quantised, as adapters, as GGUF, with another tokenizer; and damaged files."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from hub.attempts import BEGIN, reported
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support import random_checkpoint, random_model
from transformers import AutoModelForCausalLM, LlamaConfig

from ffkv.errors import UserError
from ffkv.model.checkpoint.read import load_checkpoint
from ffkv.model.step import prove
from ffkv.settings import Model

# The values of the 16 codes of FP4 (one bit of sign, two of exponent, one of mantissa).
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def edit_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def with_random_mxfp4(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Replaces the experts' matrices [expert, in, out] by random blocks and scales; returns also what these stand for.

    Stored: blocks [expert, out, in / 32, 16] with two codes a byte, the lower half first; scales [expert, out, in / 32]
    with exponents of 2, plus 127.
    """
    generator = torch.Generator().manual_seed(0)
    packed, meant = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(124, 128, shape, generator=generator, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).long()
        values = FP4[codes].reshape(*shape, 32) * 2.0 ** (scales.double() - 127)[..., None]
        meant[name] = values.reshape(experts, outputs, inputs).transpose(1, 2).float()
    return packed, meant


def test_mxfp4_is_read_as_published_and_proven(tmp_path):
    folder = random_checkpoint(tmp_path / "gpt-oss", "gpt-oss")
    edit_config(folder, hidden_size=32, intermediate_size=32)
    config = json.loads((folder / "config.json").read_text())
    model = random_model(AutoModelForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=True).config)
    model.save_pretrained(folder)
    packed, meant = with_random_mxfp4(load_file(folder / "model.safetensors"))
    assert len(meant) == 2 * config["num_hidden_layers"]
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    modules = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    edit_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": modules})
    proven = prove(Model(checkpoint=str(folder)))
    found = dict(proven.model.named_parameters())
    for name, expected in meant.items():
        assert torch.equal(found[name], expected), name
    assert proven.anatomy.dtype == "float32"
    assert max(proven.anatomy.errors.values()) < 1e-4
