"""Models in which something that others take for granted is missing: nothing fires, one layer, one memory, equal values."""

from collections.abc import Callable
from pathlib import Path

import torch
from support import detector_checkpoint, word_tokenizer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

SHAPE = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_inner": 8, "vocab_size": 60, "n_positions": 32, "bos_token_id": 0,
         "eos_token_id": 0}  # fmt: skip
RELU = {"activation_function": "relu"}


def _dead(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(-100.0)


def _negative(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(-1.5)
    mlp.c_fc.weight.mul_(0.05)


def _constant(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(1.0)
    mlp.c_fc.weight.zero_()


def _equal_keys(mlp: nn.Module) -> None:
    mlp.c_fc.bias.fill_(0.1)
    mlp.c_fc.weight.copy_(mlp.c_fc.weight[:, :1].expand_as(mlp.c_fc.weight))


def _equal_values(mlp: nn.Module) -> None:
    mlp.c_proj.weight.copy_(mlp.c_proj.weight[:1].expand_as(mlp.c_proj.weight))


# What differs from `SHAPE`, what is done to a feed-forward layer, and to which layers.
Change = tuple[dict[str, object], Callable[[nn.Module], None] | None, slice]
EVERY, FIRST, LAST = slice(None), slice(0, 1), slice(-1, None)
DEGENERATE: dict[str, Change | None] = {
    "detector": None,  # words that no key detects are in most corpora
    "dead": (RELU, _dead, EVERY),
    "dead-first-layer": (RELU, _dead, FIRST),
    "dead-last-layer": (RELU, _dead, LAST),
    "never-positive": ({}, _negative, EVERY),
    "never-positive-first-layer": ({}, _negative, FIRST),
    "constant": ({}, _constant, EVERY),
    "equal-keys": ({}, _equal_keys, EVERY),
    "equal-values": ({}, _equal_values, EVERY),
    "one-layer": ({"n_layer": 1}, None, EVERY),
    "one-memory": ({"n_inner": 1}, None, EVERY),
    "one-layer-of-one-memory": ({"n_layer": 1, "n_inner": 1, **RELU}, None, EVERY),
    "wide": ({"n_embd": 32}, None, EVERY),
}


def degenerate_checkpoint(folder: Path, kind: str) -> Path:
    """A tiny GPT-2 of a kind."""
    if (change := DEGENERATE[kind]) is None:
        return detector_checkpoint(folder)
    shape, alter, layers = change
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**{**SHAPE, **shape}))
    with torch.no_grad():
        for parameter in model.parameters():
            bias = parameter.ndim == 1
            parameter.copy_(torch.randn_like(parameter) * (0.3 if bias else 0.5) + (parameter if bias else 0))
        for block in model.transformer.h[layers] if alter else ():
            alter(block.mlp)
    model.save_pretrained(folder)
    word_tokenizer(["<bos>", *[f"w{number}" for number in range(59)]]).save_pretrained(folder)
    return folder
