"""Finds where the output of a feed-forward layer is added to the residual stream, and what happens to it on the way."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.discover.replay import Arguments, BlockTrace, replay
from ffkv.model.discover.scaling import TOLERANCE, Scaling, find_scaling, is_per_token, proportion
from ffkv.model.tap.assemble import norm_gain
from ffkv.model.tap.hooks import known_state

FAR = 1e4  # times as long as its inputs are the vectors that tell a norm from a linear map, also one of a large epsilon
ROUNDING = 1e-6  # relative: smaller differences are rounding, or nothing


class ResidualPath(NamedTuple):
    """How the outputs of second matrices reach the residual stream. Names are those inside the block."""

    sum_module: str  # the module whose input is o = r + y; "" if the block returns it
    scalings: list[Scaling]  # what happens to the output of each second matrix before the sum
    output_module: str = ""  # see `anatomy.Layer`, as for the next two
    output_scale: float = 1.0  # a number
    output_kind: str = ""  # "sum", "norm" or "linear"


class _Ablations(NamedTuple):
    """Traces of one block on the same arguments."""

    intact: BlockTrace  # the block as it is
    without: BlockTrace  # some second matrices return zero
    without_each: dict[str, BlockTrace]  # this one of them alone returns zero
    doubled: dict[str, BlockTrace]  # this one alone returns twice its output


def residual_path(
    block: nn.Module, arguments: Arguments, intact: BlockTrace, matrices: list[str]
) -> ResidualPath | list[str]:
    """Finds the place in a block where o = r + y, with y the joint output of some second matrices.

    The block is run again on `arguments`: with all `matrices` off, with each alone off, and with each alone doubled.
    `intact` is the trace of the unchanged block. Its output is tried first, then the inputs of its later modules. Returns
    the path; if there is none, the reasons against the places that were tried.
    """
    without = replay(block, arguments, dict.fromkeys(matrices, torch.zeros_like))
    without_each = {
        matrix: without if len(matrices) == 1 else replay(block, arguments, {matrix: torch.zeros_like})
        for matrix in matrices
    }
    doubled = {matrix: replay(block, arguments, {matrix: lambda output: 2 * output}) for matrix in matrices}
    reasons: dict[str, None] = {}
    for outcome in _tried(block, _Ablations(intact, without, without_each, doubled)):
        if isinstance(outcome, ResidualPath):
            return outcome
        reasons[outcome] = None
    return [reason for reason in reasons if reason]


def _tried(block: nn.Module, ablations: _Ablations) -> Iterator[ResidualPath | str]:
    """Yields a path, or the reason against one, perhaps ""; the simplest path comes first."""
    order, matrices = list(ablations.intact.outputs), ablations.without_each
    first, last = (extreme(order.index(matrix) for matrix in matrices) for extreme in (min, max))
    later = [name for name in order[first:] if name not in matrices]
    behind = [name for name in later if not any(matrix.startswith(f"{name}.") for matrix in matrices)]
    for place in ["", *(name for name in order[last + 1 :] if name not in matrices)]:
        y = _added(ablations, place)
        if y is None:
            continue
        scalings = _scalings(ablations, place)
        for name in behind:
            path = _through(block, name, place, y, ablations)
            # A norm whose inputs are short beside its epsilon, or about equally long, only looks like a scaling.
            if isinstance(path, str) or isinstance(scalings, str) or path.output_kind == "norm":
                yield path
            else:
                break
        if isinstance(scalings, str):
            yield scalings
        elif not any(scaling.per_token_weight for scaling in scalings):
            yield ResidualPath(place, scalings)
        else:
            for name in later:
                scale = _scale_to(y, ablations.intact.outputs[name])
                yield "" if scale is None else ResidualPath(place, scalings, name, scale, "sum")


def _added(ablations: _Ablations, place: str) -> Tensor | None:
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


def _scalings(ablations: _Ablations, place: str) -> list[Scaling] | str:
    """Returns how the output of each second matrix is scaled on its way to a place; else the reason why not, or ""."""
    whole, scalings = ablations.intact.at(place), []
    where = place or "the block's output"
    for matrix, trace in ablations.without_each.items():
        z = ablations.intact.outputs[matrix]
        without, twice = trace.at(place), ablations.doubled[matrix].at(place)
        if whole is None or without is None or whole.numel() != z.numel() or whole.shape[-1] != z.shape[-1]:
            return ""
        arrived = (whole - without).reshape(z.shape)
        if arrived.abs().max() < ROUNDING * max(z.abs().max(), whole.abs().max()):
            return f"{matrix} does not arrive at {where}"
        allowed = TOLERANCE + _rounding(whole, arrived)
        scaling = find_scaling(z, arrived, allowed)
        if scaling is None:
            return f"{matrix} arrives changed at {where}: gated, normed or transformed"
        # A norm of one of several branches is read as a weight per token; a norm of the whole layer is an output module.
        branch = isinstance(scaling.scale, Tensor) and len(ablations.without_each) > 1
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


def _through(block: nn.Module, name: str, place: str, y: Tensor, ablations: _Ablations) -> ResidualPath | str:
    """Returns the path of y through a norm or linear map that returns y; else the reason against it, perhaps ""."""
    state, output = ablations.intact.inputs.get(name), ablations.intact.outputs[name]
    scale = _scale_to(y, output)
    if scale is None or state is None or state.shape != output.shape:
        return ""
    kind = _kind(block.get_submodule(name), state, output)
    before = _scalings(ablations, name) if kind else ""
    return before if isinstance(before, str) else ResidualPath(place, before, name, scale, kind)


def _scale_to(y: Tensor, output: Tensor) -> float | None:
    """Returns the number a with a * output = y; None if there is none."""
    alike = output.numel() == y.numel() and output.shape[-1] == y.shape[-1]
    return proportion(output.reshape(y.shape), y) if alike else None


def _kind(module: nn.Module, state: Tensor, output: Tensor) -> str:
    """Names what a module does with each token: "norm", "linear", or "" for anything else."""
    with torch.no_grad():
        one, far, zero = (known_state(module(x)) for x in (state[..., -1:, :].clone(), FAR * state, 0 * state))
    if proportion(one, output[..., -1:, :]) != 1.0:
        return ""  # it mixes tokens
    if proportion(far - zero, FAR * (output - zero)) == 1.0:
        return "linear"
    return "norm" if is_per_token(state * norm_gain(module, state), output) else ""
