"""Measures candidates and sets of one behaviour on prompts, and sets on other text, a block at a time.

The effect of patching a candidate on the logit difference is exact. It is told beside changes of equal length.
Sets of memories are patched together in all layers, beside random sets of equal summed length.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.base.batching import batches
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.columns import Table
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours import stored
from ffkv.branches.behaviours.encode import SAMPLED, draw_prefixes
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.states import AtTokens, read_base, run_states
from ffkv.branches.behaviours.stored import BLOCK, Encoded
from ffkv.branches.behaviours.tables import EFFECTS, SETS, SIDE_EFFECTS
from ffkv.branches.behaviours.words import ALL, BY_SCREEN, DIRECTIONS, ESTIMATE, MEMORIES, OWN, RANDOM
from ffkv.branches.given import Given
from ffkv.model.anatomy import Layer
from ffkv.model.effects.changes import as_long_as_removed, measure_effects, predict
from ffkv.model.effects.rerun import TOLERANCE, Running, Unchanged, changed_ends, patched_ends, run_unchanged
from ffkv.model.keys_and_values import values_in_place

HELD = 2**26  # coefficients that are held at a time, if they are patched at all tokens


class Candidate(NamedTuple):
    """A memory whose exact effect is measured, and its controls."""

    memory: int  # its number in the layer
    controls: np.ndarray  # random memories of the layer [control]
    directions: Tensor  # random directions [direction, d]


def measure_behaviour(given: Given, settings: Behaviour, seed: int = 0) -> tuple[pd.DataFrame, ...]:
    """Patches candidates, and sets of memories, on prompts of the second half, beside controls of equal length.

    The model computes in float32. Nothing is measured of two lists, nor of a behaviour that the model does not have: its accuracy
    is below `minimum_accuracy`. Returns the tables `EFFECTS`, `SETS` and `SIDE_EFFECTS`.

    Raises:
        UserError: the model cannot be changed while it runs.
    """
    frame = stored.used(given.table("encode", given.identity))
    chosen, mean = given.table("memories", given.identity), given.triggers.mean
    made: dict[Table, list[dict]] = {EFFECTS: [], SETS: [], SIDE_EFFECTS: []}
    if stored.accuracy_of(given.table("answers", given.identity)) >= settings.minimum_accuracy:  # NaN of two lists
        frame = stored.first(frame, ESTIMATE, settings.effect_prompts).reset_index(drop=True)
        own = frame.iloc[stored.rows_of_shard(len(frame), given.work.part)]
        generator, whole = random_stream(seed, Purpose.SIDE_EFFECT_PREFIXES), settings.positions == "all"
        sampled = [given.sampled(name) for name in SAMPLED]
        drawn = draw_prefixes(sampled, given.validation, whole, settings.side_effect_prefixes, generator)
        others = [drawn[n][1] for n in stored.rows_of_shard(len(drawn), given.work.part)]
        with given.running(whole) as its:
            made = measure(its, chosen, stored.encoded(own), others, mean, settings, seed, given.name)
    return tuple(
        tables.frame(table, pd.DataFrame(rows).assign(behaviour=given.name), given.train_identity)
        for table, rows in made.items()
    )


def measure(
    running: Running,
    memories: pd.DataFrame,
    prompts: Sequence[Encoded],
    prefixes: Sequence[Encoded],
    mean: np.ndarray,
    settings: Behaviour,
    seed: int,
    name: str,
) -> dict[Table, list[dict]]:
    """Returns the rows of `EFFECTS`, `SETS` and `SIDE_EFFECTS`, without the behaviour.

    Args:
        memories: the table `MEMORIES`.
        prefixes: other text, with the token that follows as answer.
        mean: mean coefficients over the train split [memory].
        name: of the behaviour, for the progress.
    """
    made: dict[Table, list[dict]] = {EFFECTS: [], SETS: [], SIDE_EFFECTS: []}
    screen, sizes = (memories[column].to_numpy(np.float64) for column in ("screen", "size"))
    generator = random_stream(seed, Purpose.RANDOM_SETS)
    sets = choose_sets(screen, sizes, settings.sets, settings.random_sets, generator)
    candidates = _candidates(running, memories, settings, seed)
    with progress(len(prompts) + len(prefixes), "prompts", name) as bar:
        for texts in (prompts, prefixes):
            for own in _side_by_side(running, texts):
                base = read_base(running.loaded, own, mean, settings.baseline, running.batch_tokens)
                if texts is prompts:
                    made[EFFECTS] += measure_candidates(running, candidates, own, base)
                    made[SETS] += measure_sets(running, sets, own, base)
                else:
                    made[SIDE_EFFECTS] += measure_side_effects(running, sets, own, base)
                bar.update(len(own))
    for rows, column in zip(made.values(), ("prompt", "prompt", "prefix"), strict=True):
        rows.sort(key=lambda row: row[column])
    return made


def _side_by_side(running: Running, prompts: Sequence[Encoded]) -> Iterator[list[Encoded]]:
    """Yields prompts of similar length of one block. Coefficients at all their tokens can be held."""
    room = running.batch_tokens
    if not running.keeps:
        room = min(room, HELD // running.loaded.anatomy.layer_offset[-1])
    for start in range(0, len(prompts), BLOCK):
        lengths = np.array([len(each.clean) for each in prompts[start : start + BLOCK]])
        for group in batches(lengths, room):
            yield [prompts[n] for n in (start + group).tolist()]


def _candidates(running: Running, memories: pd.DataFrame, settings: Behaviour, seed: int) -> dict[int, list[Candidate]]:
    found, anatomy = {}, running.loaded.anatomy
    for layer, own in memories[memories["by_contrast"] | memories["by_screen"]].groupby("layer"):
        values, _ = values_in_place(running.loaded.model, anatomy.layers[layer])
        norms = values.double().norm(dim=1).cpu().numpy()
        found[layer] = draw_controls(layer, own["memory"].tolist(), norms, anatomy.width, settings, seed)
    return found


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
    running: Running, candidates: Mapping[int, Sequence[Candidate]], prompts: Sequence[Encoded], base: Tensor
) -> list[dict]:
    """Patches each candidate on prompts that run side by side; returns rows of the table `EFFECTS`, without the behaviour.

    Args:
        candidates: by layer.
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
    pairs, read_as = torch.tensor([(each.answer, each.wrong) for each in prompts]), loaded.anatomy.read_as
    clean = running.head.differences(torch.stack([each.end for each in found[0]]), pairs, read_as)[:, None]
    less: list[tuple[int, str, Tensor]] = []  # layer, reach, by how much the logit difference falls [prompt, change]
    for layer, bases in zip(layers, found, strict=True):
        own, values = candidates[layer.index], values_in_place(loaded.model, layer)[0]
        memories, m = torch.tensor([each.memory for each in own]), states.m[layer.index]
        falls = m[..., memories.to(m.device)] - base[..., offset[layer.index] + memories].to(m.device)
        falls = (states.s[layer.index].to(m.device) * falls).to(values.device)  # [prompt, token, candidate]
        changes = torch.cat([_changes(values, each) for each in own])
        copies = torch.tensor([1 + len(each.controls) + len(each.directions) for each in own], device=values.device)
        along = [of_prompt[-n:].T.repeat_interleave(copies, 0) for of_prompt, n in zip(falls, tokens, strict=True)]
        ends = changed_ends(loaded, layer, running.reruns[layer.index], bases, [changes] * len(bases), along=along)
        for reach, of_prompts in ends.items():
            both = pairs.repeat_interleave(len(changes), 0)
            after = running.head.differences(torch.cat([*of_prompts]), both, read_as)
            less.append((layer.index, reach, clean - after.reshape(len(prompts), -1)))
    flat = torch.cat([each.flatten() for *_, each in less]).cpu()  # one copy
    for (number, reach, own_less), part in zip(less, flat.split([each.numel() for *_, each in less]), strict=True):
        for prompt, falls in zip(prompts, part.reshape(own_less.shape).tolist(), strict=True):
            rows += _rows(prompt.number, number, candidates[number], reach, falls)
    return rows


