"""Sets of memories, patched together in all layers at the last token, beside random sets of equal summed length."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches
from ffkv.base.errors import UserError
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.stability import largest
from ffkv.branches.behaviours.words import ALL, BY_SCREEN, RANDOM
from ffkv.model.anatomy import Layer
from ffkv.model.effects.measured import measure_effects, predict
from ffkv.model.effects.patched import patched_ends
from ffkv.model.effects.rerun import TOLERANCE, Unchanged, run_unchanged
from ffkv.model.effects.running import Running
from ffkv.model.tap.hooks import relative_error
from ffkv.model.value_vectors import values_in_place


class MemorySet(NamedTuple):
    """A set of memories."""

    choice: str  # BY_SCREEN, RANDOM or ALL
    draw: int  # number of the random set, from 0
    size: int  # n; of a random set that of the set that it is compared with
    memories: np.ndarray  # their flat numbers, ascending


def choose_sets(
    screen: np.ndarray, sizes: np.ndarray, counts: Sequence[int], draws: int, generator: np.random.Generator
) -> list[MemorySet]:
    """Chooses the n memories with the largest screen, for each n, and random sets of equal summed length.

    A random set has memories in random order, up to that with which their summed length is nearest to that of the set.

    Args:
        screen: mean screen of each memory [memory].
        sizes: mean length of the change by which each memory is patched [memory].
        counts: the numbers n. A number of more memories than there are gives all of them.
        draws: random sets per set.
    """
    ranked, sets = largest(screen, len(screen)), []
    moved = np.flatnonzero(sizes)  # memories whose patch changes something
    for count in counts:
        own = ranked[:count]
        sets.append(MemorySet(BY_SCREEN, 0, count, np.sort(own)))
        for draw in range(draws):
            order = generator.permutation(moved)
            summed = np.concatenate([[0], np.cumsum(sizes[order])])
            nearest = int(np.abs(summed - sizes[own].sum()).argmin())
            sets.append(MemorySet(RANDOM, draw, count, np.sort(order[:nearest])))
    return [*sets, MemorySet(ALL, 0, len(screen), np.arange(len(screen)))]


def _inside(sets: Sequence[MemorySet], memories: int) -> Tensor:
    """Tells which memories are in each set [set, memory]."""
    inside = torch.zeros(len(sets), memories, dtype=torch.bool)
    for row, each in zip(inside, sets, strict=True):
        row[torch.from_numpy(each.memories)] = True
    return inside


def _patched(
    running: Running, patched: Tensor, rows: Sequence[np.ndarray], base: np.ndarray
) -> Iterator[tuple[np.ndarray, list[Unchanged], Tensor]]:
    """Yields some prompts, what the unchanged model does on them, and what the head reads in each copy [prompt, copy, d].

    A last copy, of which nothing is patched, proves each pass: it gives the unchanged model's own end. Where it does not behind
    keys and values that are kept, each copy reads its whole prompt.

    Args:
        patched: which memories are patched in each copy [copy, memory].
        rows: tokens of each prompt [prompt][token].
        base: what the coefficient of each memory becomes [prompt, memory].
    Raises:
        UserError: the model cannot be changed while it runs.
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers, copies = loaded.anatomy.layers, len(patched) + 1
    patched = torch.cat([patched, torch.zeros_like(patched[:1])])
    values = [values_in_place(loaded.model, layer)[0] for layer in layers]

    def ends_of(bases: Sequence[Unchanged], to: Tensor, keep: bool) -> Tensor | None:
        """Returns the ends; None if nothing that is patched changes something."""

        def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
            place = slice(offset[layer.index], offset[layer.index + 1])
            wanted = to[:, place].repeat_interleave(copies, 0).to(m)
            change = (wanted - m) * patched[:, place].to(m.device).repeat(len(to), 1)
            return (factor * change) @ values[layer.index]

        try:
            ends = patched_ends(loaded, layers, bases, copies, edit, keep)
        except UserError:
            raise
        except Exception:  # the model's own code refuses such arguments, in a way of its own
            return None
        right = all(relative_error(own[-1], each.end) < TOLERANCE for own, each in zip(ends, bases, strict=True))
        return ends[:, :-1] if right else None

    room = max(1, running.batch_tokens // copies) if running.keeps else 1
    for group in batches(np.array([len(row) for row in rows]), running.batch_tokens):
        for few in np.split(group, range(room, len(group), room)):
            (bases,) = run_unchanged(loaded, layers[-1:], [rows[n] for n in few], running.keeps)
            to = torch.from_numpy(base[few])
            found = ends_of(bases, to, True) if running.keeps else None
            if found is None:
                each = [ends_of([own], to[n : n + 1], False) for n, own in enumerate(bases)]
                whole = [ends for ends in each if ends is not None]
                if len(whole) < len(bases):
                    raise UserError(
                        f"{loaded.anatomy.checkpoint} cannot be changed while it runs: a change of nothing changes its"
                        " prediction. Leave `behaviours` out for this model."
                    )
                found = torch.cat(whole)
            yield few, bases, found


def measure_sets(
    running: Running, sets: Sequence[MemorySet], prompts: Sequence[Encoded], numbers: Sequence[int], base: np.ndarray
) -> list[dict]:
    """Patches each set, and all memories but it, on each prompt; returns rows of the table `SETS`, without the behaviour.

    Args:
        numbers: numbers of the prompts [prompt].
        base: what the coefficient of each memory becomes [prompt, memory].
    """
    inside, rows = _inside(sets, base.shape[1]), dict[int, list[dict]]()
    patched = torch.cat([inside, ~inside])  # in each copy: the set, then all but it [copy, memory]
    for few, _, ends in _patched(running, patched, [each.clean for each in prompts], base):
        for n, of_prompt in zip(few.tolist(), ends, strict=True):
            pairs = torch.tensor([[prompts[n].answer, prompts[n].wrong]]).expand(len(patched), 2)
            found = running.head.differences(of_prompt, pairs, running.loaded.anatomy.read_as).tolist()
            rows[n] = [
                {"prompt": numbers[n]} | _named(each) | {"patched": found[place], "kept": found[place + len(sets)]}
                for place, each in enumerate(sets)
            ]
    return [row for n in sorted(rows) for row in rows[n]]


def measure_side_effects(
    running: Running,
    sets: Sequence[MemorySet],
    prefixes: Sequence[np.ndarray],
    next_tokens: Sequence[int],
    numbers: Sequence[int],
    base: np.ndarray,
) -> list[dict]:
    """Patches each set on prefixes of other text; returns rows of the table `SIDE_EFFECTS`, without the behaviour.

    Args:
        prefixes: tokens of each prefix [prefix][token].
        next_tokens: the token that follows [prefix].
        numbers: numbers of the prefixes [prefix].
        base: what the coefficient of each memory becomes [memory].
    """
    rows, read_as = dict[int, list[dict]](), running.loaded.anatomy.read_as
    every = np.broadcast_to(base, (len(prefixes), len(base)))
    for few, bases, ends in _patched(running, _inside(sets, len(base)), prefixes, every):
        predictions = predict(running.head, torch.stack([each.end for each in bases]), read_as)
        tokens = [torch.tensor([next_tokens[n]], device=predictions[0].p.device) for n in few]
        measured = measure_effects(running.head, [*ends], predictions, tokens, read_as)
        for n, effects in zip(few.tolist(), measured, strict=True):
            found = zip(sets, effects.divergence.tolist(), (-effects.log_p[:, 0]).tolist(), strict=True)
            rows[n] = [
                {"prefix": numbers[n]} | _named(each) | {"divergence": divergence, "loss": loss}
                for each, divergence, loss in found
            ]
    return [row for n in sorted(rows) for row in rows[n]]


def _named(each: MemorySet) -> dict:
    """Returns the columns that name a set."""
    return {"choice": each.choice, "draw": each.draw, "size": each.size, "memories": len(each.memories)}
