"""What feeds a second matrix: the matrices that read the FF input x, and which of them is the gate."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.discover.find import ELSEWHERE, is_matrix
from ffkv.model.discover.replay import Arguments, Run, replay, reverse
from ffkv.model.tap.hooks import relative_error

PARTS: dict[str, Callable[[Tensor], slice]] = {
    "whole": lambda output: slice(None),
    "first half": lambda output: slice(0, output.shape[-1] // 2),
    "second half": lambda output: slice(output.shape[-1] // 2, None),
}


class Readers(NamedTuple):
    """names: the matrices that read x and feed the write, inside the block. kind, gate, gate_part: see `anatomy.Write`."""

    names: list[str]
    kind: str
    gate: str
    gate_part: str


def readers(block: nn.Module, write: str, on: Run, arguments: Arguments, tolerance: float) -> Readers:
    """The matrices that read x and feed a second matrix, and how they make m: plain, gated, or gated and fused.

    Args:
        write: the second matrix, by its name inside the block. on: the block's run on these arguments.
    Raises:
        UserError: none reads the residual stream, or m at a token depends on other tokens.
    """
    coefficients, width = on.inputs[write], on.output.shape[-1]
    sizes = (coefficients.shape[-1], 2 * coefficients.shape[-1])
    order = list(on.outputs)
    earlier = [n for n in order[: order.index(write)] if is_matrix(block.get_submodule(n)) and n in on.inputs]
    reads = [
        n
        for n in earlier
        if not ELSEWHERE.search(n) and on.inputs[n].shape[-1] == width and on.outputs[n].shape[-1] in sizes
    ]
    if not reads:
        raise UserError(f"{write}: no matrix that reads the residual stream and feeds it was found")
    x = on.inputs[reads[-1]]
    same_input = [n for n in earlier if on.inputs[n].shape == x.shape and torch.equal(on.inputs[n], x)]
    turned = replay(block, arguments, flipped=tuple(same_input)).inputs[write]
    if not relative_error(turned, reverse(coefficients, arguments)) < tolerance:
        raise UserError(f"{write}: its input at a token depends on other tokens, so it is no feed-forward layer")
    names = [n for n in reads if n in same_input]
    fused = on.outputs[names[0]].shape[-1] == sizes[1]
    if len(names) == 1 and not fused:
        return Readers(names, "plain", "", "")
    factors = [(names[0], "first half"), (names[0], "second half")] if fused else [(n, "whole") for n in names]
    gate = _gate(block, write, factors, on, arguments, tolerance)
    return Readers(names, "gated, fused" if fused else "gated", *gate)


def _gate(
    block: nn.Module,
    write: str,
    factors: list[tuple[str, str]],
    on: Run,
    arguments: Arguments,
    tolerance: float,
) -> tuple[str, str]:
    """The factor that goes through the activation: when the other one is negated, m is. ("", "") where that is neither, or
    where the signs of both do not make that of m (a sigmoid gate is always positive)."""
    coefficients = on.inputs[write]
    first, second = (on.outputs[name][..., PARTS[part](on.outputs[name])] for name, part in factors)
    if (coefficients * first.sign() * second.sign()).min() < 0:
        return "", ""
    for other, gate in zip(factors, reversed(factors), strict=True):

        def negated(output: Tensor, part: str = other[1]) -> Tensor:
            changed = output.clone()
            changed[..., PARTS[part](output)] *= -1
            return changed

        turned = replay(block, arguments, {other[0]: negated}).inputs[write]
        if relative_error(turned, -coefficients) < tolerance:
            return gate
    return "", ""
