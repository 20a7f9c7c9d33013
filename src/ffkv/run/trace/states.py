"""What the layers do on one prompt: m, y, o, the vector that the head reads, and the model's own logits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

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


@dataclass
class States:
    """The states of all layers on one prompt, in float32, each on its layer's device."""

    position: int  # the chosen token
    factors: Mapping[Place, float]  # of the coefficients that are changed
    token: int | None  # the only token at which they are changed, as a position; None: every token
    m: list[Tensor] = field(default_factory=list)  # coefficients at the chosen token [layer][memory]
    # what a layer adds beside its memories at the chosen token, before a norm or map after it [layer][d]
    b: list[Tensor] = field(default_factory=list)
    # factor of the norm after the layer at the chosen token [layer][1]; 1 without such a norm
    s: list[Tensor] = field(default_factory=list)
    y: list[Tensor] = field(default_factory=list)  # FF outputs [layer][token, d]
    o: list[Tensor] = field(default_factory=list)  # block outputs [layer][token, d]
    # of each block's call, by block and repeat
    arguments: dict[tuple[str, int], Arguments] = field(default_factory=dict)
    end: Tensor = field(default_factory=lambda: torch.zeros(0))  # what the head reads at the chosen token [d]
    # the model's own logits at the chosen token [vocabulary]
    logits: Tensor = field(default_factory=lambda: torch.zeros(0))


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
    states = States(position, factors, token)
    factor: Tensor | None = None

    def on_tensor(layer: Layer, quantity: str, tensor: Tensor) -> None:
        nonlocal factor
        match quantity:
            case "m" | "b":
                getattr(states, quantity).append(tensor[0, position].float().clone())
            case "s":  # comes before y
                factor = tensor[0, position].float().clone()
            case "y":
                states.s.append(tensor.new_ones(1).float() if factor is None else factor)
                states.y.append(tensor[0].float().clone())
                factor = None
            case "o":
                states.o.append(tensor[0].float().clone())
            case "e":
                states.end = tensor[0, position].float().clone()

    model, layers = loaded.model, loaded.anatomy.layers
    with (
        scaled(model, layers, factors, token),
        capturing(model, [layer.block for layer in layers]) as states.arguments,
        tap(model, layers, "mbsyoe", whole=True) as run,
    ):
        output = run(ids, on_tensor)
    states.logits = output.logits[0, position].float().clone()
    if loaded.anatomy.end == "o":
        states.end = states.o[-1][position]
    check_finite(loaded, [*states.m, *states.y, *states.o, states.logits], changed=bool(factors))
    return states


def read_end(loaded: LoadedModel, ids: Tensor, factors: Mapping[Place, float]) -> Tensor:
    """Returns what the head reads [sentence, token, d] when some coefficients are multiplied by factors at every token.

    `ids`: [sentence, token]. `factors`: see `scaled`.
    """
    layers = loaded.anatomy.layers
    ends: list[Tensor] = []
    with scaled(loaded.model, layers, factors), tap(loaded.model, layers[-1:], loaded.anatomy.end) as run:
        run(ids, lambda layer, quantity, tensor: ends.append(tensor.float().clone()))
    return ends[0]


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
