"""The exact effect of patching single memories on the logit difference, beside changes of equal length."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.settings import Behaviour
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.states import AtTokens, run_states
from ffkv.branches.behaviours.words import DIRECTIONS, MEMORIES, OWN
from ffkv.model.effects.changes import as_long_as_removed
from ffkv.model.effects.reach import changed_ends
from ffkv.model.effects.rerun import run_unchanged
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
    base: Tensor,
) -> list[dict]:
    """Patches each candidate on prompts that run side by side; returns rows of the table `EFFECTS`, without the behaviour.

    Args:
        candidates: by layer.
        numbers: numbers of the prompts [prompt].
        base: what the coefficient of each memory becomes, see `read_base` [prompt, token, memory].
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers = [loaded.anatomy.layers[number] for number in sorted(candidates)]
    if not layers:
        return []
    ids, tokens = [each.clean for each in prompts], [each.tokens for each in prompts]
    states, rows = AtTokens(loaded, ids, tokens), list[dict]()
    run_states(loaded, states)
    found = run_unchanged(loaded, layers, ids, running.keeps)
    pairs = [torch.tensor([[each.answer, each.wrong]]) for each in prompts]
    clean = [
        running.head.differences(base.end[None], pair, loaded.anatomy.read_as)
        for base, pair in zip(found[0], pairs, strict=True)
    ]
    for layer, bases in zip(layers, found, strict=True):
        own, values = candidates[layer.index], values_in_place(loaded.model, layer)[0]
        memories = torch.tensor([each.memory for each in own])
        falls = states.m[layer.index][..., memories] - base[..., offset[layer.index] + memories]
        falls = (states.s[layer.index] * falls).to(values.device)  # [prompt, token, candidate]
        changes = torch.cat([_changes(values, each) for each in own])
        copies = torch.tensor([1 + len(each.controls) + len(each.directions) for each in own], device=values.device)
        along = [of_prompt[-n:].T.repeat_interleave(copies, 0) for of_prompt, n in zip(falls, tokens, strict=True)]
        ends = changed_ends(loaded, layer, running.reruns[layer.index], bases, [changes] * len(bases), along=along)
        for reach, of_prompts in ends.items():
            for place, end in enumerate(of_prompts):
                pair = pairs[place].expand(len(end), 2)
                less = clean[place] - running.head.differences(end, pair, loaded.anatomy.read_as)
                rows += _rows(numbers[place], layer.index, own, reach, less.tolist())
    return rows


def _changes(values: Tensor, candidate: Candidate) -> Tensor:
    """Returns by what o changes if s m of a memory falls by 1, and its controls [1 + control + direction, d]."""
    value, size = values[candidate.memory], float(values[candidate.memory].norm())
    controls = values[torch.from_numpy(candidate.controls).to(values.device)]
    return torch.cat(
        [
            -value[None],
            as_long_as_removed(1.0, size, controls),
            as_long_as_removed(1.0, size, candidate.directions.to(values.device)),
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
