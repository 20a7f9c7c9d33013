"""Sets of memories, patched together in all layers at the last token, beside random sets of equal summed length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches
from ffkv.branches.behaviours.effects import Running
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.stability import largest
from ffkv.branches.behaviours.words import ALL, BY_SCREEN, RANDOM
from ffkv.model.anatomy import Layer
from ffkv.model.effects.patched import patched_ends
from ffkv.model.effects.rerun import run_unchanged
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


def measure_sets(
    running: Running, sets: Sequence[MemorySet], prompts: Sequence[Encoded], numbers: Sequence[int], base: np.ndarray
) -> list[dict]:
    """Patches each set, and all memories but it, on each prompt; returns rows of the table `SETS`, without the behaviour.

    Args:
        numbers: numbers of the prompts [prompt].
        base: what the coefficient of each memory becomes [prompt, memory].
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers = loaded.anatomy.layers
    values = [values_in_place(loaded.model, layer)[0] for layer in layers]
    inside = torch.zeros(len(sets), offset[-1], dtype=torch.bool)
    for row, each in zip(inside, sets, strict=True):
        row[torch.from_numpy(each.memories)] = True
    patched = torch.cat([inside, ~inside])  # in each copy: the set, then all but it [copy, memory]
    copies, rows = len(patched), list[dict]()
    room = max(1, running.batch_tokens // copies) if running.keeps else 1
    lengths = np.array([len(each.clean) for each in prompts])
    for group in batches(lengths, running.batch_tokens):
        for few in np.split(group, range(room, len(group), room)):
            (bases,) = run_unchanged(loaded, layers[-1:], [prompts[n].clean for n in few], running.keeps)
            to = torch.from_numpy(base[few])

            def edit(layer: Layer, m: Tensor, factor: Tensor, to: Tensor = to) -> Tensor:
                place = slice(offset[layer.index], offset[layer.index + 1])
                wanted = to[:, place].repeat_interleave(copies, 0).to(m)
                change = (wanted - m) * patched[:, place].to(m.device).repeat(len(to), 1)
                return (factor * change) @ values[layer.index]

            ends = patched_ends(loaded, layers, bases, copies, edit, running.keeps)
            for n, of_prompt in zip(few, ends, strict=True):
                pairs = torch.tensor([[prompts[n].answer, prompts[n].wrong]]).expand(copies, 2)
                found = running.head.differences(of_prompt, pairs, loaded.anatomy.read_as).tolist()
                for place, each in enumerate(sets):
                    own = {"choice": each.choice, "draw": each.draw, "size": each.size, "memories": len(each.memories)}
                    own |= {"patched": found[place], "kept": found[place + len(sets)]}
                    rows.append({"prompt": numbers[n]} | own)
    order = {number: place for place, number in enumerate(numbers)}
    return sorted(rows, key=lambda row: order[row["prompt"]])