def _changes(values: Tensor, candidate: Candidate) -> Tensor:
    """Returns by what o changes if s m of a memory falls by 1, and its controls [1 + control + direction, d]."""
    value, size = values[candidate.memory], float(values[candidate.memory].norm())
    controls = values[torch.from_numpy(candidate.controls).to(values.device)]
    others = torch.cat([controls, candidate.directions.to(values.device)])
    return torch.cat([-value[None], as_long_as_removed(1.0, size, others)])


def _rows(prompt: int, layer: int, candidates: Sequence[Candidate], reach: str, falls: list[float]) -> list[dict]:
    rows, place = [], 0
    for each in candidates:
        names = {"prompt": prompt, "layer": layer, "memory": each.memory, "reach": reach}
        for source, count in ((OWN, 1), (MEMORIES, len(each.controls)), (DIRECTIONS, len(each.directions))):
            own = falls[place : place + count]
            rows += [names | {"source": source, "control": n, "effect": fall} for n, fall in enumerate(own)]
            place += count
    return rows


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

    A random set has other memories in random order, up to that with which their summed length is nearest to that of the set. Where all
    others together are shorter, it has all of them.

    Args:
        screen: mean screen of each memory [memory].
        sizes: mean length of the change by which each memory is patched [memory].
        counts: the numbers n. A number of more memories than there are gives all of them.
        draws: random sets per set.
    """
    ranked, sets = np.argsort(-screen, kind="stable"), []
    moved = np.flatnonzero(sizes)  # memories whose patch changes something
    for count in counts:
        own = ranked[:count]
        sets.append(MemorySet(BY_SCREEN, 0, count, np.sort(own)))
        for draw in range(draws):
            order = generator.permutation(np.setdiff1d(moved, own))
            summed = np.concatenate([[0], np.cumsum(sizes[order])])
            nearest = int(np.abs(summed - sizes[own].sum()).argmin())
            sets.append(MemorySet(RANDOM, draw, count, np.sort(order[:nearest])))
    return [*sets, MemorySet(ALL, 0, len(screen), np.arange(len(screen)))]


def _inside(sets: Sequence[MemorySet], memories: int) -> Tensor:
    """Tells which memories are in each set [set, memory]."""
    return torch.from_numpy(np.stack([np.isin(np.arange(memories), each.memories) for each in sets]))


def _patched(
    running: Running, patched: Tensor, prompts: Sequence[Encoded], base: Tensor
) -> Iterator[tuple[list[int], list[Unchanged], Tensor]]:
    """Yields some prompts, what the unchanged model does on them, and what the head reads in each copy [prompt, copy, d].

    A last copy, of which nothing is patched, proves each pass: it gives the unchanged model's own end. Where it does not behind
    keys and values that are kept, each copy reads its whole prompt. A pass has up to `running.batch_tokens` tokens.

    `patched`: which memories are patched [copy, memory]. `base`: as in `measure_candidates`. Raises UserError if the model cannot be
    changed while it runs.
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers = loaded.anatomy.layers
    values = [values_in_place(loaded.model, layer)[0] for layer in layers]

    def ends_of(bases: Sequence[Unchanged], few: list[int], patched: Tensor, keep: bool) -> Tensor | None:
        """Returns the ends; None if nothing that is patched changes something."""
        copies, tokens = len(patched) + 1, prompts[few[0]].tokens
        patched = torch.cat([patched, torch.zeros_like(patched[:1])])[:, None].to(loaded.device)
        own = base[few, None, -tokens:].to(loaded.device)  # [prompt, 1, token, memory]

        def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
            place = slice(offset[layer.index], offset[layer.index + 1])
            its = m.reshape(len(few), copies, tokens, -1)
            change = (own[..., place].to(m) - its) * patched[..., place].to(m.device)
            return (factor * change.reshape(m.shape)) @ values[layer.index]

        try:
            ends = patched_ends(loaded, layers, bases, copies, edit, keep, tokens)
        except UserError:
            raise
        except Exception:  # the model's own code refuses such arguments, in a way of its own
            return None
        expected = torch.stack([each.end for each in bases])
        errors = (ends[:, -1] - expected).abs().amax(1) / expected.abs().amax(1)
        return ends[:, :-1] if bool((errors < TOLERANCE).all()) else None

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


