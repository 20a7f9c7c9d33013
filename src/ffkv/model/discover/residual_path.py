"""Finds where the output of a feed-forward layer is added to the residual stream, and what happens to it on the way."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.discover.replay import Arguments, BlockTrace, replay
from ffkv.model.discover.scaling import Scaling, find_scaling, is_per_token, proportion
from ffkv.model.tap.assemble import norm_gain
from ffkv.model.tap.hooks import known_state

FAR = 1e4  # times as long as its inputs are the vectors that tell a norm from a linear map, also one of a large epsilon
ROUNDING = 1e-6  # relative: smaller differences are rounding, or nothing


class ResidualPath(NamedTuple):
    """How the outputs of second matrices reach the residual stream. Names are those inside the block.

    Attributes:
        sum_module: the module whose input is o = r + y; "" if the block returns it.
        scalings: what happens to the output of each second matrix before the sum.
        output_module: see `anatomy.Layer`, as for the next two.
        output_scale: a number.
        output_kind: "sum", "norm" or "linear".
    """

    sum_module: str
    scalings: list[Scaling]
    output_module: str = ""
    output_scale: float = 1.0
    output_kind: str = ""


class Ablations(NamedTuple):
    """Traces of one block on the same arguments.

    Attributes:
        intact: the block as it is.
        without: all of some second matrices return zero.
        without_each: this one alone returns zero, by its name.
        doubled: this one alone returns twice its output, by its name.
    """

    intact: BlockTrace
    without: BlockTrace
    without_each: dict[str, BlockTrace]
    doubled: dict[str, BlockTrace]


def ablate(block: nn.Module, arguments: Arguments, intact: BlockTrace, matrices: list[str]) -> Ablations:
    """Runs a block again: with all `matrices` off, with each alone off, and with each alone doubled."""
    without = replay(block, arguments, dict.fromkeys(matrices, torch.zeros_like))
    without_each = {
        matrix: without if len(matrices) == 1 else replay(block, arguments, {matrix: torch.zeros_like})
        for matrix in matrices
    }
    doubled = {matrix: replay(block, arguments, {matrix: lambda output: 2 * output}) for matrix in matrices}
    return Ablations(intact, without, without_each, doubled)


def residual_path(
    block: nn.Module, matrices: list[str], ablations: Ablations, tolerance: float
) -> ResidualPath | list[str]:
    """Finds the place in a block where o = r + y, with y the joint output of some second matrices.

    The block's output is tried first, then the inputs of its later modules.

    Returns:
        The path; if there is none, the reasons against the places that were tried.
    """
    order = list(ablations.intact.outputs)
    first, last = (extreme(order.index(matrix) for matrix in matrices) for extreme in (min, max))
    reasons: dict[str, None] = {}
    for place in ["", *(name for name in order[last + 1 :] if name not in matrices)]:
        y = _added(ablations, place)
        if y is None:
            continue
        scalings = _scalings(ablations, place, matrices, tolerance)
        later = [name for name in order[first:] if name not in matrices]
        behind = [name for name in later if not any(matrix.startswith(f"{name}.") for matrix in matrices)]
        found = _first_path(block, behind, y, "", ablations, matrices, tolerance, reasons)
        # A norm whose inputs are short beside its epsilon, or about equally long, only looks like a scaling.
        if found and (isinstance(scalings, str) or found.output_kind == "norm"):
            return found._replace(sum_module=place)
        if isinstance(scalings, str):
            reasons[scalings] = None
            continue
        if not any(scaling.per_token_weight for scaling in scalings):
            return ResidualPath(place, scalings)
        found = _first_path(block, later, y, scalings, ablations, matrices, tolerance, reasons)
        if found:
            return found._replace(sum_module=place)
    return [reason for reason in reasons if reason]


def _added(ablations: Ablations, place: str) -> Tensor | None:
    """y at a place; None if nothing arrives there, or nothing but the outputs of the second matrices."""
    whole, rest, output = ablations.intact.at(place), ablations.without.at(place), ablations.intact.output
    if whole is None or rest is None or whole.shape != rest.shape or whole.numel() != output.numel():
        return None
    if whole.shape[-1] != output.shape[-1]:
        return None
    size = whole.abs().max()
    spread = rest.reshape(-1, rest.shape[-1]).float().std(0).max()
    added = whole - rest
    return None if added.abs().max() < ROUNDING * size or spread < ROUNDING * size else added


def _scalings(ablations: Ablations, place: str, matrices: list[str], tolerance: float) -> list[Scaling] | str:
    """Returns the scaling of each second matrix's output on its way to a place; if one has none, the reason, perhaps
    "".
    """
    whole, scalings = ablations.intact.at(place), []
    where = place or "the block's output"
    for matrix in matrices:
        z = ablations.intact.outputs[matrix]
        without, twice = ablations.without_each[matrix].at(place), ablations.doubled[matrix].at(place)
        if whole is None or without is None or whole.numel() != z.numel() or whole.shape[-1] != z.shape[-1]:
            return ""
        arrived = (whole - without).reshape(z.shape)
        if arrived.abs().max() < ROUNDING * max(z.abs().max(), whole.abs().max()):
            return f"{matrix} does not arrive at {where}"
        allowed = tolerance + _rounding(whole, arrived)
        scaling = find_scaling(z, arrived, allowed)
        if scaling is None:
            return f"{matrix} arrives changed at {where}: gated, normed or transformed"
        # A norm of one of several branches is read as a weight per token; a norm of the whole layer is an output module.
        branch = isinstance(scaling.scale, Tensor) and len(matrices) > 1
        if scaling.per_token_weight and not branch:
            more = (known_state(twice) - whole).reshape(z.shape)
            if proportion(more, arrived, 10 * allowed) is None:
                return f"{matrix} arrives at {where} through something that scales each token by its own length"
        scalings.append(scaling)
    return scalings


def _rounding(whole: Tensor, difference: Tensor) -> float:
    """Returns the relative error that rounding of `whole` leaves in a difference of two such tensors; at most 0.05."""
    relative = 8 * torch.finfo(whole.dtype).eps * whole.abs().max() / difference.abs().max()
    return min(relative.item(), 0.05)


def _first_path(
    block: nn.Module,
    names: list[str],
    y: Tensor,
    scalings: list[Scaling] | str,
    ablations: Ablations,
    matrices: list[str],
    tolerance: float,
    reasons: dict[str, None],
) -> ResidualPath | None:
    """Returns the path of y through the first of some modules that returns y.

    Adds the reasons against the others to `reasons`.
    """
    for name in names:
        path = _through(block, name, y, scalings, ablations, matrices, tolerance)
        if isinstance(path, ResidualPath):
            return path
        reasons[path] = None
    return None


def _through(
    block: nn.Module,
    name: str,
    y: Tensor,
    scalings: list[Scaling] | str,
    ablations: Ablations,
    matrices: list[str],
    tolerance: float,
) -> ResidualPath | str:
    """Returns the path of y through a module that returns y; if the module does not, the reason, perhaps "".

    Args:
        block: the block.
        name: name of the module inside the block.
        y: what is added to the residual stream.
        scalings: of the second matrices on the way to the sum, if they are known: then the module sums them up.
        ablations: of the block.
        matrices: names of the second matrices.
        tolerance: relative error up to which tensors are equal.
    """
    state, output = ablations.intact.inputs.get(name), ablations.intact.outputs[name]
    if output.numel() != y.numel() or output.shape[-1] != y.shape[-1]:
        return ""
    scale = proportion(output.reshape(y.shape), y, tolerance)
    if scale is None:
        return ""
    if not isinstance(scalings, str):
        return ResidualPath("", scalings, name, scale, "sum")
    if state is None or state.shape != output.shape:
        return ""
    kind = _kind(block.get_submodule(name), state, output, tolerance)
    before = _scalings(ablations, name, matrices, tolerance) if kind else ""
    return before if isinstance(before, str) else ResidualPath("", before, name, scale, kind)


def _kind(module: nn.Module, state: Tensor, output: Tensor, tolerance: float) -> str:
    """Names what a module does with each token: "norm", "linear", or "" for anything else."""
    with torch.no_grad():
        one, far, zero = (known_state(module(x)) for x in (state[..., -1:, :].clone(), FAR * state, 0 * state))
    if proportion(one, output[..., -1:, :], tolerance) != 1.0:
        return ""  # it mixes tokens
    if proportion(far - zero, FAR * (output - zero), tolerance) == 1.0:
        return "linear"
    return "norm" if is_per_token(state * norm_gain(module, state), output, tolerance) else ""
