"""Finds what feeds a second matrix: the matrices that read the FF input x, and which of them is the gate."""

import functools

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.discover.find import OTHER_PARTS, is_matrix
from ffkv.model.discover.replay import Arguments, BlockTrace, replay, reverse
from ffkv.model.discover.scaling import TOLERANCE
from ffkv.model.tap.assemble import columns_of
from ffkv.model.tap.hooks import relative_error

Factor = tuple[str, str]  # a first matrix, and the columns of its output


def find_first_matrices(
    block: nn.Module, matrix: str, intact: BlockTrace, arguments: Arguments
) -> tuple[list[str], str, str, str]:
    """Finds the matrices that read x and feed a second matrix, and how they make m: plain, gated, or gated and fused.

    Names of matrices are those inside the block. `intact` is the trace of the unchanged block on `arguments`. Returns the
    names of these matrices; and kind, gate and gate columns, see `anatomy.SecondMatrix`. Raises UserError if none reads
    the residual stream, or m at a token depends on other tokens.
    """
    m, width = intact.inputs[matrix], intact.output.shape[-1]
    sizes = (m.shape[-1], 2 * m.shape[-1])
    order = list(intact.outputs)
    earlier = [n for n in order[: order.index(matrix)] if is_matrix(block.get_submodule(n)) and n in intact.inputs]
    feeding = [
        name
        for name in earlier
        if not OTHER_PARTS.search(name)
        and intact.inputs[name].shape[-1] == width
        and intact.outputs[name].shape[-1] in sizes
    ]
    if not feeding:
        raise UserError(f"{matrix}: no matrix that reads the residual stream and feeds it was found")
    x = intact.inputs[feeding[-1]]
    same_input = [
        name for name in earlier if intact.inputs[name].shape == x.shape and torch.equal(intact.inputs[name], x)
    ]
    reversed_m = replay(block, arguments, reversed_inputs=tuple(same_input)).inputs[matrix]
    if not relative_error(reversed_m, reverse(m, arguments)) < TOLERANCE:
        raise UserError(f"{matrix}: its input at a token depends on other tokens, so it is not a feed-forward layer")
    names = [name for name in feeding if name in same_input]
    fused = intact.outputs[names[0]].shape[-1] == sizes[1]
    if len(names) == 1 and not fused:
        return names, "plain", "", ""
    factors = [(names[0], "first half"), (names[0], "second half")] if fused else [(name, "all") for name in names]
    gate = _find_gate(block, matrix, factors, intact, arguments)
    return names, "gated, fused" if fused else "gated", *gate


def _find_gate(
    block: nn.Module, matrix: str, factors: list[Factor], intact: BlockTrace, arguments: Arguments
) -> Factor:
    """Finds the factor that goes through the activation: m changes its sign if the other factor does.

    ("", "") if that holds for neither, or if the signs of both factors do not make the sign of m (a sigmoid is always
    positive).
    """
    m = intact.inputs[matrix]
    first, second = (columns_of(intact.outputs[name], columns) for name, columns in factors)
    if (m * first.sign() * second.sign()).min() < 0:  # a sigmoid, which is always positive
        return "", ""
    for (other, columns), gate in zip(factors, reversed(factors), strict=True):
        negated_m = replay(block, arguments, {other: functools.partial(_negate, columns)}).inputs[matrix]
        if relative_error(negated_m, -m) < TOLERANCE:
            return gate
    return "", ""


def _negate(columns: str, output: Tensor) -> Tensor:
    negated = output.clone()
    columns_of(negated, columns).neg_()
    return negated
