"""Which memories are changed, on which prefixes, and with which controls."""

from typing import NamedTuple

import numpy as np

from ffkv.activations.trigger_file import TriggerExamples, Triggers
from ffkv.base.settings import Intervention
from ffkv.base.streams import Purpose, random_stream

SIDES = ("positive", "negative")
Place = tuple[int, int]  # sentence and position of a prefix


class Unit(NamedTuple):
    """A memory on one side of zero, with the trigger examples on which it is changed."""

    memory: int  # its number in the layer
    side: str  # "positive" or "negative": the sign of its coefficients
    places: list[Place]  # sentence and position of each trigger example [prefix]
    next_tokens: np.ndarray  # the token that follows most often [prefix]
    controls: np.ndarray  # the random memories that it is compared with, by their numbers in the layer [control]
    # another changed memory of the layer, whose top tokens are measured as well; itself if there is no other
    other: int


def sample_units(triggers: Triggers, layer: int, norms: np.ndarray, settings: Intervention, seed: int) -> list[Unit]:
    """Draws memories of a layer among the living ones, and what they are compared with.

    A living memory has a trigger example, and a value that is not 0. The draws of one layer depend on no other layer.

    Args:
        norms: lengths of its values [memory].
    """
    rows = triggers.rows(layer)
    alive = np.flatnonzero((triggers.count[rows] > 0) & (norms > 0))
    drawn = random_stream(seed, Purpose.CHANGED_MEMORIES, layer)
    memories = np.sort(drawn.choice(alive, min(settings.memories, len(alive)), replace=False))
    units = []
    for number, memory in enumerate(memories.tolist()):
        other = int(memories[(number + 1) % len(memories)])
        for side, examples in zip(SIDES, (triggers, triggers.negative), strict=True):
            if examples is None or not examples.count[rows.start + memory]:
                continue
            generator = random_stream(seed, Purpose.CONTROL_MEMORIES, layer, memory, SIDES.index(side))
            others = np.flatnonzero((norms > 0) & (np.arange(len(norms)) != memory))
            controls = generator.choice(others, min(settings.controls, len(others)), replace=False)
            ranks = _ranks(examples, rows.start + memory, settings.examples, seed, layer, memory, SIDES.index(side))
            row = rows.start + memory
            places = [*zip(examples.sentence[row, ranks].tolist(), examples.position[row, ranks].tolist(), strict=True)]
            units.append(Unit(memory, side, places, examples.next_token[row, ranks], controls, other))
    return units


def _ranks(examples: TriggerExamples, row: int, count: int, seed: int, *parts: int) -> np.ndarray:
    """Returns the ranks of the trigger examples that are drawn, ascending."""
    stored = int(examples.count[row])
    generator = random_stream(seed, Purpose.CHANGED_PREFIXES, *parts)
    return np.sort(generator.choice(stored, min(count, stored), replace=False))


def choose_silent(own: np.ndarray, others: np.ndarray, share: float, count: int) -> np.ndarray:
    """Chooses prefixes on which a memory is nearly silent, the largest coefficients first; of equal ones the first.

    Where the coefficient is exactly 0, as it mostly is with ReLU or experts, a removal changes nothing, so it shows nothing.

    Args:
        own: its coefficients on its own trigger examples [prefix].
        others: its coefficients on other prefixes [other prefix].
        share: largest size of a coefficient that counts as silent, as a share of the mean size of `own`.
        count: how many are chosen at most.
    Returns:
        Numbers of other prefixes.
    """
    sizes = np.abs(others.astype(np.float64))
    order = np.argsort(-sizes, kind="stable")
    silent = (sizes > 0) & (sizes <= share * np.abs(own.astype(np.float64)).mean())
    return order[silent[order]][:count]
