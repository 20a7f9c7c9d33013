"""The shape of a model: the sizes that a plan needs. No weight is read."""

import math
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ffkv.errors import UserError
from ffkv.model.checkpoint.read import check_checkpoint, load_form
from ffkv.model.discover.find import block_of, candidates_of
from ffkv.model.experts.record import layout_of, shape_of
from ffkv.settings import EMBEDDED, Settings

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")


class Shape(NamedTuple):
    """The sizes of a model.

    Attributes:
        architecture: name of its class.
        memories: d_m, number of memories [layer].
        width: d, size of the residual stream.
        vocabulary: |V|.
        parameters: number of all weights.
        outside: number of weights outside of the blocks: the embeddings, the head.
        body: number of weights in the blocks that one token is multiplied with; of experts, those that it is sent to.
        dtype: name of the weights' type.
        itemsize: bytes per weight.
    """

    architecture: str
    memories: tuple[int, ...]
    width: int
    vocabulary: int
    parameters: int
    outside: int
    body: int
    dtype: str
    itemsize: int


def load_model_form(settings: Settings) -> PreTrainedModel:
    """The model of a run on torch's meta device: all its modules, no weights.

    Raises:
        UserError: no such checkpoint, or not a causal language model.
    """
    if settings.model.checkpoint != EMBEDDED:
        check_checkpoint(settings.model.checkpoint)
        return load_form(settings.model)
    from ffkv.embedded.training import make_model

    with torch.device("meta"):
        return make_model(settings.embedded, settings.embedded.vocabulary, settings.seed)


def measure_shape(model: PreTrainedModel, second_matrix: str = "") -> Shape:
    """The shape of a model. Its feed-forward layers are found by the names of their second matrices; it is not run.

    Args:
        model: the model, with or without weights.
        second_matrix: the setting `model.second_matrix`.
    Raises:
        UserError: no feed-forward layer has a name that ffkv knows.
    """
    config, modules = model.config.get_text_config(decoder=True), dict(model.named_modules())
    embedding: Any = model.get_output_embeddings() or model.get_input_embeddings()
    width = getattr(config, "hidden_size", None) or embedding.weight.shape[-1]
    readers = [name for name, part in modules.items() if getattr(part, "config", None) is config]
    text = tuple(f"{name}." for name in readers if name) if "" not in readers else ("",)  # beside a vision tower
    memories: dict[str, int] = {}
    shares: dict[str, float] = {}
    for name, block in candidates_of(model, modules, second_matrix).items():
        if name.startswith(text or ("",)) and (count := _memories(modules[name], width)):
            memories[block] = memories.get(block, 0) + count
            if layout_of(modules[name]) is not None:
                sent = next((n for key in EXPERTS_PER_TOKEN if isinstance(n := getattr(config, key, None), int)), 0)
                shares[f"{name}."] = min(1.0, sent / shape_of(modules[name])[0]) if sent else 1.0
    if not memories:
        raise UserError(
            f"{type(model).__name__} has no feed-forward layer of a name that ffkv knows. "
            "Set model.second_matrix; `ffkv inspect` shows the modules of the model."
        )
    lists = {block.rpartition(".")[0] for block in memories}
    parameters = dict(model.named_parameters())
    inside = {name: p for name, p in parameters.items() if block_of(model, name).rpartition(".")[0] in lists}
    multiplied = (
        p.numel() * next((share for bank, share in shares.items() if name.startswith(bank)), 1.0)
        for name, p in inside.items()
        if p.ndim > 1
    )
    total = sum(p.numel() for p in parameters.values())
    dtype = next(p.dtype for p in parameters.values() if p.is_floating_point())
    return Shape(
        architecture=type(model).__name__,
        memories=tuple(memories.values()),
        width=width,
        vocabulary=embedding.weight.shape[0],
        parameters=total,
        outside=total - sum(p.numel() for p in inside.values()),
        body=round(sum(multiplied)),
        dtype=str(dtype).removeprefix("torch."),
        itemsize=dtype.itemsize,
    )


def _memories(module: nn.Module, width: int) -> int:
    """Number of memories of a second matrix or a bank of experts; 0 if it does not write into the residual stream."""
    if layout_of(module) is not None:
        return math.prod(shape_of(module))
    weight: Any = module.weight
    rows, columns = weight.shape if isinstance(module, nn.Linear) else reversed(weight.shape)
    return columns if rows == width else 0
