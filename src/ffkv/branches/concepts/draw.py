"""Draws the texts of a task, and puts documents into halves."""

from typing import NamedTuple

import numpy as np

from ffkv.base.errors import UserError

LEAST = 5  # texts of each label in each half


class Task(NamedTuple):
    """The texts of a task, as the model reads them, in random order."""

    name: str
    label: str  # the positive label
    rows: list[np.ndarray]  # token ids up to the last that counts, those before every sentence among them [text][token]
    counted: np.ndarray  # how many tokens count, the last ones of its row [text]
    positive: np.ndarray  # [text]
    document: np.ndarray  # [text]
    train: np.ndarray  # whether a text is of the train half [text]
    length: np.ndarray  # how many tokens the model has read, those before every sentence left out [text]
    left_out: str = ""  # what is not used and why


def draw(
    positive: np.ndarray, document: np.ndarray, train: np.ndarray | None, texts: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws texts, a quarter of `texts` of each label in each half at most; whole documents are in one half.

    `positive`, `document`, `train`: label, document and, if the task has halves of its own, half of each text [text]. Returns the numbers
    of the texts, in random order, and whether each is of the train half [drawn].

    Raises UserError if fewer than `LEAST` of a label are in a half.
    """
    room = texts // 4
    order = generator.permutation(len(positive))
    half = np.zeros(len(positive), int) if train is None else train.astype(int)
    if train is None:
        units, at = np.unique(document[order], return_inverse=True)
        ones, sizes = np.bincount(at, positive[order]), np.bincount(at)
        seen = np.zeros((2, 2))  # texts so far [half, label]
        of_unit = np.zeros(len(units), int)
        for unit in dict.fromkeys(at.tolist()):
            label = int(2 * ones[unit] > sizes[unit])
            of_unit[unit] = seen[1, label] <= seen[0, label]
            seen[of_unit[unit]] += sizes[unit] - ones[unit], ones[unit]
        half[order] = of_unit[at]
    chosen = np.zeros(len(positive), bool)
    counts = np.zeros((2, 2), int)  # [half, label]
    for which, label in np.ndindex(2, 2):
        own = order[(half[order] == which) & (positive[order] == label)][:room]
        chosen[own], counts[which, label] = True, len(own)
    if counts.min() < LEAST:
        raise UserError(
            f"too few texts: the train half has {counts[1, 1]} of the label and {counts[1, 0]} of the other one, the test half has"
            f" {counts[0, 1]} and {counts[0, 0]}. Each needs {LEAST}."
        )
    drawn = order[chosen[order]]
    return drawn, half[drawn] > 0
