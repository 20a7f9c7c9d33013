"""The exact effect of patching single memories on the logit difference, beside changes of equal length."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches
from ffkv.base.settings import Behaviour
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.words import DIRECTIONS, MEMORIES, OWN
from ffkv.model.effects.changes import as_long_as_removed
from ffkv.model.effects.reach import changed_ends
from ffkv.model.effects.rerun import Unchanged, run_unchanged
from ffkv.model.effects.running import Running
from ffkv.model.value_vectors import values_in_place


class Candidate(NamedTuple):
    """A memory whose exact effect is measured, and its controls."""

    memory: int  # its number in the layer
    controls: np.ndarray  # random memories of the layer [control]
    directions: Tensor  # random directions [direction, d]


def draw_controls(
    layer: int, memories: Sequence[int], norms: np.ndarray, width: int, settings: Behaviour, seed: int
) -> list[Candidate]:
    """Draws the controls of candidates of a layer. They depend on no other candidate. `norms`: lengths of values [memory]."""
    candidates = []
    for memory in memories:
        others = np.flatnonzero((norms > 0) & (np.arange(len(norms)) != memory))
        generator = random_stream(seed, Purpose.BEHAVIOUR_CONTROLS, layer, memory)
        controls = generator.choice(others, min(settings.controls, len(others)), replace=False)
        generator = random_stream(seed, Purpose.BEHAVIOUR_DIRECTIONS, layer, memory)
        directions = torch.from_numpy(generator.standard_normal((settings.directions, width)).astype(np.float32))
        candidates.append(Candidate(memory, controls, directions))
    return candidates


def measure_candidates(
    running: Running,
    candidates: Mapping[int, Sequence[Candidate]],
    prompts: Sequence[Encoded],
    numbers: Sequence[int],
    base: np.ndarray,
) -> list[dict]:
    """Patches each candidate on each prompt; returns rows of the table `EFFECTS`, without the behaviour.

    Args:
        candidates: by layer.
        numbers: numbers of the prompts [prompt].
        base: what the coefficient of each memory becomes [prompt, memory].
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers = [loaded.anatomy.layers[number] for number in sorted(candidates)]
    values = {layer.index: values_in_place(loaded.model, layer)[0] for layer in layers}
    rows: list[dict] = []
    lengths = np.array([len(each.clean) for each in prompts])
    for group in batches(lengths, running.batch_tokens) if layers else ():
        found = run_unchanged(loaded, layers, [prompts[n].clean for n in group], running.keeps)
        pairs = [torch.tensor([[prompts[n].answer, prompts[n].wrong]]) for n in group.tolist()]
        clean = [
            running.head.differences(base.end[None], pair, loaded.anatomy.read_as)
            for base, pair in zip(found[0], pairs, strict=True)
        ]
        for layer, bases in zip(layers, found, strict=True):
            own = candidates[layer.index]
            to = base[group, offset[layer.index] : offset[layer.index + 1]]
            changes = [
                torch.cat([_changes(values[layer.index], each, unchanged, to[place]) for each in own])
                for place, unchanged in enumerate(bases)
            ]
            ends = changed_ends(loaded, layer, running.reruns[layer.index], bases, changes)
            for reach, of_prompts in ends.items():
                for place, end in enumerate(of_prompts):
                    pair = pairs[place].expand(len(end), 2)
                    falls = clean[place] - running.head.differences(end, pair, loaded.anatomy.read_as)
                    rows += _rows(numbers[group[place]], layer.index, own, reach, falls.tolist())
    order = {number: place for place, number in enumerate(numbers)}
    return sorted(rows, key=lambda row: (order[row["prompt"]], row["layer"]))


def _changes(values: Tensor, candidate: Candidate, unchanged: Unchanged, base: np.ndarray) -> Tensor:
    """Returns by how much o changes: by the patch of the memory, and by its controls [1 + control + direction, d]."""
    m, value = (
        unchanged.factor * float(unchanged.m[candidate.memory] - base[candidate.memory]),
        values[candidate.memory],
    )
    size = abs(m) * float(value.norm())
    controls = values[torch.from_numpy(candidate.controls).to(values.device)]
    return torch.cat(
        [
            (-m * value)[None],
            as_long_as_removed(m, size, controls),
            as_long_as_removed(m, size, candidate.directions.to(values.device)),
        ]
    )


def _rows(prompt: int, layer: int, candidates: Sequence[Candidate], reach: str, falls: list[float]) -> list[dict]:
    rows, place = [], 0
    for each in candidates:
        names = {"prompt": prompt, "layer": layer, "memory": each.memory, "reach": reach}
        for source, count in ((OWN, 1), (MEMORIES, len(each.controls)), (DIRECTIONS, len(each.directions))):
            own = falls[place : place + count]
            rows += [names | {"source": source, "control": n, "effect": fall} for n, fall in enumerate(own)]
            place += count
    return rows
