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
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from ffkv.base.batching import batches, pad, tight_batches
from ffkv.base.errors import UserError
from ffkv.base.files.columns import REACHES
from ffkv.base.steps import Work
from ffkv.base.terminal import say
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.placement import running_in_float32
from ffkv.model.tap.change import noting_returns, resumed, with_output
from ffkv.model.tap.hooks import attention_mask, relative_error
from ffkv.model.tap.tap import tap

TOLERANCE = 1e-4  # relative: passes of other shapes round otherwise, by some 1e-6; a wrong way is off by more than 1e-2
TRIED = 8  # tokens on which `keeps` is tried

# The keys and values of the tokens before the last one of a prefix, as the model keeps them in generation [block][token, head, .].
Past = list[tuple[Tensor, Tensor]]


class Unchanged(NamedTuple):
    """What the unchanged model does on a prefix, in one of its layers."""

    ids: Tensor  # the tokens of the prefix [1, token]
    m: Tensor  # the coefficients of the layer at the last token, float32 [memory]
    factor: float  # the factor of a norm after the layer at the last token; 1 without one
    o: Tensor  # r + y of the layer [token, d]
    end: Tensor  # what the head reads at the last token, float32 [d]
    returns: dict[str, Any]  # what the blocks return, see `noting_returns`
    past: Past  # none if the model does not keep them


# How many times o changes by a change at each of the last tokens of some prefixes [prefix][change, token]; None: once, at the
# last token alone.
Along = Sequence[Tensor] | None
# The ends [prefix][change + 1, d] for changes of o at the last tokens of some prefixes [prefix][change, d]. The last end of
# each prefix is that of the unchanged model.
Way = Callable[[LoadedModel, Layer, Sequence[Unchanged], Sequence[Tensor], Along], Sequence[Tensor]]
Rerun = Callable[[Sequence[Unchanged], Sequence[Tensor], Along], list[Tensor]]


def run_unchanged(
    loaded: LoadedModel, layers: Sequence[Layer], rows: Sequence[np.ndarray], keep: bool = False
) -> list[list[Unchanged]]:
    """Runs the model on some prefixes, those of similar length side by side, and reads some layers.

    Args:
        rows: token ids of each prefix, with what precedes every sentence. All of them, padded to the longest one, fit a batch.
        keep: whether the model keeps keys and values, see `keeps`.
    Returns:
        What it does [layer][prefix].
    """
    lengths = np.array([len(row) for row in rows])
    groups = tight_batches(lengths, int(len(rows) * lengths.max()), loaded.device)
    passes = [_run_side_by_side(loaded, layers, [rows[n] for n in group], keep) for group in groups]
    back = np.argsort(np.concatenate(groups)).tolist()
    of_layers = [[*itertools.chain.from_iterable(parts)] for parts in zip(*passes, strict=True)]
    return [[found[place] for place in back] for found in of_layers]


def _run_side_by_side(
    loaded: LoadedModel, layers: Sequence[Layer], rows: Sequence[np.ndarray], keep: bool
) -> list[list[Unchanged]]:
    """Does what `run_unchanged` does, in one pass of rows that are padded on the right."""
    model, final, ids = loaded.model, loaded.anatomy.layers[-1], pad(rows, loaded.device)
    wanted, lengths = {layer.index for layer in layers}, [len(row) for row in rows]
    seen: dict[tuple[int, str], Tensor] = {}
    ends: list[Tensor] = []
    cache = DynamicCache()

    def on_tensor(at: Layer, quantity: str, tensor: Tensor) -> None:
        last = tensor[torch.arange(len(rows)), torch.tensor(lengths) - 1].float()
        if at.index in wanted:
            seen[at.index, quantity] = tensor.clone() if quantity == "o" else last
        if at is final and quantity == loaded.anatomy.end:
            ends.append(last)

    read = [*layers, *([] if final.index in wanted else [final])]
    with noting_returns(model, loaded.anatomy.layers[: max(wanted) + 1]) as returns, tap(model, read, "msoe") as run:
        run(ids, on_tensor, cache=cache if keep else None)
    kept: list[Any] = cache.layers
    past = [(block.keys.transpose(1, 2), block.values.transpose(1, 2)) for block in kept]
    return [
        [
            Unchanged(
                ids[n : n + 1, :length],
                seen[layer.index, "m"][n],
                float(seen[layer.index, "s"][n]) if (layer.index, "s") in seen else 1.0,
                seen[layer.index, "o"][n, :length],
                ends[0][n],
                returns,
                [(keys[n, : length - 1], values[n, : length - 1]) for keys, values in past],
            )
            for n, length in enumerate(lengths)
        ]
        for layer in layers
    ]


