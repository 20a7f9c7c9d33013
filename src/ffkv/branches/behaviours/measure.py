"""Measures candidates and sets of one behaviour on prompts, and sets on other text, a block at a time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.batching import batches
from ffkv.base.files.columns import Table
from ffkv.base.process.progress import progress
from ffkv.base.settings import Behaviour
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.effects import Candidate, draw_controls, measure_candidates
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.sets import choose_sets, measure_sets, measure_side_effects
from ffkv.branches.behaviours.states import read_base
from ffkv.branches.behaviours.states_file import BLOCK
from ffkv.branches.behaviours.tables import EFFECTS, SETS, SIDE_EFFECTS
from ffkv.model.effects.running import Running
from ffkv.model.value_vectors import values_in_place

HELD = 2**26  # coefficients that are held at a time, if they are patched at all tokens


class Texts(NamedTuple):
    """On what a behaviour is measured."""

    prompts: Sequence[Encoded]
    numbers: Sequence[int]  # of the prompts [prompt]
    prefixes: Sequence[Encoded]  # other text, with the token that follows as answer [prefix]
    prefix_numbers: Sequence[int]
    mean: np.ndarray  # mean coefficients over the train split [memory]


def measure(
    running: Running, memories: pd.DataFrame, texts: Texts, settings: Behaviour, seed: int, name: str
) -> dict[Table, list[dict]]:
    """Returns the rows of `EFFECTS`, `SETS` and `SIDE_EFFECTS`, without the behaviour.

    Args:
        memories: the table `MEMORIES`.
        name: of the behaviour, for the progress.
    """
    made: dict[Table, list[dict]] = {EFFECTS: [], SETS: [], SIDE_EFFECTS: []}
    screen, sizes = (memories[column].to_numpy(np.float64) for column in ("screen", "size"))
    generator = random_stream(seed, Purpose.RANDOM_SETS)
    sets = choose_sets(screen, sizes, settings.sets, settings.random_sets, generator)
    candidates = _candidates(running, memories, settings, seed)
    with progress(len(texts.prompts) + len(texts.prefixes), "prompts", name) as bar:
        for own, numbers in _side_by_side(running, texts.prompts, texts.numbers):
            base = read_base(running.loaded, own, texts.mean, settings.baseline, running.batch_tokens)
            made[EFFECTS] += measure_candidates(running, candidates, own, numbers, base)
            made[SETS] += measure_sets(running, sets, own, numbers, base)
            bar.update(len(own))
        for own, numbers in _side_by_side(running, texts.prefixes, texts.prefix_numbers):
            base = read_base(running.loaded, own, texts.mean, settings.baseline, running.batch_tokens)
            made[SIDE_EFFECTS] += measure_side_effects(running, sets, own, numbers, base)
            bar.update(len(own))
    for rows, column in zip(made.values(), ("prompt", "prompt", "prefix"), strict=True):
        rows.sort(key=lambda row: row[column])
    return made


def _side_by_side(
    running: Running, prompts: Sequence[Encoded], numbers: Sequence[int]
) -> Iterator[tuple[list[Encoded], list[int]]]:
    """Yields prompts of similar length of one block, and their numbers. Coefficients at all their tokens can be held."""
    room = running.batch_tokens
    if not running.keeps:
        room = min(room, HELD // running.loaded.anatomy.layer_offset[-1])
    for start in range(0, len(prompts), BLOCK):
        lengths = np.array([len(each.clean) for each in prompts[start : start + BLOCK]])
        for group in batches(lengths, room):
            places = (start + group).tolist()
            yield [prompts[n] for n in places], [numbers[n] for n in places]


def _candidates(running: Running, memories: pd.DataFrame, settings: Behaviour, seed: int) -> dict[int, list[Candidate]]:
    """Returns the candidates of each layer, with their controls."""
    found, anatomy = {}, running.loaded.anatomy
    for layer, own in memories[memories["by_contrast"] | memories["by_screen"]].groupby("layer"):
        values, _ = values_in_place(running.loaded.model, anatomy.layers[layer])
        norms = values.double().norm(dim=1).cpu().numpy()
        found[layer] = draw_controls(layer, own["memory"].tolist(), norms, anatomy.width, settings, seed)
    return found
