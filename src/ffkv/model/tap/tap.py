"""Reads x, m, y and o of chosen layers while the model runs."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, Write
from ffkv.model.discover.first_matrices import PARTS
from ffkv.model.discover.residual_path import norm_gain
from ffkv.model.experts.record import form_of, positive_gates
from ffkv.model.tap.assemble import Carried, Part, combine, factor, flat, part
from ffkv.model.tap.hooks import after, before, forward, given, hidden

QUANTITIES = ("x", "g", "m", "b", "s", "y", "o", "e")  # in the order in which a layer gives them

Take = Callable[[Layer, str, Tensor], None]


class _Enough(Exception):
    """Everything that was asked for has been seen: the rest of the pass is not needed."""


@contextlib.contextmanager
def tap(model: nn.Module, layers: Sequence[Layer], quantities: str, take: Take) -> Iterator[Callable[[Tensor], None]]:
    """While the block runs, hands each wanted quantity of each wanted layer to `take` as soon as it exists.

    Args:
        layers: in order of execution.
        quantities: some of "xgmbsyoe", in the words of the paper (section 3.1): FF input x, memory coefficients m, FF output
            y as it is added, block output o. g: whether the gate of each memory is positive (of gated layers only). s: the
            factor by which a norm after the layer scales each token (of layers with one only), and b: what the layer adds
            beside its memories before that norm or map, so that y = s (m V + b). e: what the model reads out in the end (of a last layer whose o is not that).
        take: called with the layer, the quantity and the tensor [sentence, token, d, d_m or 1]. The tensor may be the
            model's own: it is to be consumed or copied before `take` returns.
    Yields:
        A function that runs the model on ids [sentence, token], as far as the last wanted quantity of the last layer.
    """
    wanted = [quantity for quantity in QUANTITIES if quantity in quantities and (quantity != "e" or layers[-1].end)]
    shape: list[int] = []
    runs: Counter[str] = Counter()

    def give(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity not in wanted:
            return
        take(layer, quantity, tensor.reshape(*shape, tensor.shape[-1]))
        if layer is layers[-1] and quantity == wanted[-1]:
            raise _Enough

    ahead, behind = [], []
    for layer in layers:
        hooks_ahead, hooks_behind = _watch(model, layer, wanted, give)
        ahead += [(module, _in_run(layer, runs, hook)) for module, hook in hooks_ahead]
        behind += [(module, _in_run(layer, runs, hook)) for module, hook in hooks_behind]
    blocks = {layer.block for layer in layers}
    count = [(model.get_submodule(block), lambda *_, block=block: runs.update([block])) for block in blocks]

    def run(ids: Tensor) -> None:
        shape[:] = ids.shape
        runs.clear()
        with contextlib.suppress(_Enough):
            forward(model, ids)

    with before(*count, *ahead), after(*behind):
        yield run


def _in_run(layer: Layer, runs: Counter[str], hook: Callable) -> Callable:
    """The hook, in the layer's own run of its block only."""

    def only(*arguments) -> None:
        if runs[layer.block] == layer.call + 1:
            hook(*arguments)

    return only


def _watch(model: nn.Module, layer: Layer, wanted: list[str], give: Take) -> tuple[list, list]:
    """The hooks of one layer, before and after modules."""
    ahead, behind = [], []
    if "x" in wanted:
        reader = model.get_submodule(layer.writes[0].readers[0])
        ahead.append((reader, lambda module, args, kwargs: give(layer, "x", given(args, kwargs))))
    if {"g", "m", "b", "s", "y"} & {*wanted}:
        simple = len(layer.writes) == 1 and not layer.carrier and form_of(_module(model, layer.writes[0])) is None
        extra = _simple(model, layer, wanted, give) if simple else _assembled(model, layer, wanted, give)
        ahead, behind = ahead + extra[0], behind + extra[1]
    if "o" in wanted and layer.site:
        site = model.get_submodule(layer.site)
        ahead.append((site, lambda module, args, kwargs: give(layer, "o", given(args, kwargs))))
    elif "o" in wanted:
        block = model.get_submodule(layer.block)
        behind.append((block, lambda module, args, kwargs, output: give(layer, "o", hidden(output))))
    if "e" in wanted and layer.end:
        end = model.get_submodule(layer.end)
        behind.append((end, lambda module, args, kwargs, output: give(layer, "e", hidden(output))))
    return ahead, behind


