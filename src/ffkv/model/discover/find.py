"""Finds what writes into the residual stream: second matrices by their name, banks of experts by what they hold."""

import re
from collections import Counter

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.experts.record import form_of, written
from ffkv.model.tap.hooks import after, before, forward, hidden

# How models call the second matrix, at the end of its name inside its block. The only table of names there is.
SECOND_MATRIX = (
    r"(^|\.)(down_proj|fc2|fc_out|c_proj|dense_4h_to_h|w2|w_out|Wo|output_linear|lin2|layer_2|proj_down"
    r"|output\.dense|ffn\.2|feed_forward\.(value|output))$"
)
# Parts of a block in which such a name means something else.
ELSEWHERE = re.compile(r"att|norm|router|indexer|adapter|embed")

Found = list[tuple[str, int, list[str]]]  # block, which run of it, the names of its writes in order of execution


def find(model: nn.Module, ids: Tensor, second_matrix: str = "") -> Found:
    """What writes into the residual stream, by block and its run, in order of execution.

    Args:
        ids: a text to run [sentence, token], so that parts that do not run on text (a vision tower, an unused encoder)
            drop out.
        second_matrix: the setting `model.second_matrix`; "" for the names that ffkv knows.
    Raises:
        UserError: no feed-forward layer, or one of a form that is not one vector a token.
    """
    modules = dict(model.named_modules())
    candidates = candidates_of(model, modules, second_matrix)
    shapes: dict[str, tuple] = {}
    runs: Counter[str] = Counter()
    found: dict[tuple[str, int], list[str]] = {}

    def on_input(block: str):
        return lambda module, args, kwargs: runs.update([block])

    def on_output(name: str):
        def note(module, args, kwargs, output) -> None:
            if (state := hidden(output)) is not None:
                shapes[name] = tuple(state.shape)
            if name in candidates and state is not None:
                shapes[name] = tuple(written(module, state).shape)
                found.setdefault((candidates[name], runs[candidates[name]] - 1), []).append(name)

        return note

    blocks = {*candidates.values()}
    with (
        before(*[(modules[name], on_input(name)) for name in blocks]),
        after(*[(modules[name], on_output(name)) for name in {*candidates, *blocks}]),
    ):
        forward(model, ids)
    for (block, run), names in list(found.items()):
        names[:] = [name for name in names if not _is_inside_a_router(name, shapes[name], shapes[block])]
        if not names:
            del found[block, run]
        for name in names:
            _check(block, name, names, shapes, modules, ids)
    if not found:
        raise UserError(f"no feed-forward layer: {_describe(model)}")
    return [(block, run, names) for (block, run), names in found.items()]


def block_of(model: nn.Module, name: str) -> str:
    """The outermost item of a module list that holds a module; "" where none does."""
    parts, module = name.split(".") if name else [], model
    for depth, part in enumerate(parts):
        if isinstance(module, nn.ModuleList):
            return ".".join(parts[: depth + 1])
        module = getattr(module, part)
    return ""


def is_matrix(module: nn.Module) -> bool:
    """Whether a module is a linear map with a weight matrix."""
    return getattr(getattr(module, "weight", None), "ndim", 0) == 2


def candidates_of(model: nn.Module, modules: dict[str, nn.Module], second_matrix: str) -> dict[str, str]:
    """Which modules may write into the residual stream, by name and form alone, and the block that each stands in.

    Raises:
        UserError: a mixture of experts of an unknown form.
    """
    pattern = re.compile(second_matrix or SECOND_MATRIX)
    banks = [name for name, module in modules.items() if form_of(module) is not None]
    candidates = {}
    for name, module in modules.items():
        block = block_of(model, name)
        inside = name[len(block) + 1 :]
        if not block or (ELSEWHERE.search(inside) and not second_matrix):
            continue
        if any(name.startswith(f"{bank}.") for bank in banks):
            continue
        if name in banks or (is_matrix(module) and pattern.search(inside)):
            candidates[name] = block
        elif inside.endswith("experts") and _holds_tensors(module):
            raise UserError(
                f"{name} ({type(module).__name__}) is a mixture of experts of a form that ffkv does not know."
            )
    return candidates


def _holds_tensors(module: nn.Module) -> bool:
    """Whether a module has matrices of its own instead of modules that have them."""
    within = list(module.modules())
    return any(parameter.ndim > 1 for parameter in module.parameters()) and not any(map(is_matrix, within))


def _is_inside_a_router(name: str, shape: tuple, block: tuple) -> bool:
    return shape[-1] != block[-1] and bool(re.search(r"(^|\.)gate\.", name))


def _check(
    block: str, name: str, names: list[str], shapes: dict[str, tuple], modules: dict[str, nn.Module], ids: Tensor
) -> None:
    if names.count(name) > 1:
        raise UserError(f"{name} runs {names.count(name)} times within {block}: it is no layer of its own")
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
        raise UserError(
            f"{block} ({kind}) passes on {shapes[block][:-1]} positions, {name} sees {shapes[name][:-1]}, for {tokens} tokens: positions are not tokens"
        )


def _describe(model: nn.Module) -> str:
    """Why a model has no feed-forward layer, as far as its blocks tell."""
    lists = (
        (name, module[0]) for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and module
    )
    name, block = next(lists, ("", None))
    if block is None:
        return "the model has no list of blocks"
    matrices = ", ".join(inside for inside, part in block.named_modules() if is_matrix(part))
    what = f"{name}.0 is a {type(block).__name__} with the matrices {matrices}"
    if any(parameter.endswith("A_log") for parameter, _ in block.named_parameters()):
        return f"state-space model; {what}"
    return f"no module that ran is named like the second matrix of one; {what}. If one of them is, name it in model.second_matrix"
