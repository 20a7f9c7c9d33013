"""Runs a prefix through the model, and runs the blocks after a layer again for changed outputs of the layer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.base.terminal import say
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.hooks import relative_error
from ffkv.model.tap.resume import noting_returns, resumed, with_output
from ffkv.model.tap.tap import tap

TOLERANCE = 1e-4  # relative: passes of other shapes round otherwise, by some 1e-6; a wrong way is off by more than 1e-2


class Unchanged(NamedTuple):
    """What the unchanged model does on a prefix."""

    ids: Tensor  # the tokens of the prefix [1, token]
    m: Tensor  # the coefficients of a layer at the last token, float32 [memory]
    factor: float  # the factor of a norm after the layer at the last token; 1 without one
    o: Tensor  # r + y of the layer [token, d]
    end: Tensor  # what the head reads at the last token, float32 [d]
    returns: dict[str, Any]  # what the blocks return, see `noting_returns`


# The ends [change + 1, d] for changes of o at the last token [change, d]. The last end is that of the unchanged model.
Way = Callable[[LoadedModel, Layer, Unchanged, Tensor], Tensor]
Rerun = Callable[[Unchanged, Tensor], Tensor]


def run_unchanged(loaded: LoadedModel, layer: Layer, ids: Tensor) -> Unchanged:
    """Runs the model on a prefix, and reads one layer.

    Args:
        ids: the tokens of the prefix, with what precedes every sentence [1, token].
    """
    model, layers = loaded.model, loaded.anatomy.layers
    seen: dict[str, Tensor] = {}

    def on_tensor(at: Layer, quantity: str, tensor: Tensor) -> None:
        if at is layer:
            seen[quantity] = tensor[0].clone() if quantity == "o" else tensor[0, -1].float().clone()
        if at is layers[-1] and quantity == loaded.anatomy.end:
            seen["end"] = tensor[0, -1].float().clone()

    read = [layer] if layer is layers[-1] else [layer, layers[-1]]
    with noting_returns(model, layers[: layer.index + 1]) as returns, tap(model, read, "msoe") as run:
        run(ids, on_tensor)
    factor = float(seen["s"]) if "s" in seen else 1.0
    return Unchanged(ids, seen["m"], factor, seen["o"], seen["end"], returns)


def rerunning(loaded: LoadedModel, layer: Layer, batch_tokens: int) -> Rerun:
    """Returns a function from changes of o at the last token of a prefix to what the head reads, both [change, d].

    The fastest way that is right for the model is taken: `packed`, `row_by_row`, `from_the_start`. A way is right for a
    prefix if it gives the unchanged model's own end for a change of nothing, which is part of every pass.

    Args:
        layer: the layer that changes.
        batch_tokens: maximum number of tokens per pass. A pass makes one change at least.
    Raises:
        UserError: no way is right.
    """
    ways: list[Way] = [packed, row_by_row, from_the_start]

    def rerun(base: Unchanged, changes: Tensor) -> Tensor:
        ends, start = [base.end.new_zeros(0, len(base.end))], 0
        while start < len(changes):
            tokens = base.ids.shape[1]
            room = batch_tokens - tokens if ways[0] is packed else batch_tokens // tokens - 1
            part = changes[start : start + max(1, room)]
            found = _tried(ways[0], loaded, layer, base, part)
            if isinstance(found, Tensor) and relative_error(found[-1], base.end) < TOLERANCE:
                ends.append(found[:-1])
                start += len(part)
            else:
                _next_way(ways, loaded, layer, found)
        return torch.cat(ends)

    return rerun


def _tried(way: Way, loaded: LoadedModel, layer: Layer, base: Unchanged, changes: Tensor) -> Tensor | Exception:
    try:
        return way(loaded, layer, base, changes)
    except UserError:
        raise
    except Exception as error:  # the model's own code refuses such arguments, in a way of its own
        return error


def _next_way(ways: list[Way], loaded: LoadedModel, layer: Layer, found: Tensor | Exception) -> None:
    """Goes over to the next way, and says so."""
    why = f"{type(found).__name__}: {found}"[:200] if isinstance(found, Exception) else "it gives another prediction"
    if len(ways) == 1:
        raise UserError(
            f"Layer {layer.index} of {loaded.anatomy.checkpoint} cannot be changed while the model runs: a change of"
            f" nothing changes its prediction ({why}). Set intervention.memories to 0 for this model."
        )
    way = ways.pop(0)
    say(f"Layer {layer.index}: not {way.__name__.replace('_', ' ')} ({why}), but {ways[0].__name__.replace('_', ' ')}.")


def packed(loaded: LoadedModel, layer: Layer, base: Unchanged, changes: Tensor) -> Tensor:
    """Runs the prefix once, with all its changed last tokens. None of these sees another one.

    It needs a model that takes a mask [1, 1, token, token] and positions. The blocks up to the layer do not run.
    """
    before, copies = base.ids.shape[1] - 1, len(changes) + 1
    ids = torch.cat([base.ids[:, :before], base.ids[:, -1:].expand(1, copies)], 1)
    number = torch.arange(before + copies, device=ids.device)
    seen = ((number[None] < before) & (number[None] <= number[:, None])) | (number[None] == number[:, None])
    mask = torch.zeros(seen.shape, dtype=base.o.dtype, device=ids.device)
    mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
    states = torch.cat([base.o[:before], _changed(base.o[-1], changes)])[None]
    with resumed(loaded.model, loaded.anatomy.layers, layer, states, base.returns):
        ends = _ends(loaded, ids, attention_mask=mask[None, None], position_ids=number.clamp_max(before)[None])
    return ends[0, before:]


def row_by_row(loaded: LoadedModel, layer: Layer, base: Unchanged, changes: Tensor) -> Tensor:
    """Runs a copy of the prefix per change. The blocks up to the layer do not run."""
    states = base.o.expand(len(changes) + 1, -1, -1).clone()
    states[:, -1] = _changed(base.o[-1], changes)
    with resumed(loaded.model, loaded.anatomy.layers, layer, states, base.returns):
        return _ends(loaded, base.ids.expand(len(states), -1))[:, -1]


def from_the_start(loaded: LoadedModel, layer: Layer, base: Unchanged, changes: Tensor) -> Tensor:
    """Runs the whole model on a copy of the prefix per change."""
    copies = len(changes) + 1

    def change(o: Tensor) -> Tensor:
        states = o.reshape(copies, -1, o.shape[-1]).clone()
        states[:-1, -1] += changes.to(o.device, o.dtype)
        return states.reshape(o.shape)

    with with_output(loaded.model, layer, change):
        return _ends(loaded, base.ids.expand(copies, -1))[:, -1]


def _changed(o: Tensor, changes: Tensor) -> Tensor:
    """Returns o at the last token [d] with each change, and without any [change + 1, d]."""
    return torch.cat([(o.float() + changes.to(o.device)).to(o.dtype), o[None]])


def _ends(loaded: LoadedModel, ids: Tensor, **arguments: Any) -> Tensor:
    """Runs tokens; returns what the head reads [sentence, token, d], float32."""
    found: list[Tensor] = []

    def on_tensor(layer: Layer, quantity: str, tensor: Tensor) -> None:
        found.append(tensor.float().clone())

    with tap(loaded.model, loaded.anatomy.layers[-1:], loaded.anatomy.end) as run:
        run(ids, on_tensor, **arguments)
    return found[0]
