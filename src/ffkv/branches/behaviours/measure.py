"""Measures candidates and sets of one behaviour on prompts, and sets on other text, a block at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

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


class Texts(NamedTuple):
    """On what a behaviour is measured."""

    prompts: Sequence[Encoded]
    numbers: Sequence[int]  # of the prompts [prompt]
    prefixes: Sequence[tuple[int, np.ndarray, int]]  # other text: number, tokens, the token that follows [prefix]
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
        for start in range(0, len(texts.prompts), BLOCK):
            prompts, numbers = texts.prompts[start : start + BLOCK], texts.numbers[start : start + BLOCK]
            base = read_base(running.loaded, prompts, texts.mean, settings.baseline, running.batch_tokens)
            made[EFFECTS] += measure_candidates(running, candidates, prompts, numbers, base)
            made[SETS] += measure_sets(running, sets, prompts, numbers, base)
            bar.update(len(prompts))
        mean = np.zeros_like(texts.mean) if settings.baseline == "zero" else texts.mean
        for start in range(0, len(texts.prefixes), BLOCK):
            places, ids, following = zip(*texts.prefixes[start : start + BLOCK], strict=True)
            made[SIDE_EFFECTS] += measure_side_effects(running, sets, ids, following, places, mean.astype(np.float32))
            bar.update(len(ids))
    return made


def _candidates(running: Running, memories: pd.DataFrame, settings: Behaviour, seed: int) -> dict[int, list[Candidate]]:
    """Returns the candidates of each layer, with their controls."""
    found, anatomy = {}, running.loaded.anatomy
    for layer, own in memories[memories["by_contrast"] | memories["by_screen"]].groupby("layer"):
        values, _ = values_in_place(running.loaded.model, anatomy.layers[layer])
        norms = values.double().norm(dim=1).cpu().numpy()
        found[layer] = draw_controls(layer, own["memory"].tolist(), norms, anatomy.width, settings, seed)
    return found
