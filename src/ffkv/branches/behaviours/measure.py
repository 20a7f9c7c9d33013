"""Measures candidates and sets of one behaviour on prompts, and sets on other text, a block at a time.

The effect of patching a candidate on the logit difference is exact. It is told beside changes of equal length.
Sets of memories are patched together in all layers, beside random sets of equal summed length.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from ffkv.base.files import tables
from ffkv.base.files.columns import Table
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours import stored, words
from ffkv.branches.behaviours.choosing import Asked, Subjects
from ffkv.branches.behaviours.encode import SAMPLED, draw_prefixes
from ffkv.branches.behaviours.missed import draw_outside
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.states import side_by_side
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.subjects import Copy, Subject, patch, read_prompts
from ffkv.branches.behaviours.tables import EFFECTS, MEASURED, PARTS, SETS, SIDE_EFFECTS, WRITERS
from ffkv.branches.behaviours.writers import find_norms, measure_writers
from ffkv.branches.given import Given
from ffkv.model.effects.changes import measure_effects, other_memories, predict
from ffkv.model.effects.rerun import Running, changed_ends, run_unchanged
from ffkv.model.keys_and_values import values_in_place

HELD = 2**26  # coefficients that are held at a time, if they are patched at all tokens


class Candidate(NamedTuple):
    """A memory whose exact effect is measured, and its controls."""

    memory: int  # its number in the layer
    controls: np.ndarray  # random memories of the layer [control]
    directions: Tensor  # random directions [direction, d]


class MemorySet(NamedTuple):
    """A set of memories."""

    choice: str  # one of `CHOICES`, or SHUFFLED
    draw: int  # number of the random set, from 0
    size: int  # n memories or experts; of a random set that of the set that it is compared with
    memories: np.ndarray  # their flat numbers, ascending
    share: float = np.nan  # of all memories, of a part


def measure_behaviour(given: Given, settings: Behaviour, seed: int = 0) -> tuple[pd.DataFrame, ...]:
    """Patches candidates, and sets of memories, on prompts of the second half, beside controls of equal length.

    The model computes in float32. Nothing is measured of two lists, nor of a behaviour that the model does not have: its accuracy
    is below `minimum_accuracy`. Returns the tables `MEASURED`.

    Raises:
        UserError: the model cannot be changed while it runs.
    """
    frame = stored.used(given.table("encode", given.identity))
    chosen, mean = given.table("memories", given.identity), given.triggers.mean
    made: dict[Table, list[dict]] = {each: [] for each in MEASURED}
    if stored.accuracy_of(given.table("answers", given.identity)) >= settings.minimum_accuracy:  # NaN of two lists
        frame = stored.first(frame, words.ESTIMATE, settings.effect_prompts).reset_index(drop=True)
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
    """Returns the rows of the tables `MEASURED`, without the behaviour.

    Args:
        memories: the table `MEMORIES`.
        prompts: their rows, see `Encoded`.
        prefixes: other text, with the token that follows as answer.
        mean: mean coefficients over the train split [memory].
        name: of the behaviour, for the progress.
    """
    made: dict[Table, list[dict]] = {each: [] for each in MEASURED}
    screen, sizes = (memories[column].to_numpy(np.float64) for column in ("screen", "size"))
    generator = random_stream(seed, Purpose.RANDOM_SETS)
    sets = choose_sets(screen, sizes, settings.sets, settings.random_sets, generator)
    experts, generator = running.loaded.anatomy.experts, random_stream(seed, Purpose.RANDOM_SETS, 1)
    sets += choose_experts(experts, screen, sizes, settings.sets, settings.random_sets, generator)
    parts = choose_parts(screen, sizes, random_stream(seed, Purpose.SHUFFLED_MEMORIES))
    candidates, anatomy = dict[int, list[Candidate]](), running.loaded.anatomy
    for layer, own in memories[memories["by_contrast"] | memories["by_screen"]].groupby("layer")["memory"]:
        values, _ = values_in_place(running.loaded.model, anatomy.layers[layer])
        how = values.double().norm(dim=1).cpu().numpy(), anatomy.width, settings, seed
        candidates[layer] = [draw_controls(layer, memory, *how) for memory in own.tolist()]
    drawn = memories.iloc[draw_outside(memories, settings.missed, random_stream(seed, Purpose.MISSED))]
    alone = np.zeros(0, int), torch.zeros(0, anatomy.width)  # without controls
    outside = {layer: [Candidate(n, *alone) for n in own] for layer, own in drawn.groupby("layer")["memory"]}
    norms = find_norms(running.loaded, prompts) if settings.baseline == "patch" else []
    room = running.batch_tokens if running.keeps else min(running.batch_tokens, HELD // len(screen))
    with progress(len(prompts) + len(prefixes), "prompts", name) as bar:
        for texts in (prompts, prefixes):
            for own in side_by_side(texts, room):
                half = Subjects(read_prompts(running, [texts[n] for n in own], mean, settings.baseline), own)
                if texts is prompts:
                    made[EFFECTS] += measure_candidates(running, candidates, half.subjects)
                    of_outside = measure_candidates(running, outside, half.subjects)
                    made[EFFECTS] += [row | {"source": words.OUTSIDE} for row in of_outside if row["reach"] == "total"]
                    made[SETS] += measure_sets(sets, half)
                    made[PARTS] += _rows(parts, half, kept=half.differences([part.memories for part in parts]))
                else:
                    made[SIDE_EFFECTS] += measure_side_effects(sets, half)
                bar.update(len(own))
    made[WRITERS] = measure_writers(running, norms, prompts)
    for table, rows in made.items():
        rows.sort(key=lambda row: row["prefix" if table is SIDE_EFFECTS else "prompt"])
    if any(each.after for each in prompts):
        made |= {table: _summed(table, rows) for table, rows in made.items() if rows and table is not SIDE_EFFECTS}
    return made


def _summed(table: Table, rows: list[dict]) -> list[dict]:
    """Returns rows of a table, with the sum of what was measured on the rows of each prompt, see `Encoded`."""
    frame = pd.DataFrame(rows)
    measured = [name for name in ("effect", "patched", "kept") if name in frame]
    keys = [name for name in table.names if name in frame and name not in measured]
    return frame.groupby(keys, sort=False, dropna=False)[measured].sum().reset_index().to_dict("records")


def draw_controls(layer: int, memory: int, norms: np.ndarray, width: int, settings: Behaviour, seed: int) -> Candidate:
    """Draws the controls of a candidate of a layer. They depend on no other candidate. `norms`: lengths of values [memory]."""
    generator = random_stream(seed, Purpose.BEHAVIOUR_CONTROLS, layer, memory)
    controls = other_memories(memory, norms, settings.controls, generator)
    generator = random_stream(seed, Purpose.BEHAVIOUR_DIRECTIONS, layer, memory)
    directions = torch.from_numpy(generator.standard_normal((settings.directions, width)).astype(np.float32))
    return Candidate(memory, controls, directions)


def measure_candidates(
    running: Running, candidates: Mapping[int, Sequence[Candidate]], subjects: Sequence[Subject]
) -> list[dict]:
    """Patches each candidate on prompts that run side by side; returns rows of the table `EFFECTS`, without the behaviour.

    `candidates`: by layer.
    """
    loaded, offset = running.loaded, running.loaded.anatomy.layer_offset
    layers = [loaded.anatomy.layers[number] for number in sorted(candidates)]
    if not layers:
        return []
    rows, prompts = list[dict](), [subject.prompt for subject in subjects]
    found = run_unchanged(loaded, layers, [each.clean for each in prompts], running.keeps)
    pairs, read_as = torch.tensor([(each.answer, each.wrong) for each in prompts]), loaded.anatomy.read_as
    clean = torch.tensor([subject.difference for subject in subjects])[:, None]
    for layer, bases in zip(layers, found, strict=True):
        own, values = candidates[layer.index], values_in_place(loaded.model, layer)[0]
        places = offset[layer.index] + np.array([each.memory for each in own])
        by_one = []  # by what o changes if s m of a memory falls by 1, and its controls [1 + control + direction, d]
        for each in own:
            value, controls = values[each.memory], values[torch.from_numpy(each.controls).to(values.device)]
            others = torch.cat([controls, each.directions.to(values.device)])
            by_one += [-value[None], -float(value.norm()) * others / others.norm(dim=1, keepdim=True)]
        changes = torch.cat(by_one)
        counts = [(1, len(each.controls), len(each.directions)) for each in own]
        copies = torch.tensor(counts).sum(1)
        moves = (((each.m - each.base)[:, places].to(each.s.device), each.s[layer.index]) for each in subjects)
        removed = [s * move for move, s in moves]  # [token, candidate]
        each_token = (of_prompt.T.repeat_interleave(copies, 0).to(values.device) for of_prompt in removed)
        along = [pad(of_prompt, (0, prompts[0].after)) for of_prompt in each_token]  # nothing at tokens of an answer
        ends = changed_ends(loaded, layer, running.reruns[layer.index], bases, [changes] * len(bases), along=along)
        changed = [
            {"layer": layer.index, "memory": each.memory, "source": source, "control": n}
            for each, of_sources in zip(own, counts, strict=True)
            for source, count in zip(words.SOURCES, of_sources)
            for n in range(count)
        ]
        for reach, of_prompts in ends.items():
            both = pairs.repeat_interleave(len(changes), 0)
            after = running.head.differences(torch.cat([*of_prompts]), both, read_as).cpu().reshape(len(prompts), -1)
            for prompt, falls in zip(prompts, (clean - after).tolist(), strict=True):
                its = {"prompt": prompt.number, "reach": reach}
                rows += [its | each | {"effect": fall} for each, fall in zip(changed, falls, strict=True)]
    return rows


def choose_sets(
    screen: np.ndarray, sizes: np.ndarray, counts: Sequence[int], draws: int, generator: np.random.Generator
) -> list[MemorySet]:
    """Chooses the n memories with the largest screen, for each n, those with the largest size, and random sets of equal summed length.

    A random set has other memories in random order, up to that with which their summed length is nearest to that of the set. Where all
    others together are shorter, there is none: it would be no set of equal length.

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
        sets.append(MemorySet(words.BY_SCREEN, 0, count, np.sort(own)))
        sets.append(MemorySet(words.BY_SIZE, 0, count, np.sort(stored.largest(sizes, count))))
        others = np.setdiff1d(moved, own)
        for draw in range(draws if sizes[others].sum() >= sizes[own].sum() else 0):
            order = generator.permutation(others)
            summed = np.concatenate([[0], np.cumsum(sizes[order])])
            nearest = int(np.abs(summed - sizes[own].sum()).argmin())
            sets.append(MemorySet(words.RANDOM, draw, count, np.sort(order[:nearest])))
    return [*sets, MemorySet(words.ALL, 0, len(screen), np.arange(len(screen)))]


