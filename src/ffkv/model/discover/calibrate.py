"""Learns how each feed-forward layer reads and reaches the residual stream, by switching it off.

A block is run again on the inputs that it had, as it is and with its writes returning zero. Where the two differ by what was
written, scaled, and what remains is a residual, there stands o = r + y. No knowledge of the model's wiring is needed: norms
before and after the layer, norms after the sum, multipliers, gates and parallel attention all come out.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Layer, Write
from ffkv.model.discover.find import Found
from ffkv.model.discover.first_matrices import readers
from ffkv.model.discover.replay import Arguments, Run, capture, replay
from ffkv.model.discover.residual_path import Arrival, Runs, arrival, run_without
from ffkv.model.discover.scaling import Fit, proportion
from ffkv.model.experts.record import coefficients, form_of, shape_of

# Relative error up to which an identity counts as true, by type of the weights: rounding, with room to spare.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def calibrate(model: nn.Module, found: Found, ids: Tensor) -> list[Layer]:
    """The feed-forward layers of a model, from what `find` has found, on ids [sentence, token].

    Raises:
        UserError: what is written is not added to a residual stream, or nothing that feeds it reads that stream position by
            position; names the block.
    """
    arguments = capture(model, [block for block, _, _ in found], ids)
    tolerance = TOLERANCE[next(p.dtype for p in model.parameters() if p.is_floating_point())]
    layers: list[Layer] = []
    for block, run, writes in found:
        try:
            layers += _layers(model, len(layers), block, run, writes, arguments[block, run], tolerance)
        except UserError as error:
            raise UserError(f"{block} ({type(model.get_submodule(block)).__name__}), {error}") from error
    return layers


def _layers(
    model: nn.Module, index: int, block: str, run: int, writes: list[str], arguments: Arguments, tolerance: float
) -> Iterator[Layer]:
    """The layers of one run of a block: one, or as many as there are places where something is added."""
    module = model.get_submodule(block)
    inside = [write[len(block) + 1 :] for write in writes]
    on = replay(module, arguments)
    for group, arrived, runs in _groups(module, inside, on, arguments, tolerance):
        yield _layer(model, index, block, run, group, arrived, runs, arguments, tolerance)
        index += 1


def _groups(
    module: nn.Module, writes: list[str], on: Run, arguments: Arguments, tolerance: float
) -> list[tuple[list[str], Arrival, Runs]]:
    """Which writes are added at the same place, and how they arrive there."""
    runs = run_without(module, arguments, on, writes)
    try:
        return [(writes, arrival(module, writes, runs, tolerance), runs)]
    except UserError:
        if len(writes) == 1:
            raise
        together: dict[str, list[str]] = {}
        for write in writes:
            alone = run_without(module, arguments, on, [write])
            together.setdefault(arrival(module, [write], alone, tolerance).site, []).append(write)
        if len(together) == 1:
            raise
    groups = []
    order = list(on.outputs)
    for group in sorted(together.values(), key=lambda group: order.index(group[-1])):
        runs = run_without(module, arguments, on, group)
        groups.append((group, arrival(module, group, runs, tolerance), runs))
    return groups


def _layer(
    model: nn.Module,
    index: int,
    block: str,
    run: int,
    writes: list[str],
    arrived: Arrival,
    runs: Runs,
    arguments: Arguments,
    tolerance: float,
) -> Layer:
    module, on = model.get_submodule(block), runs.on
    parts = zip(writes, arrived.fits, strict=True)
    found = [_write(model, block, write, found, on, arguments, tolerance) for write, found in parts]
    at_site = on.outputs.get(arrived.site)
    same = at_site is not None and at_site.shape == on.output.shape
    replay(module, arguments)  # banks of experts keep what they did in their last call
    return Layer(
        index,
        block,
        found,
        any(bool((coefficients(module.get_submodule(w), on.inputs[w]) < 0).any()) for w in writes),
        call=run,
        site=_path(block, arrived.site),
        post_norm=same and proportion(at_site, on.output, tolerance) == 1.0,
        carrier=_path(block, arrived.carrier),
        carrier_scale=arrived.carrier_scale,
        carrier_kind=arrived.carrier_kind,
    )


def _write(
    model: nn.Module, block: str, write: str, found: Fit, on: Run, arguments: Arguments, tolerance: float
) -> Write:
    module, bank = model.get_submodule(block), model.get_submodule(f"{block}.{write}")
    scale = found.scale.flatten().tolist() if isinstance(found.scale, Tensor) else found.scale
    name = f"{block}.{write}"
    if (form := form_of(bank)) is not None:
        experts, units = shape_of(bank)
        reader = name if form.reads_x else name.rpartition(".")[0]
        kind, gate = "gated" if form.gated(bank) else "plain", name if form.signed(bank) else ""
        return Write(name, [reader], kind, experts * units, gate, experts=experts, scale=scale, weighted=found.weighted)
    fed = readers(module, write, on, arguments, tolerance)
    names = [f"{block}.{reader}" for reader in fed.names]
    gate = {"gate": _path(block, fed.gate), "gate_part": fed.gate_part}
    return Write(name, names, fed.kind, on.inputs[write].shape[-1], **gate, scale=scale, weighted=found.weighted)


def _path(block: str, inside: str) -> str:
    return f"{block}.{inside}" if inside else ""
