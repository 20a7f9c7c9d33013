"""Finds the second matrix of every feed-forward layer: by its name, and by whether it runs on text."""

import re

from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.hooks import after, forward, hidden

# How models call the second matrix, at the end of its name inside its block. The only table of names there is.
SECOND_MATRIX = re.compile(
    r"(^|\.)(down_proj|fc2|fc_out|c_proj|dense_4h_to_h|w2|w_out|Wo|output_linear|lin2|layer_2|proj_down"
    r"|output\.dense|ffn\.2|feed_forward\.(value|output))$"
)
# Parts of a block in which such a name means something else.
ELSEWHERE = re.compile(r"att|norm|router|indexer|adapter|embed")


def find(model: nn.Module, ids: Tensor) -> list[tuple[str, str]]:
    """The (block, second matrix) of every feed-forward layer, by module name, in order of execution.

    Args:
        ids: a text to run, so that parts that do not run on text (a vision tower, an unused encoder) drop out.
    Raises:
        UserError: no feed-forward layer, or one that is no single matrix of a block that runs once.
    """
    modules = dict(model.named_modules())
    candidates = {}
    for name, module in modules.items():
        block = block_of(model, name)
        inside = name[len(block) + 1 :]
        if not block or ELSEWHERE.search(inside):
            continue
        if inside.endswith("experts"):
            raise UserError(
                f"{name} ({type(module).__name__}) is a mixture of experts: its memories cannot be read yet."
            )
        if is_matrix(module) and SECOND_MATRIX.search(inside):
            candidates[name] = block
    ran = _run(model, ids, modules, {*candidates, *candidates.values()})
    found = [(candidates[name], name) for name in ran if name in candidates]
    if not found:
        raise UserError(
            f"no feed-forward layer: no module that ran is named like the second matrix of one; {_describe(model)}"
        )
    for block, write in found:
        _check(block, write, found, ran, ids)
    return found


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


def _run(model: nn.Module, ids: Tensor, modules: dict[str, nn.Module], names: set[str]) -> dict[str, list[tuple]]:
    """The shapes that the named modules return, a call each; the modules in order of execution."""
    shapes: dict[str, list[tuple]] = {}

    def note(name: str):
        return lambda module, args, kwargs, output: shapes.setdefault(name, []).append(tuple(hidden(output).shape))

    with after(*[(modules[name], note(name)) for name in names]):
        forward(model, ids)
    return {name: calls for name, calls in shapes.items() if calls}


def _check(block: str, write: str, found: list[tuple[str, str]], ran: dict[str, list[tuple]], ids: Tensor) -> None:
    if len(ran[block]) > 1:
        raise UserError(f"{block} runs {len(ran[block])} times in one forward pass: depth is not a fixed layer")
    others = [other for at, other in found if at == block and other != write]
    if others:
        raise UserError(
            f"{block} has several second matrices ({write}, {others[0]}): it is no plain feed-forward layer"
        )
    if ran[block][0][:-1] != tuple(ids.shape) or ran[write][0][-1] != ran[block][0][-1]:
        raise UserError(
            f"{block} passes on {ran[block][0]} for {tuple(ids.shape)} tokens, {write} writes vectors of {ran[write][0][-1]}: the residual stream is not one vector per token"
        )


def _describe(model: nn.Module) -> str:
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module):
            matrices = [inside for inside, part in module[0].named_modules() if is_matrix(part)]
            return f"{name}.0 is a {type(module[0]).__name__} with the matrices {', '.join(matrices)}"
    return "the model has no list of blocks"
