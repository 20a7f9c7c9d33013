"""Texts of all strengths: coefficients of a memory on a sample of prefixes that all memories share.

The sample is the run's own, see `Held.sample`. So the same run always shows the same texts, and no model is needed.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ffkv.explorer.shelf import Held, Sample
from ffkv.results.memory import Memory
from ffkv.results.memory_statistics import token_texts
from ffkv.streams import Purpose, random_stream

QUANTILES = (1.0, 0.95, 0.9, 0.75, 0.5, 0.25, 0.0)
RANDOM = 5


@dataclass(frozen=True)
class Strengths:
    """Texts of all strengths of one memory.

    Attributes:
        quantiles: one row per quantile of the coefficients that are not 0, the highest first. Columns: quantile,
            coefficient, text, last_token, next_token.
        random: some prefixes, with the same columns but `quantile`.
        prefixes: number of prefixes in the sample.
        nonzero: number of those whose coefficient is not 0.
    """

    quantiles: pd.DataFrame
    random: pd.DataFrame
    prefixes: int
    nonzero: int


def strengths(held: Held, memory: Memory) -> Strengths:
    """Texts at quantiles of the memory's coefficients, and random ones."""
    sample = held.sample(memory.layer)
    m = sample.m[:, memory.memory]
    order = np.argsort(m, kind="stable")
    order = order[m[order] != 0]
    places = {quantile: order[round(quantile * (len(order) - 1))] for quantile in QUANTILES} if len(order) else {}
    generator = random_stream(held.run.settings.seed, Purpose.SHOWN_PREFIXES, memory.layer, memory.memory)
    drawn = generator.choice(len(m), min(RANDOM, len(m)), replace=False)
    quantiles = _texts(held, sample, np.array([*places.values()], int), m).assign(quantile=list(places))
    # Of a small sample several quantiles are one prefix.
    quantiles = quantiles.drop_duplicates(["sentence", "position"], ignore_index=True)
    return Strengths(quantiles, _texts(held, sample, drawn, m), len(m), len(order))


def _texts(held: Held, sample: Sample, rows: np.ndarray, m: np.ndarray) -> pd.DataFrame:
    sentence, position = sample.sentence[rows].astype(int), sample.position[rows].astype(int)
    texts, last_tokens = held.run.corpus("validation").prefix_texts(sentence, position)
    return pd.DataFrame(
        {
            "sentence": sentence,
            "position": position,
            "coefficient": m[rows].astype(float),
            "text": texts,
            "last_token": last_tokens,
            "next_token": token_texts(sample.next_token[rows], held.run.vocabulary),
        }
    )
