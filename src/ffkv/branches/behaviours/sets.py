"""Sets of memories, patched together in all layers, beside random sets of equal summed length."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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
    running: Running, patched: Tensor, prompts: Sequence[Encoded], base: Tensor
) -> Iterator[tuple[list[int], list[Unchanged], Tensor]]:
    """Yields some prompts, what the unchanged model does on them, and what the head reads in each copy [prompt, copy, d].

    A last copy, of which nothing is patched, proves each pass: it gives the unchanged model's own end. Where it does not behind
    keys and values that are kept, each copy reads its whole prompt. A pass has up to `running.batch_tokens` tokens.

    Args:
        patched: which memories are patched in each copy [copy, memory].
        base: what the coefficient of each memory becomes, see `read_base` [prompt, token, memory].
    Raises:
        UserError: the model cannot be changed while it runs.
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers = loaded.anatomy.layers
    values = [values_in_place(loaded.model, layer)[0] for layer in layers]

    def ends_of(bases: Sequence[Unchanged], few: list[int], patched: Tensor, keep: bool) -> Tensor | None:
        """Returns the ends; None if nothing that is patched changes something."""
        copies, tokens = len(patched) + 1, prompts[few[0]].tokens
        patched = torch.cat([patched, torch.zeros_like(patched[:1])])

        def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
            place = slice(offset[layer.index], offset[layer.index + 1])
            wanted = base[few, -tokens:, place].repeat_interleave(copies, 0).to(m)
            change = (wanted - m) * patched[:, None, place].to(m.device).repeat(len(few), 1, 1)
            return (factor * change) @ values[layer.index]

        try:
            ends = patched_ends(loaded, layers, bases, copies, edit, keep, tokens)
        except UserError:
            raise
        except Exception:  # the model's own code refuses such arguments, in a way of its own
            return None
        right = all(relative_error(own[-1], each.end) < TOLERANCE for own, each in zip(ends, bases, strict=True))
        return ends[:, :-1] if right else None

    room = max(1, running.batch_tokens // (len(patched) + 1)) if running.keeps else 1
    for start in range(0, len(prompts), room):
        few = [*range(start, min(start + room, len(prompts)))]
        (bases,) = run_unchanged(loaded, layers[-1:], [prompts[n].clean for n in few], running.keeps)
        found = ends_of(bases, few, patched, True) if running.keeps else None
        if found is None:
            of_prompts = []
            for n, own in zip(few, bases, strict=True):
                parts = patched.split(max(1, running.batch_tokens // own.ids.shape[1] - 1))
                ends = [ends for part in parts if (ends := ends_of([own], [n], part, False)) is not None]
                if len(ends) < len(parts):
                    raise UserError(
                        f"{loaded.anatomy.checkpoint} cannot be changed while it runs: a change of nothing changes its"
                        " prediction. Leave `behaviours` out for this model."
                    )
                of_prompts.append(torch.cat(ends, 1))
            found = torch.cat(of_prompts)
        yield few, bases, found


def measure_sets(
    running: Running, sets: Sequence[MemorySet], prompts: Sequence[Encoded], numbers: Sequence[int], base: Tensor
) -> list[dict]:
    """Patches each set, and all memories but it, on each prompt; returns rows of the table `SETS`, without the behaviour.

    Args:
        prompts: prompts of similar length.
        numbers: numbers of the prompts [prompt].
        base: what the coefficient of each memory becomes, see `read_base` [prompt, token, memory].
    """
    inside, rows = _inside(sets, base.shape[-1]), list[dict]()
    patched = torch.cat([inside, ~inside])  # in each copy: the set, then all but it [copy, memory]
    for few, _, ends in _patched(running, patched, prompts, base):
        for n, of_prompt in zip(few, ends, strict=True):
            pairs = torch.tensor([[prompts[n].answer, prompts[n].wrong]]).expand(len(patched), 2)
            found = running.head.differences(of_prompt, pairs, running.loaded.anatomy.read_as).tolist()
            rows += [
                {"prompt": numbers[n]} | _named(each) | {"patched": found[place], "kept": found[place + len(sets)]}
                for place, each in enumerate(sets)
            ]
    return rows


def measure_side_effects(
    running: Running, sets: Sequence[MemorySet], prefixes: Sequence[Encoded], numbers: Sequence[int], base: Tensor
) -> list[dict]:
    """Patches each set on prefixes of other text; returns rows of the table `SIDE_EFFECTS`, without the behaviour.

    Args:
        prefixes: prefixes of similar length, with the token that follows as their answer.
        numbers: numbers of the prefixes [prefix].
        base: what the coefficient of each memory becomes, see `read_base` [prefix, token, memory].
    """
    rows, read_as = list[dict](), running.loaded.anatomy.read_as
    for few, bases, ends in _patched(running, _inside(sets, base.shape[-1]), prefixes, base):
        predictions = predict(running.head, torch.stack([each.end for each in bases]), read_as)
        tokens = [torch.tensor([prefixes[n].answer], device=predictions[0].p.device) for n in few]
        measured = measure_effects(running.head, [*ends], predictions, tokens, read_as)
        for n, effects in zip(few, measured, strict=True):
            found = zip(sets, effects.divergence.tolist(), (-effects.log_p[:, 0]).tolist(), strict=True)
            rows += [
                {"prefix": numbers[n]} | _named(each) | {"divergence": divergence, "loss": loss}
                for each, divergence, loss in found
            ]
    return rows


def _named(each: MemorySet) -> dict:
    """Returns the columns that name a set."""
    return {"choice": each.choice, "draw": each.draw, "size": each.size, "memories": len(each.memories)}