def measure_sets(running: Running, sets: Sequence[MemorySet], prompts: Sequence[Encoded], base: Tensor) -> list[dict]:
    """Patches each set, and all memories but it, on prompts of similar length; returns rows of the table `SETS`, without the behaviour.

    `base`: as in `measure_candidates`.
    """
    inside, rows = _inside(sets, base.shape[-1]), list[dict]()
    patched = torch.cat([inside, ~inside])  # in each copy: the set, then all but it [copy, memory]
    for few, _, ends in _patched(running, patched, prompts, base):
        pairs = torch.tensor([(prompts[n].answer, prompts[n].wrong) for n in few]).repeat_interleave(len(patched), 0)
        differences = running.head.differences(ends.flatten(0, 1), pairs, running.loaded.anatomy.read_as)
        for n, found in zip(few, differences.reshape(ends.shape[:2]).tolist(), strict=True):
            rows += [
                {"prompt": prompts[n].number}
                | _named(each)
                | {"patched": found[place], "kept": found[place + len(sets)]}
                for place, each in enumerate(sets)
            ]
    return rows


def measure_side_effects(
    running: Running, sets: Sequence[MemorySet], prefixes: Sequence[Encoded], base: Tensor
) -> list[dict]:
    """Patches each set on prefixes of other text, of similar length; returns rows of the table `SIDE_EFFECTS`, without the behaviour.

    The answer of a prefix is the token that follows. `base`: as in `measure_candidates`.
    """
    rows, read_as = list[dict](), running.loaded.anatomy.read_as
    for few, bases, ends in _patched(running, _inside(sets, base.shape[-1]), prefixes, base):
        predictions = predict(running.head, torch.stack([each.end for each in bases]), read_as)
        tokens = [torch.tensor([prefixes[n].answer]) for n in few]
        measured = measure_effects(running.head, [*ends], predictions, tokens, read_as)
        for n, effects in zip(few, measured, strict=True):
            found = zip(sets, effects.divergence.tolist(), (-effects.log_p[:, 0]).tolist(), strict=True)
            rows += [
                {"prefix": prefixes[n].number} | _named(each) | {"divergence": divergence, "loss": loss}
                for each, divergence, loss in found
            ]
    return rows


def _named(each: MemorySet) -> dict:
    return {"choice": each.choice, "draw": each.draw, "size": each.size, "memories": len(each.memories)}
