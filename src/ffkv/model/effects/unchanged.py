"""What the unchanged model does on prefixes, and the keys and values behind which it goes on."""

import copy
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_end
from transformers import DynamicCache

from ffkv.base.batching import pad, tight_batches, to_device
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.change import noting_returns
from ffkv.model.tap.hooks import attention_mask, relative_error, tried
from ffkv.model.tap.tap import tap

TOLERANCE = 1e-4  # relative: passes of other shapes round otherwise, by some 1e-6; a wrong way is off by more than 1e-2
TRIED = 8  # tokens on which `keeps` is tried


class Past(NamedTuple):
    """The keys and values of the tokens of a prefix, as the model keeps them in generation."""

    blocks: Sequence[Any]  # of this prefix and others, in layers of a `DynamicCache`: [prefix, head, token, .]
    row: int  # which of them it is


class Unchanged(NamedTuple):
    """What the unchanged model does on a prefix, in one of its layers."""

    ids: Tensor  # the tokens of the prefix [1, token]
    m: Tensor  # the coefficients of the layer at the last token, float32 [memory]
    factor: float  # the factor of a norm after the layer at the last token; 1 without one
    o: Tensor  # r + y of the layer [token, d]
    end: Tensor  # what the head reads at the last token, float32 [d]
    returns: dict[str, Any]  # what the blocks return, see `noting_returns`
    past: Past | None  # None if the model does not keep them


def run_unchanged(
    loaded: LoadedModel, layers: Sequence[Layer], rows: Sequence[np.ndarray], keep: bool = False
) -> list[list[Unchanged]]:
    """Runs the model on some prefixes, those of similar length side by side, and reads some layers [layer][prefix].

    `rows`: token ids of each prefix, with what precedes every sentence. All of them, padded to the longest one, fit a batch.
    `keep`: whether the model keeps keys and values, see `keeps`.
    """
    lengths = np.array([len(row) for row in rows])
    groups = tight_batches(lengths, int(len(rows) * lengths.max()), loaded.device)
    passes = [_run_side_by_side(loaded, layers, [rows[n] for n in group], keep) for group in groups]
    blocks = _joined([blocks for _, blocks in passes])
    back = np.argsort(np.concatenate(groups)).tolist()
    found = []
    for of_passes in zip(*(of_layers for of_layers, _ in passes), strict=True):  # of a layer
        prefixes = [*itertools.chain.from_iterable(of_passes)]
        found.append([prefixes[place]._replace(past=Past(blocks, place) if keep else None) for place in back])
    return found


def _run_side_by_side(
    loaded: LoadedModel, layers: Sequence[Layer], rows: Sequence[np.ndarray], keep: bool
) -> tuple[list[list[Unchanged]], Sequence[Any]]:
    """Does what `run_unchanged` does, in one pass of rows that are padded on the right; returns what is kept, too."""
    model, final, ids = loaded.model, loaded.anatomy.layers[-1], pad(rows, loaded.device)
    wanted = {layer.index for layer in layers}
    lengths = np.array([len(row) for row in rows])
    last_tokens = to_device(np.arange(len(rows)) * ids.shape[1] + lengths - 1, loaded.device)  # flat positions
    seen: dict[tuple[int, str], Tensor] = {}
    ends: list[Tensor] = []
    cache = DynamicCache()

    def on_tensor(at: Layer, quantity: str, tensor: Tensor) -> None:
        last = tensor.flatten(0, 1)[last_tokens.to(tensor.device)].float()
        if at.index in wanted:
            seen[at.index, quantity] = tensor.clone() if quantity == "o" else last
        if at is final and quantity == loaded.anatomy.end:
            ends.append(last)

    read = [*layers, *([] if final.index in wanted else [final])]
    with noting_returns(model, loaded.anatomy.layers[: max(wanted) + 1]) as returns, tap(model, read, "msoe") as run:
        run(ids, on_tensor, cache=cache if keep else None)
    if any(getattr(block, "keys", None) is None for block in cache.layers):
        raise ValueError("a block keeps something else than keys and values")
    # All factors in one copy.
    s = {layer.index: seen[layer.index, "s"].to(ids.device) for layer in layers if (layer.index, "s") in seen}
    factors = dict(zip(s, torch.cat([*s.values()], 1).T.tolist(), strict=True)) if s else {}
    found = []
    for layer in layers:
        m, o = seen[layer.index, "m"], seen[layer.index, "o"]
        of_rows = factors.get(layer.index, [1.0] * len(rows))
        of_layer = [
            Unchanged(ids[n : n + 1, :length], m[n], of_rows[n], o[n, :length], ends[0][n], returns, None)
            for n, length in enumerate(lengths.tolist())
        ]
        found.append(of_layer)
    return found, cache.layers


