"""Where what a layer writes arrives in the residual stream, and what happens to it on the way."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.discover.replay import Arguments, Run, replay
from ffkv.model.discover.scaling import Fit, fit, proportion
from ffkv.model.tap.hooks import hidden

ROUNDING = 1e-6  # relative: what is smaller is rounding, or nothing


class Arrival(NamedTuple):
    """How the writes of a layer arrive; names are those inside the block.

    site: the module whose input is o = r + y, "" where the block returns it. fits: what happens to each write before the
    sum. carrier, carrier_scale, carrier_kind: see `anatomy.Layer`.
    """

    site: str
    fits: list[Fit]
    carrier: str
    carrier_scale: float
    carrier_kind: str


class Runs(NamedTuple):
    """A block as it is, without a group of writes, without each of them, and with each of them doubled."""

    on: Run
    off: Run
    each: dict[str, Run]
    doubled: dict[str, Run]


def run_without(block: nn.Module, arguments: Arguments, on: Run, writes: list[str]) -> Runs:
    """Runs a block with some of its writes switched off: all of them, and one at a time."""
    off = replay(block, arguments, dict.fromkeys(writes, torch.zeros_like))
    each = {write: off if len(writes) == 1 else replay(block, arguments, {write: torch.zeros_like}) for write in writes}
    return Runs(on, off, each, {write: replay(block, arguments, {write: _double}) for write in writes})


def arrival(block: nn.Module, writes: list[str], runs: Runs, tolerance: float) -> Arrival:
    """Where o = r + y stands for a group of writes of one block.

    Raises:
        UserError: nowhere in the block; says what was found instead.
    """
    order = list(runs.on.outputs)
    first, last = (extreme(order.index(write) for write in writes) for extreme in (min, max))
    failures: dict[str, None] = {}
    for site in ["", *(name for name in order[last + 1 :] if name not in writes)]:
        y = _added(runs, site)
        if y is None:
            continue
        fits = _fits(runs, site, writes, tolerance, failures)
        if fits is not None and not any(found.weighted for found in fits):
            return Arrival(site, fits, "", 1.0, "")
        for name in order[first:]:
            if name not in writes and (found := _carrier(block, name, y, fits, runs, writes, tolerance, failures)):
                return found._replace(site=site)
    where = f"{', '.join(writes)}: what is written is not added to a residual stream"
    raise UserError(f"{where} ({'; '.join(list(failures)[:3]) or 'no residual found'})")


def _added(runs: Runs, site: str) -> Tensor | None:
    """y as it stands at a site; None where nothing arrives there, or nothing but what was written."""
    whole, rest, output = runs.on.at(site), runs.off.at(site), runs.on.output
    if whole is None or rest is None or whole.shape != rest.shape or whole.numel() != output.numel():
        return None
    if whole.shape[-1] != output.shape[-1]:
        return None
    size = whole.abs().max()
    spread = rest.reshape(-1, rest.shape[-1]).float().std(0).max()
    added = whole - rest
    return None if added.abs().max() < ROUNDING * size or spread < ROUNDING * size else added


def _fits(runs: Runs, site: str, writes: list[str], tolerance: float, failures: dict[str, None]) -> list[Fit] | None:
    """What happens to each write until it arrives at a site; None where one does not arrive as a scaled self."""
    whole, fits = runs.on.at(site), []
    place = site or "the block's output"
    for write in writes:
        z, without, twice = runs.on.outputs[write], runs.each[write].at(site), runs.doubled[write].at(site)
        if whole is None or without is None or whole.numel() != z.numel() or whole.shape[-1] != z.shape[-1]:
            return None
        arrived = (whole - without).reshape(z.shape)
        if arrived.abs().max() < ROUNDING * max(z.abs().max(), whole.abs().max()):
            failures[f"{write} does not arrive at {place}"] = None
            return None
        found = fit(z, arrived, allowed := tolerance + _rounding(whole, arrived))
        if found is None:
            failures[f"{write} arrives changed at {place}: gated, normed or transformed"] = None
            return None
        # A branch with a norm of its own is taken as one with a weight of its own; a norm of the whole layer is a carrier.
        branch = isinstance(found.scale, Tensor) and len(writes) > 1
        if (
            found.weighted
            and not branch
            and proportion((twice - whole).reshape(z.shape), arrived, 10 * allowed) is None
        ):
            failures[f"{write} arrives at {place} through something that scales each token by its own length"] = None
            return None
        fits.append(found)
    return fits


def _rounding(whole: Tensor, difference: Tensor) -> float:
    """The relative error of a difference that comes from rounding what it is a difference of; bounded."""
    relative = 8 * torch.finfo(whole.dtype).eps * whole.abs().max() / difference.abs().max()
    return min(relative.item(), 0.05)


def _carrier(
    block: nn.Module,
    name: str,
    y: Tensor,
    fits: list[Fit] | None,
    runs: Runs,
    writes: list[str],
    tolerance: float,
    failures: dict[str, None],
) -> Arrival | None:
    """Whether a module carries y: it adds up the parts (where they are known to arrive weighted), norms or maps their sum."""
    given, output = runs.on.inputs.get(name), runs.on.outputs[name]
    if output.numel() != y.numel() or output.shape[-1] != y.shape[-1]:
        return None
    scale = proportion(output.reshape(y.shape), y, tolerance)
    if scale is None:
        return None
    if fits is not None:
        return Arrival("", fits, name, scale, "sum")
    if given is None or given.shape != output.shape:
        return None
    kind = _kind(block.get_submodule(name), given, output, tolerance)
    inner = kind and _fits(runs, name, writes, tolerance, failures)
    return Arrival("", inner, name, scale, kind) if inner else None


def _kind(module: nn.Module, given: Tensor, output: Tensor, tolerance: float) -> str:
    """What a module does with each token: "norm", "linear", or "" for anything else."""
    with torch.no_grad():
        one, two, zero = (hidden(module(state)) for state in (given[..., -1:, :].clone(), 2 * given, 0 * given))
    if proportion(one, output[..., -1:, :], tolerance) != 1.0:
        return ""  # it mixes tokens
    if proportion(two - zero, 2 * (output - zero), tolerance) == 1.0:
        return "linear"
    scaled = fit(given * norm_gain(module, given), output, tolerance)
    return "norm" if scaled is not None and not isinstance(scaled.scale, Tensor) else ""


def norm_gain(module: nn.Module, like: Tensor) -> Tensor:
    """The constant gain of a norm without a mean, by dimension [d]: what it makes of a vector of ones, whose length is 1."""
    ones = torch.ones_like(like.reshape(-1, like.shape[-1])[:1])
    with torch.no_grad():
        return hidden(module(ones))[0]


def _double(state: Tensor) -> Tensor:
    return 2 * state
