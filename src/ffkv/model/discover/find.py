"""Finds the modules that write into the residual stream: second matrices by name, banks of experts by their tensors."""

import re
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.base.settings.section import compile_expression
from ffkv.model.dictionaries import Decoder, StandIn
from ffkv.model.experts import layout_of, written
from ffkv.model.tap.hooks import after, before, counting_repeats, forward, hidden_state

# The names of second matrices, at the end of their name inside the block. There is no other table of names.
SECOND_MATRIX_NAMES = (
    r"(^|\.)(down_proj|fc2|fc_out|c_proj|dense_4h_to_h|w2|w_out|Wo|output_linear|lin2|layer_2|proj_down"
    r"|output\.dense|ffn\.2|feed_forward\.(value|output))$"
)
# Parts of a block in which such a name means something else.
OTHER_PARTS = re.compile(r"att|norm|router|indexer|adapter|embed")
INSIDE_A_ROUTER = re.compile(r"(^|\.)gate\.")  # unless it writes vectors of the residual stream's width
Modules = dict[str, nn.Module]  # by name
Shapes = dict[str, tuple[int, ...]]  # of what modules write, by name


class FoundBlock(NamedTuple):
    """One repeat of a block, and what writes into the residual stream in it."""

    block: str  # name of the block
    repeat: int  # which repeat of the block within one forward pass, from 0
    matrices: list[str]  # names of its second matrices and banks, in order of execution


def find_second_matrices(model: nn.Module, ids: Tensor, second_matrix: str = "") -> list[FoundBlock]:
    """Finds what writes into the residual stream, in order of execution.

    `ids`: a text to run [sentence, token]; parts that do not run on text (a vision tower, an unused encoder) drop out.
    `second_matrix`: the setting `model.second_matrix`; "" for the names that ffkv knows. Raises UserError if there is no
    feed-forward layer, or the residual stream is not one vector per token.
    """
    modules = dict(model.named_modules())
    shapes, executed = _run(modules, candidates_of(model, modules, second_matrix), model, ids)
    found = []
    for (block, repeat), ran in executed.items():
        width = shapes[block][-1]
        names = [name for name in ran if shapes[name][-1] == width or not INSIDE_A_ROUTER.search(name)]
        for name in names:
            _check(block, name, names, shapes, modules, ids)
        if names:
            found.append(FoundBlock(block, repeat, names))
    if not found:
        raise UserError(f"no feed-forward layer: {_describe(model)}")
    return found


def _run(
    modules: Modules, candidates: dict[str, str], model: nn.Module, ids: Tensor
) -> tuple[Shapes, dict[tuple[str, int], list[str]]]:
    """Returns the shapes of what modules write, by name, and the candidates that ran, by block and repeat, in order."""
    shapes: Shapes = {}
    executed: dict[tuple[str, int], list[str]] = {}
    blocks = {*candidates.values()}
    repeats, counting = counting_repeats(model, blocks)

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if (state := hidden_state(output)) is None:
            return
        shapes[name] = tuple(state.shape)
        if name in candidates:
            shapes[name] = tuple(written(module, state).shape)
            block = candidates[name]
            executed.setdefault((block, repeats[block] - 1), []).append(name)

    with before(*counting), after(*[(modules[name], partial(note, name)) for name in {*candidates, *blocks}]):
        forward(model, ids)
    return shapes, executed


def block_of(model: Any, name: str) -> str:
    """Returns the outermost item of a module list that holds, or would hold, what has a name; "" if there is none."""
    path, module = name.split("."), model
    for depth, attribute in enumerate(path):
        if isinstance(module, nn.ModuleList) and attribute.isdigit():
            return ".".join(path[: depth + 1])
        module = getattr(module, attribute, None)
    return ""


def is_matrix(module: nn.Module) -> bool:
    """Tells whether a module is a linear map with a weight matrix."""
    return getattr(getattr(module, "weight", None), "ndim", 0) == 2


def candidates_of(model: nn.Module, modules: Modules, second_matrix: str) -> dict[str, str]:
    """Returns the block of each module that may write into the residual stream, judged by name and form alone.

    `modules`: all of the model, by name. `second_matrix`: the setting `model.second_matrix`. Raises UserError for a
    mixture of experts of an unknown form.
    """
    pattern = compile_expression(second_matrix) if second_matrix else re.compile(SECOND_MATRIX_NAMES)
    banks = [name for name, module in modules.items() if layout_of(module) is not None]
    stand_ins = {name: module for name, module in modules.items() if isinstance(module, StandIn)}
    native = tuple(f"{name}.native" for name in stand_ins)
    replaced = {name for module in stand_ins.values() for name in module.replaces - {*stand_ins}}
    candidates = {}
    for name, module in modules.items():
        block = block_of(model, name)
        inside = name[len(block) + 1 :]
        if isinstance(module, Decoder):
            candidates[name] = block
            continue
        if name in replaced or name.startswith(native):
            continue
        if not block or (OTHER_PARTS.search(inside) and not second_matrix):
            continue
        if any(name.startswith(f"{bank}.") for bank in banks):
            continue
        if name in banks or (is_matrix(module) and pattern.search(inside)):
            candidates[name] = block
        elif (
            inside.endswith("experts")
            and any(own.ndim > 1 for own in module.parameters())
            and not any(map(is_matrix, module.modules()))
        ):
            raise UserError(
                f"{name} ({type(module).__name__}) is a mixture of experts of a form that ffkv does not know."
            )
    return candidates


def _check(block: str, name: str, names: list[str], shapes: Shapes, modules: Modules, ids: Tensor) -> None:
    if names.count(name) > 1:
        raise UserError(
            f"{name} runs {names.count(name)} times within {block}: it is not a layer of its own. Set model.second_matrix to the name of another module"
        )
    weight = getattr(modules[name], "weight", None)
    if weight is not None and not weight.is_floating_point():
        raise UserError(
            f"{name} ({type(modules[name]).__name__}) holds packed weights of type {weight.dtype}: the model is quantised. Use its unquantised checkpoint."
        )
    kind, tokens = type(modules[block]).__name__, tuple(ids.shape)
    if len(shapes[block]) != 3 or shapes[name][-1] != shapes[block][-1]:
        raise UserError(
            f"{block} ({kind}) passes on {shapes[block]} for {tokens} tokens, {name} writes vectors of {shapes[name][-1]}: the residual stream is not one vector per token"
        )
    if shapes[block][:-1] != tokens or torch.Size(shapes[name][:-1]).numel() != ids.numel():
        why = "positions are not tokens" if shapes[block][:-1] != tokens else "tokens pass it by: a list of experts?"
        raise UserError(
            f"{block} ({kind}) passes on {shapes[block][:-1]} positions, {name} sees {shapes[name][:-1]}, for {tokens} tokens: {why}"
        )


def _describe(model: nn.Module) -> str:
    """Why a model has no feed-forward layer, as far as its first block tells."""
    named = model.named_modules()
    lists = ((name, module[0]) for name, module in named if isinstance(module, nn.ModuleList) and module)
    name, block = next(lists, ("", None))
    if block is None:
        return "the model has no list of blocks"
    matrices = ", ".join(inside for inside, part in block.named_modules() if is_matrix(part))
    first_block = f"{name}.0 is a {type(block).__name__} with the matrices {matrices}"
    if any(parameter.endswith("A_log") for parameter, _ in block.named_parameters()):
        return f"state-space model; {first_block}"
    return f"no module that ran has the name of a second matrix; {first_block}. If one of them is a second matrix, set model.second_matrix to its name"