def _joined(passes: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Returns what several passes keep as what one would keep, padded on the right to the longest."""
    if len(passes) == 1:
        return passes[0]
    blocks = [copy.copy(block) for block in passes[0]]
    for block, *each in zip(blocks, *passes, strict=True):
        tokens = max(own.keys.shape[2] for own in each)
        for name in ("keys", "values"):
            of_passes = [getattr(own, name) for own in each]
            setattr(block, name, torch.cat([pad_end(own, (0, 0, 0, tokens - own.shape[2])) for own in of_passes]))
    return blocks


def keeps(loaded: LoadedModel) -> bool:
    """Tells whether the model computes the same when it keeps keys and values, as in generation. It is tried on some tokens."""
    final, row = loaded.anatomy.layers[-1], np.arange(TRIED) % loaded.anatomy.vocabulary
    ((plain,),) = run_unchanged(loaded, [final], [row])
    kept = tried(run_unchanged, loaded, [final], [row], True)  # its code may take no cache, or another kind of cache
    return not isinstance(kept, Exception) and relative_error(kept[0][0].o, plain.o) < TOLERANCE


def behind(
    bases: Sequence[Unchanged], copies: int, begins: Sequence[int] | None = None, tokens: int = 1
) -> tuple[Tensor, dict[str, Any]]:
    """Returns ids and arguments of a pass over copies of the last tokens of prefixes, behind the tokens before them.

    No copy sees another one. `copies`: number of copies of each prefix. `begins`: the first block that runs for each prefix,
    ascending, among those that keep keys and values; None: all blocks run. The ids are [prefix, copy by copy its `tokens`].
    """
    ids = torch.stack([base.ids[0, -tokens:] for base in bases])[:, None].expand(-1, copies, -1).flatten(1)
    pasts, cache = [base.past for base in bases if base.past], DynamicCache()
    kept = {id(past.blocks): past.blocks for past in pasts}
    first = dict(zip(kept, itertools.accumulate((len(own[0].keys) for own in kept.values()), initial=0)))
    rows = np.array([first[id(past.blocks)] + past.row for past in pasts])
    blocks, index = _joined([*kept.values()]), to_device(rows, str(ids.device))
    for number, block in enumerate(blocks):
        own = copy.copy(block)
        count = bisect_right(begins or [0] * len(bases), number)  # prefixes for which the block runs
        if count and not np.array_equal(rows[:count], np.arange(len(block.keys))):
            own.keys, own.values = (each[index[:count].to(each.device)] for each in (block.keys, block.values))
        cache.layers.append(own)
    before = to_device(np.array([base.ids.shape[1] - tokens for base in bases]), str(ids.device))[:, None]
    place = torch.arange(blocks[0].keys.shape[2], device=ids.device)
    same = torch.eye(copies, device=ids.device)
    positions = before.expand_as(ids)
    if tokens > 1:
        same = torch.kron(same, torch.ones(tokens, tokens, device=ids.device).tril())
        positions = positions + torch.arange(tokens, device=ids.device).repeat(copies)
    of_copy = same.bool().expand(len(ids), -1, -1)
    seen = torch.cat([(place < before)[:, None].expand(-1, ids.shape[1], -1), of_copy], -1)
    mask = attention_mask(seen, bases[0].o.dtype)
    return ids, {"attention_mask": mask, "position_ids": positions, "cache": cache}
