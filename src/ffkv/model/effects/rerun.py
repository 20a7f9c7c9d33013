"""Runs prefixes through the model, and runs them again with changes: what the head reads then.

Either the blocks after a layer run again for changed outputs of this layer, or a prefix runs again with many memories changed at
its last tokens, in all layers at once.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches, to_device
from ffkv.base.errors import UserError
from ffkv.base.files.columns import REACHES
from ffkv.base.steps import Work
from ffkv.base.terminal import say
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel, load_for
from ffkv.model.effects.unchanged import TOLERANCE, Unchanged, behind, keeps
from ffkv.model.effects.unchanged import run_unchanged as run_unchanged
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.placement import running_in_float32
from ffkv.model.tap.change import resumed, with_output
from ffkv.model.tap.hooks import tried
from ffkv.model.tap.tap import observe, tap

# How many times o changes by a change at each of the last tokens of some prefixes [prefix][change, token]; None: once, at the
# last token alone.
Along = Sequence[Tensor] | None
# The ends [prefix][change + 1, d] for changes of o at the last tokens of some prefixes [prefix][change, d]. The last end of
# each prefix is that of the unchanged model.
Way = Callable[[LoadedModel, Layer, Sequence[Unchanged], Sequence[Tensor], Along], Sequence[Tensor]]
Rerun = Callable[[Sequence[Unchanged], Sequence[Tensor], Along], list[Tensor]]


def rerunning(loaded: LoadedModel, layer: Layer, batch_tokens: int, keep: bool) -> Rerun:
    """Returns a function from changes of o at the last tokens of prefixes to what the head reads [prefix][change, d].

    The fastest way that is right for the model is taken: `read_on`, `row_by_row`, `from_the_start`. A way is right for a
    prefix if it gives the unchanged model's own end for a change of nothing, which is part of every pass.

    `layer`: the layer that changes. `batch_tokens`: maximum number of tokens per pass, padding included. A pass makes one change
    at least. `keep`: whether the model keeps keys and values of the prefixes, see `keeps`. Then as many last tokens of all prefixes
    change. Raises UserError if no way is right.
    """
    ways: list[Way] = [*[read_on] * keep, row_by_row, from_the_start]

    def rerun(bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None) -> list[Tensor]:
        ends: list[dict[int, Tensor]] = [{0: base.end.new_empty(0, len(base.end))} for base in bases]
        read = _tokens(changes, along) if ways[0] is read_on else 0
        for parts in _passes(read, bases, changes, batch_tokens):
            own = [bases[n] for n, _ in parts]
            times = None if along is None else [along[n][rows] for n, rows in parts]
            found = tried(ways[0], loaded, layer, own, [changes[n][rows] for n, rows in parts], times)
            if isinstance(found, Exception) or not _proves(found, own):
                _next_way(ways, loaded, layer, found)
                return rerun(bases, changes, along)
            for (n, rows), each in zip(parts, found, strict=True):
                ends[n][rows.start] = each[:-1]
        return [torch.cat([own[start] for start in sorted(own)]) if len(own) > 1 else own[0] for own in ends]

    return rerun


def _proves(ends: Sequence[Tensor], bases: Sequence[Unchanged]) -> bool:
    """Tells whether the last end of each prefix is that of the unchanged model. A GPU is waited for once."""
    expected = torch.stack([base.end for base in bases])
    error = (torch.stack([each[-1] for each in ends]) - expected).abs().amax(1) / expected.abs().amax(1)
    return bool((error < TOLERANCE).all())


def _passes(
    read: int, bases: Sequence[Unchanged], changes: Sequence[Tensor], batch_tokens: int
) -> list[list[tuple[int, slice]]]:
    """Returns the prefixes of each pass, and which of their changes it makes.

    `read`: tokens that a pass reads per change, of which it may have several prefixes; 0: it reads the whole only prefix per change.
    """
    parts = list[tuple[int, slice]]()
    for n, (base, own) in enumerate(zip(bases, changes, strict=True)):
        room = max(1, batch_tokens // (read or base.ids.shape[1]) - 1)
        parts += [(n, slice(start, min(start + room, len(own)))) for start in range(0, len(own), room)]
    sizes = [1 + rows.stop - rows.start for _, rows in parts]
    groups = batches(np.array(sizes), batch_tokens // read) if read else np.arange(len(parts))[:, None]
    return [[parts[number] for number in group] for group in groups]


def _tokens(changes: Sequence[Tensor], along: Along) -> int:
    """Returns how many last tokens change, see `changed_ends`."""
    if along is not None:
        return along[0].shape[1]
    return changes[0].shape[1] if changes[0].ndim == 3 else 1


def _reason(found: object) -> str:
    return f"{type(found).__name__}: {found}"[:200] if isinstance(found, Exception) else "it gives another prediction"


def _next_way(ways: list[Way], loaded: LoadedModel, layer: Layer, found: object) -> None:
    why = _reason(found)
    if len(ways) == 1:
        raise UserError(
            f"Layer {layer.index} of {loaded.anatomy.checkpoint} cannot be changed while the model runs: a change of"
            f" nothing changes its prediction ({why}). Set intervention.memories to 0 for this model."
        )
    way = ways.pop(0)
    say(f"Layer {layer.index}: not {way.__name__.replace('_', ' ')} ({why}), but {ways[0].__name__.replace('_', ' ')}.")


def read_on(
    loaded: LoadedModel,
    layer: Layer | Sequence[Layer],
    bases: Sequence[Unchanged],
    changes: Sequence[Tensor],
    along: Along = None,
) -> Sequence[Tensor]:
    """Runs the changed last tokens of each prefix behind the keys and values of the tokens before. None sees another one.

    It needs a model that takes keys and values, a mask [prefix, 1, token, token] and positions. The blocks up to the layer do
    not run. `layer`: of all prefixes, or of each one, ascending.
    """
    layers = [layer] * len(bases) if isinstance(layer, Layer) else layer
    counts, tokens = [*map(len, changes)], _tokens(changes, along)
    by_token = [own if own.ndim == 3 else own[:, None] for own in changes]
    if along is not None:
        by_token = [times[..., None] * own for times, own in zip(along, by_token, strict=True)]
    places = np.full((len(counts), max(counts) + 1), sum(counts))  # of changes, and behind the last one no change
    for row, count, stop in zip(places, counts, np.cumsum(counts).tolist(), strict=True):
        row[:count] = np.arange(stop - count, stop)
    o, device = torch.stack([base.o[-tokens:] for base in bases])[:, None], changes[0].device
    each = torch.cat([*by_token, changes[0].new_zeros(1, *o.shape[2:])])[to_device(places, str(device))]
    states = (o.float() + each.to(o.device)).to(o.dtype).flatten(1, 2)
    past = bases[0].past  # a model may keep keys and values in other blocks than those of its layers
    each_keeps = past is not None and len(past.blocks) == len(loaded.anatomy.layers)
    begins = [each_keeps * (layer.index + (not layer.sum_module)) for layer in layers]
    ids, arguments = behind(bases, max(counts) + 1, begins, tokens)
    with resumed(loaded.model, loaded.anatomy.layers, layers, states, bases[0].returns):
        ends = read_ends(loaded, ids, **arguments)[:, tokens - 1 :: tokens]
    return [end[: count + 1] for end, count in zip(ends, counts, strict=True)]


def row_by_row(
    loaded: LoadedModel, layer: Layer, bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None
) -> Sequence[Tensor]:
    """Runs a copy of the only prefix per change. The blocks up to the layer do not run."""
    (base,), (own,) = bases, changes
    states = _changed(base.o, own, along[0] if along else None)
    with resumed(loaded.model, loaded.anatomy.layers, [layer] * len(states), states, base.returns):
        return [read_ends(loaded, base.ids.expand(len(states), -1))[:, -1]]


def from_the_start(
    loaded: LoadedModel, layer: Layer, bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None
) -> Sequence[Tensor]:
    """Runs the whole model on a copy of the only prefix per change."""
    (base,), (own,) = bases, changes
    copies = len(own) + 1

    def change(o: Tensor) -> Tensor:
        return _changed(o.reshape(copies, -1, o.shape[-1])[0], own, along[0] if along else None).reshape(o.shape)

    with with_output(loaded.model, layer, change):
        return [read_ends(loaded, base.ids.expand(copies, -1))[:, -1]]


def _changed(o: Tensor, changes: Tensor, along: Tensor | None = None) -> Tensor:
    """Returns o of a prefix [token, d] with each change at its last tokens, and without any [change + 1, token, d]."""
    times = changes.new_ones(len(changes), 1) if along is None else along
    each = (changes if changes.ndim == 3 else times[:, :, None] * changes[:, None]).to(o.device)
    states = o.repeat(len(changes) + 1, 1, 1)
    states[:-1, -each.shape[1] :] = (o[-each.shape[1] :].float() + each).to(o.dtype)
    return states


def read_ends(loaded: LoadedModel, ids: Tensor, **arguments: Any) -> Tensor:
    """Runs tokens; returns what the head reads [sentence, token, d], float32."""
    (found,) = observe(loaded.model, loaded.anatomy.layers[-1:], ids, loaded.anatomy.end, **arguments)
    return found[loaded.anatomy.end]


class Running(NamedTuple):
    """A model that computes in float32, and how it runs again."""

    loaded: LoadedModel
    head: Head
    keeps: bool  # see `rerun.keeps`
    reruns: Sequence[Rerun]  # see `rerunning` [layer]
    batch_tokens: int  # maximum number of tokens per pass, padding included


@contextlib.contextmanager
def running(model: Path | str, work: Work, whole: bool = False, gradients: bool = False) -> Iterator[Running]:
    """Loads the model of a model folder. Inside the `with` statement, it computes in float32.

    A contribution is small beside the residual, so that 16 bits would round it away. `model`: folder of the model step. `work`:
    the device, and the number of tokens per pass. `whole`: prefixes are read whole, because more than their last tokens change:
    no keys and values are kept. `gradients`: whether it is differentiated. Raises UserError as `load`.
    """
    loaded = load_for(model, work, gradients)
    head = load_head(Path(model), work.device, trust_remote_code=work.trust_remote_code)
    with running_in_float32(loaded.model):
        keeping = not whole and keeps(loaded)
        reruns = [rerunning(loaded, layer, loaded.batch_tokens, keeping) for layer in loaded.anatomy.layers]
        yield Running(loaded, head, keeping, reruns, loaded.batch_tokens)


def changed_ends(
    loaded: LoadedModel,
    layer: Layer,
    rerun: Rerun,
    bases: Sequence[Unchanged],
    changes: Sequence[Tensor],
    reaches: Sequence[str] = REACHES,
    along: Along = None,
) -> dict[str, Sequence[Tensor]]:
    """Returns what the head reads after changes of o at the last tokens of prefixes, by reach.

    Changes are [prefix][change, d], or [prefix][change, token, d] where each token changes otherwise.
    Direct: the change at the last token is added to what the head reads. Total: the blocks after the layer run again. After the
    last layer there are none, so that both are the same. `rerun`: see `rerunning`. `along`: see `rerun.Along`.
    """
    last, found = layer.index == loaded.anatomy.read_as, dict[str, Sequence[Tensor]]()
    for reach in reaches[:1] if last else reaches:
        if last or reach == "direct":
            counts, end = [*map(len, changes)], torch.stack([base.end for base in bases])
            own = to_device(np.repeat(np.arange(len(bases)), counts), str(end.device))
            times = 1 if along is None else torch.cat([n[:, -1:] for n in along])
            at_last = torch.cat([each if each.ndim == 2 else each[:, -1] for each in changes])
            found[reach] = (end[own] + (times * at_last).to(end.device)).split(counts)
        else:
            found[reach] = rerun(bases, changes, along)
    return dict.fromkeys(reaches, found[reaches[0]]) if last else found


def rerunning_layers(its: Running) -> Callable[..., list[Sequence[Tensor]]]:
    """Returns a function from changes of several layers, each for itself, to the total ends [layer][prefix][change, d].

    It takes the layers, ascending, and prefixes and changes of each as `changed_ends` does. All changes run in one pass, which
    those of a layer join behind this layer. Where this is wrong for a model (see `rerunning`), the layers run one by one.
    """
    loaded = its.loaded
    alone = not its.keeps or any(layer.sum_module for layer in loaded.anatomy.layers)

    def rerun(
        layers: Sequence[Layer], bases: Sequence[Sequence[Unchanged]], changes: Sequence[Sequence[Tensor]]
    ) -> list[Sequence[Tensor]]:
        nonlocal alone
        many = [layer for layer in layers if layer.index != loaded.anatomy.read_as]  # no block runs after that layer
        found = list[Sequence[Tensor]]()
        if not alone and len(many) > 1:
            flat_bases = [base for of_layer in bases[: len(many)] for base in of_layer]
            flat = [change for of_layer in changes[: len(many)] for change in of_layer]
            ends = tried(read_on, loaded, [layer for layer in many for _ in bases[0]], flat_bases, flat)
            if isinstance(ends, Exception) or not _proves(ends, flat_bases):
                alone = True
                say(f"Not all layers change in one pass ({_reason(ends)}), but each in its own.")
            else:
                pieces = iter(ends)
                found = [[end[:-1] for end in itertools.islice(pieces, len(bases[0]))] for _ in many]
        for layer, own, each in [*zip(layers, bases, changes, strict=True)][len(found) :]:
            found.append(changed_ends(loaded, layer, its.reruns[layer.index], own, each, ["total"])["total"])
        return found

    return rerun


# From a layer, the coefficients [copy, token, memory] and the factor of a norm after it [copy, token, 1] at the last tokens of
# all copies of all prefixes, to what o of each copy is changed by there [copy, token, d].
Edit = Callable[[Layer, Tensor, Tensor], Tensor]


def patched_ends(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    bases: Sequence[Unchanged],
    copies: int,
    edit: Edit,
    keep: bool,
    tokens: int = 1,
    after: int = 0,
) -> Tensor:
    """Returns what the head reads at the last token of each prefix, for each copy of it, float32 [prefix, copy, d].

    In each copy, o of the layers changes at some tokens by what `edit` says of the coefficients that the copy has there: a
    layer sees what the layers before it did.

    `layers`: those that change, ascending. `bases`: the prefixes, see `run_unchanged`; without `keep` only one. `copies`: number
    of copies of each prefix. `keep`: whether the model keeps keys and values, see `keeps`. Without them each copy reads the
    whole prefix. `tokens`: number of tokens that change. `after`: number of tokens behind them, which read what they wrote.
    """
    final, at = loaded.anatomy.layers[-1], slice(-tokens - after, -after or None)
    if keep:
        ids, arguments = behind(bases, copies, tokens=tokens + after)
    else:
        ids, arguments = bases[0].ids.expand(copies, -1), {}
    shape = (-1, tokens + after) if keep else ids.shape  # copies of all prefixes, and their tokens
    seen: dict[str, Tensor] = {}
    ends: list[Tensor] = []

    def of_copies(tensor: Tensor) -> Tensor:
        """[copy of each prefix, token, .]"""
        return tensor.reshape(*shape, tensor.shape[-1])

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is final and quantity == loaded.anatomy.end:
            ends.append(of_copies(tensor)[:, -1].float().clone())
        elif quantity in "ms":
            seen[quantity] = of_copies(tensor)[:, at].float().clone()

    def change(layer: Layer, o: Tensor) -> Tensor:
        states = of_copies(o).clone()
        m = seen.pop("m")
        states[:, at] += edit(layer, m, seen.pop("s", m.new_ones(*m.shape[:2], 1))).to(o.device, o.dtype)
        return states.reshape(o.shape)

    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(with_output(loaded.model, layer, partial(change, layer)))
        read = [*layers, *([] if final in layers else [final])]
        run = stack.enter_context(tap(loaded.model, read, f"ms{loaded.anatomy.end}"))
        run(ids, receive, **arguments)
    return ends[0].reshape(len(bases), copies, -1)
