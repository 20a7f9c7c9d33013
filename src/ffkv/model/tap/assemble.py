"""The parts of one layer, as its modules give them, put together: m, y and what comes with them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, Write
from ffkv.model.discover.scaling import tokens_weights
from ffkv.model.experts.record import coefficients, written


class Part(NamedTuple):
    """What one write did, by token: its coefficients m [token, memory], what it wrote z [token, d], and the part of z that
    no memory wrote [token or 1, d]."""

    m: Tensor
    z: Tensor
    rest: Tensor


class Carried(NamedTuple):
    """What went into a layer's carrier and what came out of it [token, d]."""

    given: Tensor
    output: Tensor


class States(NamedTuple):
    """m [token, memory] and y [token, d] of a layer; b: what the sum before the carrier holds beside the memories [token, d]."""

    m: Tensor
    y: Tensor
    b: Tensor


def part(module: nn.Module, state: Tensor, output: Tensor, bias: Tensor) -> Part:
    """What a write did when `state` went in and `output` came out. bias: what it returns for zero."""
    record = getattr(module, "expert_record", None)
    rest = bias if record is None else record.rest
    # Copies: what stands in the model's own memory may be added to in place before the layer is through.
    return Part(*(flat(t).clone() for t in (coefficients(module, state), written(module, output), rest)))


def combine(layer: Layer, parts: list[Part], carried: Carried | None) -> States:
    """Puts the parts of a layer together, in the order of its writes."""
    scales = [scale_of(write, part.z) for write, part in zip(layer.writes, parts, strict=True)]
    weights = _weights(layer, [scale * part.z for scale, part in zip(scales, parts, strict=True)], carried)
    ms, zs, rests = zip(
        *[
            (weight * part.m, weight * scale * part.z, weight * scale * part.rest)
            for weight, scale, part in zip(weights, scales, parts, strict=True)
        ],
        strict=True,
    )
    y = sum(zs) if carried is None else layer.carrier_scale * flat(carried.output)
    return States(torch.cat(ms, -1), y, sum(rests))


def scale_of(write: Write, like: Tensor) -> Tensor:
    """What is multiplied with what a write returns: one number [1] or one a dimension [d]."""
    return torch.as_tensor(write.scale, dtype=like.dtype, device=like.device).reshape(-1)


def factor(gain: Tensor, carried: Carried) -> Tensor:
    """The factor by which a norm scales each token [token, 1]: output = factor * gain * input."""
    direction = gain * flat(carried.given)
    return tokens_weights(direction[None], flat(carried.output))[0][:, None].to(direction.dtype)


def flat(state: Tensor) -> Tensor:
    """[token, .], whatever the number of dimensions in front."""
    return state.reshape(-1, state.shape[-1])


def _weights(layer: Layer, scaled: list[Tensor], carried: Carried | None) -> list[Tensor]:
    """The block's own weight of each part, by token [token, 1]; 1 for a part that is added as it is."""
    weights = [torch.ones_like(part[:, :1]) for part in scaled]
    weighted = [number for number, write in enumerate(layer.writes) if write.weighted]
    if weighted and carried is not None:
        sums_up = layer.carrier_kind == "sum"
        total = layer.carrier_scale * flat(carried.output) if sums_up else flat(carried.given)
        known = sum(part for part, write in zip(scaled, layer.writes, strict=True) if not write.weighted)
        found = tokens_weights(torch.stack([scaled[number] for number in weighted]), total - known)
        for number, weight in zip(weighted, found, strict=True):
            weights[number] = weight[:, None].to(scaled[number].dtype)
    return weights
