"""What a plan must know of a model: its form, without reading its weights."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from ffkv.errors import UserError
from ffkv.model.checkpoint.read import check_checkpoint, load_form
from ffkv.model.discover.find import block_of, candidates_of
from ffkv.model.experts.record import layout_of, shape_of
from ffkv.settings import EMBEDDED, Settings

# How configs call the number of experts that a token is sent to, and the activation function.
EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "num_selects")
ACTIVATIONS = ("activation_function", "hidden_act", "hidden_activation", "activation_fn")
UNSIGNED = ("relu", "relu2", "relu6", "sigmoid")  # activations that are never negative


@dataclass(frozen=True)
class Shape:
    """The form of a model.

    memories: d_m of each feed-forward layer, in the order of the modules. width: d. vocabulary: |V|. context: longest input in
    tokens, None where only the tokenizer knows. parameters: all of them; outside: those outside of the blocks.
    body: entries of the blocks' matrices that one token is multiplied with (of experts, those that it is sent to).
    head: entries of the matrices that read one vector out. signed: whether coefficients can be negative; gated: whether
    they have a gate. dtype: name of the weights' type; itemsize: its bytes.
    """

    architecture: str
    memories: tuple[int, ...]
    width: int
    vocabulary: int
    context: int | None
    parameters: int
    outside: int
    body: int
    head: int
    signed: bool
    gated: bool
    dtype: str
    itemsize: int

    @property
    def layers(self) -> int:
        """L, the number of feed-forward layers."""
        return len(self.memories)

    @property
    def all_memories(self) -> int:
        """M, the memories of all layers."""
        return sum(self.memories)


def shape_of_run(settings: Settings) -> Shape:
    """The form of a run's model: from the settings for the embedded one, else from the checkpoint's config.

    Raises:
        UserError: no such checkpoint (of the hub: or none within reach), not a causal language model, or no feed-forward
            layer that ffkv knows.
    """
    if settings.model.checkpoint != EMBEDDED:
        check_checkpoint(settings.model.checkpoint)
        return shape_of_model(load_form(settings.model), settings.model.second_matrix)
    from ffkv.embedded.training import make_model

    with torch.device("meta"):
        return shape_of_model(make_model(settings.embedded, settings.embedded.vocabulary, settings.seed))


def shape_of_model(model: nn.Module, second_matrix: str = "") -> Shape:
    """The form of a model that may be without weights (on torch's meta device).

    Feed-forward layers are found by the names and the forms that `ffkv model` looks for, without running the model: what
    the proof refuses or leaves out later is still counted here.

    Raises:
        UserError: no feed-forward layer of a known name.
    """
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
    return Shape(
        architecture=type(model).__name__,
        memories=tuple(by_block.values()),
        width=width,
        vocabulary=embedding.weight.shape[0] if embedding is not None else config.vocab_size,
        context=_context(config),
        parameters=sum(p.numel() for p in model.parameters()),
        outside=outside,
        body=_multiplied(inside, banks, modules, config),
        head=embedding.weight.numel() if embedding is not None else outside,
        signed=gated or _activation(config) not in UNSIGNED,
        gated=gated,
        dtype=str(dtype).removeprefix("torch."),
        itemsize=dtype.itemsize,
    )


def _writes(
    model: nn.Module, modules: dict[str, nn.Module], second_matrix: str, width: int
) -> dict[str, tuple[str, int]]:
    """Block and number of memories of each module that writes into the residual stream, by its name."""
    within = _text_parts(model, model.config.get_text_config(decoder=True))
    writes = {
        name: (block, size)
        for name, block in candidates_of(model, modules, second_matrix).items()
        if name.startswith(within) and (size := _memories(modules[name], width))
    }
    if not writes:
        raise UserError(
            f"{type(model).__name__} has no feed-forward layer of a name that ffkv knows: set model.second_matrix, see `ffkv inspect`."
        )
    return writes


def _text_parts(model: nn.Module, config) -> tuple[str, ...]:
    """Where the model that has the text's config stands: beside a vision tower it is a part, else it is the whole."""
    parts = [name for name, part in model.named_modules() if getattr(part, "config", None) is config]
    return tuple(
        f"{name}." if name else "" for name in parts if isinstance(model.get_submodule(name), PreTrainedModel)
    ) or ("",)


def _width(model: nn.Module, config) -> int:
    for name in ("hidden_size", "n_embd", "d_model"):
        if isinstance(size := getattr(config, name, None), int):
            return size
    return model.get_input_embeddings().weight.shape[-1]


def _context(config) -> int | None:
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
    return next((size for name in names if isinstance(size := getattr(config, name, None), int) and size > 0), None)


def _memories(module: nn.Module, width: int) -> int:
    """d_m of a second matrix or a bank of experts; 0 for a matrix that does not write vectors of the residual stream."""
    if layout_of(module) is not None:
        return math.prod(shape_of(module))
    rows, columns = module.weight.shape if isinstance(module, nn.Linear) else reversed(module.weight.shape)
    return columns if rows == width else 0


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
    return min(1.0, sent / shape_of(bank)[0]) if sent else 1.0


def _activation(config) -> str:
    return str(next((getattr(config, name) for name in ACTIVATIONS if hasattr(config, name)), "unknown"))
