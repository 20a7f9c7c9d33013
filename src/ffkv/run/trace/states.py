"""What the layers do on one prompt: m, y, o, the vector that the head reads, and the model's own logits."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.discover.prove import without_layer
from ffkv.model.discover.replay import Arguments, capturing
from ffkv.model.tap.change import Place, scaled
from ffkv.model.tap.hooks import relative_error
from ffkv.model.tap.tap import tap


class States(NamedTuple):
    """The states of all layers on one prompt, in float32, each on its layer's device."""

    position: int  # the chosen token
    factors: Mapping[Place, float]  # of the coefficients that are changed
    token: int | None  # the only token at which they are changed, as a position; None: every token
    m: list[Tensor]  # coefficients at the chosen token [layer][memory]
    # what a layer adds beside its memories at the chosen token, before a norm or map after it [layer][d]
    b: list[Tensor]
    s: list[Tensor]  # factor of the norm after the layer at the chosen token [layer][1]; 1 without such a norm
    u: list[Tensor | None]  # what a dictionary leaves at the chosen token, as `b` [layer][d]; None without one
    y: list[Tensor]  # FF outputs [layer][token, d]
    o: list[Tensor]  # block outputs [layer][token, d]
    arguments: dict[tuple[str, int], Arguments]  # of each block's call, by block and repeat
    end: Tensor  # what the head reads at the chosen token [d]
    logits: Tensor  # the model's own logits at the chosen token [vocabulary]


def run_prompt(
    loaded: LoadedModel,
    ids: Tensor,
    position: int,
    factors: Mapping[Place, float] = MappingProxyType({}),
    token: int | None = None,
) -> States:
    """Runs the model on the ids of a prompt [1, token], and reads the states at the token at `position`.

    `factors`, `token`: of coefficients that are changed meanwhile, see `scaled`. Raises UserError if states overflow, or the memory
    does not suffice.
    """
    model, layers, seen = loaded.model, loaded.anatomy.layers, dict[tuple[int, str], Tensor]()

    def on_tensor(layer: Layer, quantity: str, tensor: Tensor) -> None:
        seen[layer.index, quantity] = tensor[0, slice(None) if quantity in "yo" else position].float().clone()

    with (
        scaled(model, layers, factors, token),
        capturing(model, [layer.block for layer in layers]) as arguments,
        tap(model, layers, "mbsuyoe", whole=True) as run,
    ):
        output = run(ids, on_tensor)
    m, b, y, o = ([seen[layer.index, quantity] for layer in layers] for quantity in "mbyo")
    s = [seen.get((number, "s"), own.new_ones(1)) for number, own in enumerate(y)]
    u = [seen.get((number, "u")) for number in range(len(y))]
    end, logits = seen.get((len(layers) - 1, "e"), o[-1][position]), output.logits[0, position].float().clone()
    check_finite(loaded, [*m, *y, *o, logits], changed=bool(factors))
    return States(position, factors, token, m, b, s, u, y, o, arguments, end, logits)


def check_finite(loaded: LoadedModel, states: Iterable[Tensor], changed: bool = False) -> None:
    """Refuses states that are not finite by a UserError: those of the unchanged model, or of the `changed` one."""
    if not bool(torch.stack([torch.isfinite(state).all().to(loaded.device) for state in states]).all()):  # one wait
        what = "this text with these changes" if changed else "this text"
        remedy = "Write smaller factors." if changed else "Make the run again with model.dtype float32."
        raise UserError(
            f"States of {loaded.anatomy.checkpoint} are not finite on {what}: the model overflows in"
            f" {loaded.anatomy.dtype}. {remedy}"
        )


def residual_deviations(loaded: LoadedModel, states: States) -> list[float]:
    """Returns the largest relative deviation of r + y from o over all tokens [layer].

    r is the output of the block when it runs again on the same inputs without the FF layer. Other layers of the same
    block change as they did.
    """
    layers, deviations = loaded.anatomy.layers, []
    once = [replace(layer, repeat=0) for layer in layers]  # a block that is run alone is in its first repeat
    for layer, y, o in zip(layers, states.y, states.o, strict=True):
        call = layer.block, layer.repeat
        same = {each.index for each in layers if (each.block, each.repeat) == call}
        inside = {place: factor for place, factor in states.factors.items() if place[0] in same}
        with scaled(loaded.model, once, inside, states.token):
            rest = without_layer(loaded.model, layer, states.arguments[call]).reshape(o.shape)
        deviations.append(relative_error(y + rest, o))
    return deviations
