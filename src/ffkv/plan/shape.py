"""The shape of a model: the sizes that a plan needs, without its weights."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ffkv.errors import UserError
from ffkv.model.checkpoint.read import check_checkpoint, load_form
from ffkv.model.discover.find import block_of, candidates_of
from ffkv.model.experts.record import layout_of, shape_of
from ffkv.settings import EMBEDDED, Settings

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")


@dataclass(frozen=True)
class Shape:
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
    """

    architecture: str
    memories: tuple[int, ...]
    width: int
    vocabulary: int
    parameters: int
    outside: int
    body: int
    dtype: str

    @property
    def layers(self) -> int:
        """L, number of feed-forward layers."""
        return len(self.memories)

    @property
    def all_memories(self) -> int:
        """M, number of memories of all layers."""
        return sum(self.memories)

    @property
    def itemsize(self) -> int:
        """Bytes per weight."""
        return getattr(torch, self.dtype).itemsize


def form_of_run(settings: Settings) -> PreTrainedModel:
    """The model of a run on torch's meta device, without weights.

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
    """The shape of a model, with or without weights.

    Feed-forward layers are found by the names of their second matrices. The model is not run, so that layers that
    `ffkv model` leaves out later are counted here.

    Args:
        second_matrix: the setting `model.second_matrix`.
    Raises:
        UserError: no feed-forward layer has a name that ffkv knows.
    """
<<<<<<< HEAD
    config, modules = model.config.get_text_config(decoder=True), dict(model.named_modules())
    embedding = model.get_output_embeddings() or model.get_input_embeddings()
    width = getattr(config, "hidden_size", None) or embedding.weight.shape[-1]
    memories: dict[str, int] = {}
    text_parts = _text_parts(modules, config)
    candidates = candidates_of(model, modules, second_matrix)
    for name, block in candidates.items():
        if name.startswith(text_parts) and (count := _memories(modules[name], width)):
            memories[block] = memories.get(block, 0) + count
    if not memories:
        raise UserError(
            f"{type(model).__name__} has no feed-forward layer of a name that ffkv knows. "
            "Set model.second_matrix; `ffkv inspect` shows the model's modules."
        )
    lists = {block.rpartition(".")[0] for block in memories}
    parameters = dict(model.named_parameters())
    inside = {name: p for name, p in parameters.items() if block_of(model, name).rpartition(".")[0] in lists}
    banks = {f"{name}.": _share(modules[name], config) for name in candidates if form_of(modules[name]) is not None}
    total = sum(p.numel() for p in parameters.values())
=======
    config = model.config.get_text_config(decoder=True)
    modules = dict(model.named_modules())
    width = _width(model, config)
    writes = _writes(model, modules, second_matrix, width)
    by_block: dict[str, int] = {}
    for block, size in writes.values():
        by_block[block] = by_block.get(block, 0) + size
    lists = {block.rpartition(".")[0] for block in by_block}
    inside = {
        name: parameter
        for name, parameter in model.named_parameters()
        if block_of(model, name).rpartition(".")[0] in lists
    }
    outside = sum(p.numel() for name, p in model.named_parameters() if name not in inside)
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    banks = [name for name in writes if layout_of(modules[name]) is not None]
    embedding = model.get_output_embeddings()
    gated = any(_is_gated(modules, name, size) for name, (_, size) in writes.items())
>>>>>>> workflow
    return Shape(
        architecture=type(model).__name__,
        memories=tuple(memories.values()),
        width=width,
        vocabulary=embedding.weight.shape[0],
        parameters=total,
        outside=total - sum(p.numel() for p in inside.values()),
        body=round(
            sum(
                p.numel() * next((share for bank, share in banks.items() if name.startswith(bank)), 1.0)
                for name, p in inside.items()
                if p.ndim > 1
            )
        ),
        dtype=str(next(p.dtype for p in parameters.values() if p.is_floating_point())).removeprefix("torch."),
    )


def _text_parts(modules: dict[str, nn.Module], config: Any) -> tuple[str, ...]:
    """Prefixes of the names of the part that reads text: the whole model, but not a vision tower beside it."""
    names = [name for name, part in modules.items() if isinstance(part, PreTrainedModel) and part.config is config]
    return tuple(f"{name}." if name else "" for name in names) or ("",)


def _memories(module: nn.Module, width: int) -> int:
<<<<<<< HEAD
    """Number of memories of a second matrix or of a bank of experts; 0 if it does not write into the residual stream."""
    if form_of(module) is not None:
=======
    """d_m of a second matrix or a bank of experts; 0 for a matrix that does not write vectors of the residual stream."""
    if layout_of(module) is not None:
>>>>>>> workflow
        return math.prod(shape_of(module))
    rows, columns = module.weight.shape if isinstance(module, nn.Linear) else reversed(module.weight.shape)
    return columns if rows == width else 0


<<<<<<< HEAD
def _share(bank: nn.Module, config: Any) -> float:
    """Share of a bank's experts that a token is sent to; 1 if the config does not tell."""
    sent = next((n for name in EXPERTS_PER_TOKEN if isinstance(n := getattr(config, name, None), int)), 0)
=======
def _is_gated(modules: dict[str, nn.Module], name: str, size: int) -> bool:
    """Whether a write is fed by two first matrices, or by one of double width."""
    form = layout_of(modules[name])
    if form is not None:
        return form.gated
    parent = name.rpartition(".")[0]
    beside = [part for path, part in modules.items() if path.rpartition(".")[0] == parent and path != name]
    shapes = [tuple(part.weight.shape) for part in beside if getattr(getattr(part, "weight", None), "ndim", 0) == 2]
    return sum(size in shape for shape in shapes) > 1 or any(2 * size in shape for shape in shapes)


def _multiplied(inside: dict, banks: list[str], modules: dict[str, nn.Module], config) -> int:
    """Entries of matrices that one token meets: all but those of experts that it is not sent to."""
    total = 0.0
    for name, parameter in inside.items():
        bank = next((bank for bank in banks if name.startswith(f"{bank}.")), None)
        total += (parameter.numel() if parameter.ndim > 1 else 0) * (_share(modules[bank], config) if bank else 1)
    return round(total)


def _share(bank: nn.Module, config) -> float:
    """The share of a bank's experts that a token is sent to; 1 where the config does not say."""
    sent = next((n for name in EXPERTS_A_TOKEN if isinstance(n := getattr(config, name, None), int)), None)
>>>>>>> workflow
    return min(1.0, sent / shape_of(bank)[0]) if sent else 1.0
