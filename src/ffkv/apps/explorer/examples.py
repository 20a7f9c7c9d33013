"""Texts of all strengths: coefficients of a memory on the prefixes of `Held.sample`, which need no model."""

from typing import Any, NamedTuple

import numpy as np

from ffkv.apps.explorer.shelf import Held
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.memory import Memory
from ffkv.run.results.memory_columns import Columns, rows_of

QUANTILES = (1.0, 0.95, 0.9, 0.75, 0.5, 0.25, 0.0)
RANDOM = 5


class Strengths(NamedTuple):
    """Texts of all strengths of one memory."""

    # a row per quantile of the coefficients that are not 0, the highest first: quantile, coefficient, text, last_token,
    # next_token
    quantiles: list[Any]
    random: list[Any]  # some prefixes: rows of the same without `quantile`
    prefixes: int  # number of prefixes in the sample
    nonzero: int  # number of those whose coefficient is not 0


def strengths(held: Held, memory: Memory) -> Strengths:
    """Texts at quantiles of the memory's coefficients, and random ones."""
    sample = held.sample(memory.layer)
    m = sample.m[:, memory.memory]
    order = np.argsort(m, kind="stable")
    order = order[m[order] != 0]
    shown: dict[tuple[int, int], tuple[float, int]] = {}  # of a small sample several quantiles are one prefix
    for quantile in QUANTILES if len(order) else ():
        row = int(order[round(quantile * (len(order) - 1))])
        shown.setdefault((sample.sentence[row], sample.position[row]), (quantile, row))
    generator = random_stream(held.run.settings.seed, Purpose.SHOWN_PREFIXES, memory.layer, memory.memory)
    drawn = generator.choice(len(m), min(RANDOM, len(m)), replace=False)

    def texts(rows: np.ndarray) -> Columns:
        places = sample.sentence[rows].astype(int), sample.position[rows].astype(int)
        found = dict(zip(("text", "last_token"), held.run.corpus("validation").prefix_texts(*places)))
        found["next_token"] = token_texts(sample.next_token[rows], held.run.vocabulary)
        return {"coefficient": m[rows], **found}

    quantiles: Columns = {"quantile": [quantile for quantile, _ in shown.values()]}
    at_quantiles = rows_of(quantiles | texts(np.array([row for _, row in shown.values()], int)))
    return Strengths(at_quantiles, rows_of(texts(drawn)), len(m), len(order))
