"""Learns how each feed-forward layer reaches the residual stream, by switching it off.

A block is run again on the inputs that it had, once as it is and once with its second matrix returning zero. Where the
two differ by `scale * (m V + b)`, and what remains is a residual, there stands o = r + y. No knowledge of the model's
wiring is needed: norms before the layer, norms after the sum, multipliers and parallel attention all come out.
"""

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Layer, Write
from ffkv.model.find import ELSEWHERE, is_matrix
from ffkv.model.hooks import after, before, forward, given, hidden, relative_error

# Relative error up to which an identity counts as true, by type of the weights: rounding, with room to spare.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


class Replay(NamedTuple):
    """A block run once more: its output, and the input and output of each of its modules in order of execution."""

    output: Tensor
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def capture(model: nn.Module, blocks: list[str], ids: Tensor) -> dict[str, tuple[tuple, dict]]:
    """The arguments that each block gets on `ids` [sentence, token]."""
    caught: dict[str, tuple[tuple, dict]] = {}

    def note(name: str):
        return lambda module, args, kwargs: caught.__setitem__(name, _copy((args, kwargs)))

    with before(*[(model.get_submodule(name), note(name)) for name in blocks]):
        forward(model, ids)
    return caught


def replay(block: nn.Module, arguments: tuple[tuple, dict], off: str = "", flipped: tuple[str, ...] = ()) -> Replay:
    """Runs a block again on captured arguments.

    Args:
        off: name inside the block of a module that returns zero instead of its output.
        flipped: names of modules that see the tokens in reverse order.
    """
    inputs, outputs = {}, {}

    def on_input(name: str):
        def note(module, args, kwargs):
            tensors = [value for value in args if torch.is_tensor(value) and value.is_floating_point()]
            if tensors:
                inputs[name] = tensors[0].clone()
            return ((reverse(args[0], arguments), *args[1:]), kwargs) if name in flipped else None

        return note

    def on_output(name: str):
        def note(module, args, kwargs, output):
            if name == off:
                output = torch.zeros_like(output)
            first = (
                output if torch.is_tensor(output) else next((value for value in output if torch.is_tensor(value)), None)
            )
            if first is not None:
                outputs[name] = first.clone()
            return output

        return note

    parts = [(name, module) for name, module in block.named_modules() if name]
    args, kwargs = _copy(arguments)
    with torch.no_grad(), before(*[(m, on_input(n)) for n, m in parts]), after(*[(m, on_output(n)) for n, m in parts]):
        output = hidden(block(*args, **kwargs)).clone()
    return Replay(output, inputs, outputs)


def calibrate(model: nn.Module, index: int, block: str, write: str, arguments: tuple[tuple, dict]) -> Layer:
    """How one feed-forward layer reads and reaches the residual stream.

    Raises:
        UserError: what the second matrix writes is not added to a residual stream as it is, or nothing that feeds it
            reads the residual stream position by position.
    """
    module, inside = model.get_submodule(block), write[len(block) + 1 :]
    tolerance = TOLERANCE[model.get_submodule(write).weight.dtype]
    on, off = replay(module, arguments), replay(module, arguments, off=inside)
    site, scale = _site(block, module, inside, on, off, tolerance)
    readers, kind = _readers(module, write, inside, on, arguments, tolerance)
    names = [f"{block}.{name}" for name in readers]
    written = Write(
        write, names, kind, names[0] if kind == "gated" else "", on.inputs[inside].shape[-1], 0, scale, False
    )
    place = f"{block}.{site}" if site else ""
    return Layer(index, block, 0, [written], place, bool(site), "", 1.0, "", bool((on.inputs[inside] < 0).any()))


def _site(block: str, module: nn.Module, inside: str, on: Replay, off: Replay, tolerance: float) -> tuple[str, float]:
    """Where r + y stands ("" for the block's output, else the module that it goes into), and y / (m V + b)."""
    written, order = on.outputs[inside], list(on.outputs)
    error = float("inf")
    for site in ["", *order[order.index(inside) + 1 :]]:
        whole, rest = (run.output if not site else run.inputs.get(site) for run in (on, off))
        if whole is None or rest is None or whole.numel() != written.numel() or whole.shape[-1] != written.shape[-1]:
            continue
        added, size = (whole - rest).reshape(written.shape).double(), whole.abs().max()
        spread = rest.reshape(-1, rest.shape[-1]).float().std(0).max()
        if (
            added.abs().max() < 1e-6 * size or spread < 1e-6 * size
        ):  # nothing arrives here, or nothing but what was written
            continue
        scale = ((written * added).sum() / (written.double() ** 2).sum()).item()
        error = min(error, found := relative_error(scale * written, added))
        if found < tolerance:
            return site, 1.0 if abs(scale - 1) < tolerance else scale
    raise UserError(
        f"{block} ({type(module).__name__}): what {inside} writes is not added to a residual stream as it is (smallest relative error {error:.0e}); a norm or gate after the feed-forward layer cannot be read yet."
    )


def _readers(
    module: nn.Module, write: str, inside: str, on: Replay, arguments: tuple[tuple, dict], tolerance: float
) -> tuple[list[str], str]:
    """The matrices that read the FF input x, and how they make m: plain, gated, or gated and fused."""
    coefficients, width = on.inputs[inside], on.output.shape[-1]
    earlier = [name for name in on.outputs if is_matrix(module.get_submodule(name)) and name in on.inputs]
    earlier = earlier[: earlier.index(inside)]
    reads = [
        n
        for n in earlier
        if not re.search(ELSEWHERE, n)
        and on.inputs[n].shape[-1] == width
        and on.outputs[n].shape[-1] in (coefficients.shape[-1], 2 * coefficients.shape[-1])
    ]
    if not reads:
        raise UserError(f"{write}: no matrix that reads the residual stream and feeds it was found")
    x = on.inputs[reads[-1]]
    same_input = [name for name in earlier if on.inputs[name].shape == x.shape and torch.equal(on.inputs[name], x)]
    turned = replay(module, arguments, flipped=tuple(same_input)).inputs[inside]
    if not relative_error(turned, reverse(coefficients, arguments)) < tolerance:
        raise UserError(f"{write}: its input at a token depends on other tokens, so it is no feed-forward layer")
    readers = [name for name in reads if name in same_input]
    fused = on.outputs[readers[0]].shape[-1] == 2 * coefficients.shape[-1]
    return readers, "gated" if len(readers) == 2 else "gated, fused" if fused else "plain"


def reverse(states: Tensor, arguments: tuple[tuple, dict]) -> Tensor:
    """`states` with the tokens of each sentence in reverse order, whether [sentence, token, .] or [sentence * token, .]."""
    sentences, tokens = given(*arguments).shape[:2]
    return states.reshape(sentences, tokens, -1).flip(1).reshape(states.shape)


def _copy(arguments: Any) -> Any:
    """Captured arguments, their tensors cloned: some models add the residual in place."""
    if torch.is_tensor(arguments):
        return arguments.clone()
    if isinstance(arguments, dict):
        return {name: _copy(value) for name, value in arguments.items()}
    return tuple(map(_copy, arguments)) if type(arguments) is tuple else arguments