def _simple(model: nn.Module, layer: Layer, wanted: list[str], give: Take) -> tuple[list, list]:
    """A single second matrix whose output is added as it is or scaled: nothing is copied, m comes before the matrix works."""
    write = layer.writes[0]
    module = _module(model, write)
    bias = _bias(module, write) if "b" in wanted else None

    def on_output(module, args, kwargs, output: Tensor) -> None:
        scale = write.scale if isinstance(write.scale, float) else output.new_tensor(write.scale)
        if bias is not None:
            give(layer, "b", (scale * bias).expand(flat(output).shape))
        give(layer, "y", output if write.scale == 1 else scale * output)

    behind = [(module, on_output)]
    if "g" in wanted and write.gate:
        gate = model.get_submodule(write.gate)
        behind.append(
            (
                gate,
                lambda module, args, kwargs, output: give(layer, "g", output[..., PARTS[write.gate_part](output)] > 0),
            )
        )
    return [(module, lambda module, args, kwargs: give(layer, "m", args[0]))], behind


def _assembled(model: nn.Module, layer: Layer, wanted: list[str], give: Take) -> tuple[list, list]:
    """Several writes, banks of experts, or a norm, map or sum before the residual stream."""
    parts: dict[str, Part] = {}
    gates: dict[str, Tensor] = {}
    biases = {write.module: _bias(_module(model, write), write) for write in layer.writes}
    carrier = model.get_submodule(layer.carrier) if layer.carrier else None
    gain = norm_gain(carrier, next(iter(biases.values()))) if layer.carrier_kind == "norm" else None

    def on_write(write: Write):
        def note(module, args, kwargs, output) -> None:
            state = args[0]
            parts[write.module] = part(module, state, output, biases[write.module])
            if form_of(module) is not None:
                if write.gate and "g" in wanted:
                    gates[write.module] = positive_gates(module)
                del module.expert_record  # as large as what the bank did
            if carrier is None and len(parts) == len(layer.writes):
                finish(None)

        return note

    def on_gate(write: Write):
        def note(module, args, kwargs, output) -> None:
            gates[write.module] = flat(output[..., PARTS[write.gate_part](output)]) > 0

        return note

    def finish(carried: Carried | None) -> None:
        states = combine(layer, [parts[write.module] for write in layer.writes], carried)
        if layer.gated and "g" in wanted:
            none = [torch.zeros_like(parts[write.module].m, dtype=torch.bool) for write in layer.writes]
            give(layer, "g", torch.cat([gates.get(w.module, n) for w, n in zip(layer.writes, none, strict=True)], -1))
        parts.clear()
        gates.clear()
        give(layer, "m", states.m)
        give(layer, "b", states.b.expand(states.y.shape))
        if gain is not None and carried is not None and "s" in wanted:
            give(layer, "s", factor(gain, carried))
        give(layer, "y", states.y)

    behind = [(_module(model, write), on_write(write)) for write in layer.writes]
    for write in layer.writes:
        if write.gate and write.gate_part and "g" in wanted:
            behind.append((model.get_submodule(write.gate), on_gate(write)))
    if carrier is not None:

        def on_carrier(module, args, kwargs, output) -> None:
            finish(Carried(given(args, kwargs), hidden(output)))

        behind.append((carrier, on_carrier))
    return [], behind


def _module(model: nn.Module, write: Write) -> nn.Module:
    return model.get_submodule(write.module)


def _bias(module: nn.Module, write: Write) -> Tensor:
    """What a second matrix returns for zero [1, d]; of a bank, whose biases depend on the router: zeros."""
    if (form := form_of(module)) is not None:
        second = form.second(module, 0)
        return second.new_zeros(1, second.shape[-1])
    with torch.no_grad():
        return flat(module(module.weight.new_zeros(1, write.memories)))