def keeps(loaded: LoadedModel) -> bool:
    """Tells whether the model computes the same when it keeps keys and values, as in generation. It is tried on some tokens."""
    final, row = loaded.anatomy.layers[-1], np.arange(TRIED) % loaded.anatomy.vocabulary
    ((plain,),) = run_unchanged(loaded, [final], [row])
    try:
        ((kept,),) = run_unchanged(loaded, [final], [row], keep=True)
    except UserError:
        raise
    except Exception:  # the model's own code takes no cache, or another kind of cache
        return False
    return relative_error(kept.o, plain.o) < TOLERANCE


def rerunning(loaded: LoadedModel, layer: Layer, batch_tokens: int, keep: bool) -> Rerun:
    """Returns a function from changes of o at the last tokens of prefixes to what the head reads [prefix][change, d].

    The fastest way that is right for the model is taken: `read_on`, `row_by_row`, `from_the_start`. A way is right for a
    prefix if it gives the unchanged model's own end for a change of nothing, which is part of every pass.

    Args:
        layer: the layer that changes.
        batch_tokens: maximum number of tokens per pass, padding included. A pass makes one change at least.
        keep: whether the model keeps keys and values of the prefixes, see `keeps`. Then only the last token can change.
    Raises:
        UserError: no way is right.
    """
    ways: list[Way] = [*[read_on] * keep, row_by_row, from_the_start]

    def rerun(bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None) -> list[Tensor]:
        ends = [base.end.new_empty(own.shape) for base, own in zip(bases, changes, strict=True)]
        for parts in _passes(ways[0] is read_on, bases, changes, batch_tokens):
            own = [bases[n] for n, _ in parts]
            times = None if along is None else [along[n][rows] for n, rows in parts]
            found = _tried(ways[0], loaded, layer, own, [changes[n][rows] for n, rows in parts], times)
            if isinstance(found, Exception) or not all(
                relative_error(end[-1], base.end) < TOLERANCE for end, base in zip(found, own, strict=True)
            ):
                _next_way(ways, loaded, layer, found)
                return rerun(bases, changes, along)
            for (n, rows), each in zip(parts, found, strict=True):
                ends[n][rows] = each[:-1]
        return ends

    return rerun