def choose_experts(
    experts: Sequence[np.ndarray],
    screen: np.ndarray,
    sizes: np.ndarray,
    counts: Sequence[int],
    draws: int,
    generator: np.random.Generator,
) -> list[MemorySet]:
    """Chooses sets of all memories of n whole experts, as `choose_sets` chooses memories, and random ones beside them.

    Screen and length of an expert are the sums of those of its memories. `experts`: the memories of each; without any there are no sets.
    For the other arguments see `choose_sets`.
    """
    if not experts:
        return []
    names = {words.BY_SCREEN: words.FIRST_EXPERTS, words.RANDOM: words.RANDOM_EXPERTS, words.ALL: words.ALL_EXPERTS}
    summed, lengths = (np.array([each[own].sum() for own in experts]) for each in (screen, sizes))
    return [
        each._replace(
            choice=names[each.choice],
            memories=np.concatenate([each.memories[:0], *map(experts.__getitem__, each.memories)]),
        )
        for each in choose_sets(summed, lengths, [count for count in counts if count < len(experts)], draws, generator)
        if each.choice in names
    ]


def choose_parts(screen: np.ndarray, sizes: np.ndarray, generator: np.random.Generator) -> list[MemorySet]:
    """Chooses the first memories by screen, by size, and in random order, of each of `words.SHARES` at least one.

    For the arguments see `choose_sets`.
    """
    n = len(screen)
    by = {
        words.BY_SCREEN: stored.largest(screen, n),
        words.BY_SIZE: stored.largest(sizes, n),
        words.SHUFFLED: generator.permutation(n),
    }
    counts = [int(np.ceil(share * n)) for share in words.SHARES]
    return [
        MemorySet(choice, 0, count, np.sort(order[:count]), share)
        for choice, order in by.items()
        for share, count in zip(words.SHARES, counts, strict=True)
    ]