def _passes(
    together: bool, bases: Sequence[Unchanged], changes: Sequence[Tensor], batch_tokens: int
) -> list[list[tuple[int, slice]]]:
    """Returns the prefixes of each pass, and which of their changes it makes.

    `together`: a pass may have several prefixes, and reads one token per change; else it reads a whole prefix per change.
    """
    parts, sizes = [], []
    for n, (base, own) in enumerate(zip(bases, changes, strict=True)):
        room = max(1, batch_tokens // (1 if together else base.ids.shape[1]) - 1)
        parts += [(n, slice(start, min(start + room, len(own)))) for start in range(0, len(own), room)]
        sizes += [1 + min(room, len(own) - start) for start in range(0, len(own), room)]
    groups = batches(np.array(sizes), batch_tokens) if together else np.arange(len(parts))[:, None]
    return [[parts[number] for number in group] for group in groups]


def _tried(way: Way, *arguments: Any) -> Sequence[Tensor] | Exception:
    try:
        return way(*arguments)
    except UserError:
        raise
    except Exception as error:  # the model's own code refuses such arguments, in a way of its own
        return error


def _next_way(ways: list[Way], loaded: LoadedModel, layer: Layer, found: object) -> None:
    """Goes over to the next way, and says so."""
    why = f"{type(found).__name__}: {found}"[:200] if isinstance(found, Exception) else "it gives another prediction"
    if len(ways) == 1:
        raise UserError(
            f"Layer {layer.index} of {loaded.anatomy.checkpoint} cannot be changed while the model runs: a change of"
            f" nothing changes its prediction ({why}). Set intervention.memories to 0 for this model."
        )
    way = ways.pop(0)
    say(f"Layer {layer.index}: not {way.__name__.replace('_', ' ')} ({why}), but {ways[0].__name__.replace('_', ' ')}.")


def read_on(
    loaded: LoadedModel, layer: Layer, bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None
) -> Sequence[Tensor]:
    """Runs the changed last tokens of each prefix behind the keys and values of the tokens before. None sees another one.

    It needs a model that takes keys and values, a mask [prefix, 1, token, token] and positions. The blocks up to the layer do
    not run.
    """
    times = along or [changes[0].new_ones(len(own), 1) for own in changes]
    rows = [_changed(base.o[-1:], own, n)[:, 0] for base, own, n in zip(bases, changes, times, strict=True)]
    states = pad_sequence(rows, True)
    ids, arguments = behind(bases, [len(own) + 1 for own in changes])
    with resumed(loaded.model, loaded.anatomy.layers, layer, states, bases[0].returns):
        ends = _ends(loaded, ids, **arguments)
    return [end[: len(own) + 1] for end, own in zip(ends, changes, strict=True)]


def behind(bases: Sequence[Unchanged], copies: Sequence[int]) -> tuple[Tensor, dict[str, Any]]:
    """Returns ids and arguments of a pass over copies of the last token of prefixes, behind the tokens before it.

    No copy sees another one. `copies`: number of copies of each prefix [prefix]. The ids are padded [prefix, copy].
    """
    ids = pad_sequence([base.ids[0, -1:].expand(count) for base, count in zip(bases, copies, strict=True)], True)
    cache = DynamicCache()
    for number, of_prefixes in enumerate(zip(*(base.past for base in bases), strict=True)):
        keys, values = (pad_sequence([*each], True).transpose(1, 2) for each in zip(*of_prefixes, strict=True))
        cache.update(keys, values, number)
    before = torch.tensor([base.ids.shape[1] - 1 for base in bases], device=ids.device)[:, None]
    first, own = torch.arange(int(before.max()), device=ids.device), torch.eye(ids.shape[1], device=ids.device)
    seen = torch.cat([(first < before)[:, None].expand(-1, len(own), -1), own.bool().expand(len(ids), -1, -1)], -1)
    mask = attention_mask(seen, bases[0].o.dtype)
    return ids, {"attention_mask": mask, "position_ids": before.expand_as(ids), "cache": cache}


def row_by_row(
    loaded: LoadedModel, layer: Layer, bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None
) -> Sequence[Tensor]:
    """Runs a copy of the only prefix per change. The blocks up to the layer do not run."""
    (base,), (own,) = bases, changes
    states = _changed(base.o, own, along[0] if along else None)
    with resumed(loaded.model, loaded.anatomy.layers, layer, states, base.returns):
        return [_ends(loaded, base.ids.expand(len(states), -1))[:, -1]]


def from_the_start(
    loaded: LoadedModel, layer: Layer, bases: Sequence[Unchanged], changes: Sequence[Tensor], along: Along = None
) -> Sequence[Tensor]:
    """Runs the whole model on a copy of the only prefix per change."""
    (base,), (own,) = bases, changes
    copies = len(own) + 1

    def change(o: Tensor) -> Tensor:
        return _changed(o.reshape(copies, -1, o.shape[-1])[0], own, along[0] if along else None).reshape(o.shape)

    with with_output(loaded.model, layer, change):
        return [_ends(loaded, base.ids.expand(copies, -1))[:, -1]]


def _changed(o: Tensor, changes: Tensor, along: Tensor | None = None) -> Tensor:
    """Returns o of a prefix [token, d] with each change at its last tokens, and without any [change + 1, token, d]."""
    times = changes.new_ones(len(changes), 1) if along is None else along
    each = (times[:, :, None] * changes[:, None]).to(o.device)
    states = o.repeat(len(changes) + 1, 1, 1)
    states[:-1, -each.shape[1] :] = (o[-each.shape[1] :].float() + each).to(o.dtype)
    return states


def _ends(loaded: LoadedModel, ids: Tensor, **arguments: Any) -> Tensor:
    """Runs tokens; returns what the head reads [sentence, token, d], float32."""
    found: list[Tensor] = []

    def on_tensor(layer: Layer, quantity: str, tensor: Tensor) -> None:
        found.append(tensor.float().clone())

    with tap(loaded.model, loaded.anatomy.layers[-1:], loaded.anatomy.end) as run:
        run(ids, on_tensor, **arguments)
    return found[0]


class Running(NamedTuple):
    """A model that computes in float32, and how it runs again."""

    loaded: LoadedModel
    head: Head
    keeps: bool  # see `rerun.keeps`
    reruns: Sequence[Rerun]  # see `rerunning` [layer]
    batch_tokens: int  # maximum number of tokens per pass, padding included


@contextlib.contextmanager
def running(model: Path | str, work: Work, whole: bool = False) -> Iterator[Running]:
    """Loads the model of a model folder. Inside the `with` statement, it computes in float32.

    A contribution is small beside the residual, so that 16 bits would round it away.

    Args:
        model: folder of the model step.
        work: the device, and the number of tokens per pass.
        whole: prefixes are read whole, because more than their last tokens change: no keys and values are kept.
    Raises:
        UserError: as `load`.
    """
    loaded = load(model, work.device, work.max_memory, work.trust_remote_code)
    head = load_head(Path(model), work.device, trust_remote_code=work.trust_remote_code)
    with running_in_float32(loaded.model):
        keeping = not whole and keeps(loaded)
        reruns = [rerunning(loaded, layer, work.batch_tokens, keeping) for layer in loaded.anatomy.layers]
        yield Running(loaded, head, keeping, reruns, work.batch_tokens)


def changed_ends(
    loaded: LoadedModel,
    layer: Layer,
    rerun: Rerun,
    bases: Sequence[Unchanged],
    changes: Sequence[Tensor],
    reaches: Sequence[str] = REACHES,
    along: Along = None,
) -> dict[str, Sequence[Tensor]]:
    """Returns what the head reads after changes of o at the last tokens of prefixes [prefix][change, d], by reach.

    Direct: the change at the last token is added to what the head reads. Total: the blocks after the layer run again. After the
    last layer there are none, so that both are the same. `rerun`: see `rerunning`. `along`: see `rerun.Along`.
    """
    last, found = layer.index == loaded.anatomy.read_as, dict[str, Sequence[Tensor]]()
    for reach in reaches[:1] if last else reaches:
        if last or reach == "direct":
            own = changes if along is None else [n[:, -1:] * each for n, each in zip(along, changes, strict=True)]
            found[reach] = [base.end + each.to(base.end.device) for base, each in zip(bases, own, strict=True)]
        else:
            found[reach] = rerun(bases, changes, along)
    return dict.fromkeys(reaches, found[reaches[0]]) if last else found


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
) -> Tensor:
    """Returns what the head reads at the last token of each prefix, for each copy of it, float32 [prefix, copy, d].

    In each copy, o of the layers changes at the last tokens by what `edit` says of the coefficients that the copy has there: a
    layer sees what the layers before it did.

    Args:
        layers: the layers that change, ascending.
        bases: the prefixes, see `run_unchanged`. Without `keep` only one.
        copies: number of copies of each prefix.
        keep: whether the model keeps keys and values, see `keeps`. Without them each copy reads the whole prefix.
        tokens: number of tokens at its end that change. With `keep` it is 1.
    """
    final = loaded.anatomy.layers[-1]
    if keep:
        ids, arguments = behind(bases, [copies] * len(bases))
    else:
        ids, arguments = bases[0].ids.expand(copies, -1), {}
    shape = (-1, 1) if keep else ids.shape  # copies of all prefixes, and their tokens
    seen: dict[str, Tensor] = {}
    ends: list[Tensor] = []

    def last(tensor: Tensor) -> Tensor:
        """[copy of each prefix, token, .], of the last tokens."""
        return tensor.reshape(*shape, tensor.shape[-1])[:, -tokens:]

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is final and quantity == loaded.anatomy.end:
            ends.append(last(tensor)[:, -1].float().clone())
        elif quantity in "ms":
            seen[quantity] = last(tensor).float().clone()

    def change(layer: Layer, o: Tensor) -> Tensor:
        states = o.reshape(*shape, o.shape[-1]).clone()
        m = seen.pop("m")
        states[:, -tokens:] += edit(layer, m, seen.pop("s", m.new_ones(*m.shape[:2], 1))).to(o.device, o.dtype)
        return states.reshape(o.shape)

    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(with_output(loaded.model, layer, partial(change, layer)))
        read = [*layers, *([] if final in layers else [final])]
        run = stack.enter_context(tap(loaded.model, read, f"ms{loaded.anatomy.end}"))
        run(ids, receive, **arguments)
    return ends[0].reshape(len(bases), copies, -1)