def measure_sets(sets: Sequence[MemorySet], half: Subjects) -> list[dict]:
    """Patches each set, and all memories but it, on prompts; returns rows of the table `SETS`, without the behaviour."""
    members = [each.memories for each in sets]
    half.run([Asked(members, but=False), Asked(members)])
    return _rows(sets, half, patched=half.differences(members, but=False), kept=half.differences(members))


def measure_side_effects(sets: Sequence[MemorySet], half: Subjects) -> list[dict]:
    """Patches each set on prefixes of other text; returns rows of the table `SIDE_EFFECTS`, without the behaviour.

    The answer of a prefix is the token that follows.
    """
    subjects, head, read_as = half.subjects, half.subjects[0].head, half.subjects[0].loaded.anatomy.read_as
    copies = [[Copy(half.places(subject, each.memories)) for each in sets] for subject in subjects]
    ends = [own for *_, own in patch(subjects, copies, ends=True)]
    predictions = predict(head, torch.stack([subject.unchanged.end for subject in subjects]), read_as)
    tokens = [torch.tensor([subject.prompt.answer]) for subject in subjects]
    measured = measure_effects(head, ends, predictions, tokens, read_as)
    numbers = {"divergence": [of.divergence for of in measured], "loss": [-of.log_p[:, 0] for of in measured]}
    return _rows(sets, half, "prefix", **{name: torch.stack(own).numpy() for name, own in numbers.items()})


def _rows(sets: Sequence[MemorySet], half: Subjects, text: str = "prompt", **numbers: np.ndarray) -> list[dict]:
    """Returns a row per text and set. `text`: the column of its number. `numbers`: by column [text, set]."""
    return [
        {text: subject.prompt.number, **each._asdict(), "memories": len(each.memories), **dict(zip(numbers, its))}
        for subject, *of_text in zip(half.subjects, *numbers.values(), strict=True)
        for each, *its in zip(sets, *of_text, strict=True)
    ]
