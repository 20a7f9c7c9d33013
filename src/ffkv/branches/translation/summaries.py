"""Tables of figures 4, 5 and 8 to 10 in the translated reading, and the differences of readings."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from ffkv.base.intervals import boxes, mean_interval
from ffkv.branches.composition.summaries import summarize_no_agreement
from ffkv.branches.refinement.summaries import summarize_residual_agreement
from ffkv.branches.translation.tables import (
    AGREEMENT,
    DIFFERENCES,
    HALVES,
    NO_AGREEMENT,
    PROBABILITY,
    RANK,
    READINGS,
    RESIDUAL,
)
from ffkv.branches.values.summaries import summarize_agreement, summarize_rank


def summarize_values(by_memory: pd.DataFrame, unigram: np.ndarray, seed: int) -> dict[str, pd.DataFrame]:
    """Summarizes rows of `BY_MEMORY` as figures 4 and 5, for each reading. For the others see `summarize_agreement`."""
    return {
        AGREEMENT.name: _by_reading(by_memory, lambda table: summarize_agreement(table, unigram, seed)),
        RANK.name: _by_reading(by_memory, summarize_rank),
    }


def summarize_prefixes(by_prefix: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Summarizes rows of `BY_PREFIX` as figures 8 to 10, for each reading."""
    return {
        NO_AGREEMENT.name: _by_reading(
            by_prefix, lambda table: summarize_no_agreement(table).rename(columns={"reading": "counted"})
        ),
        RESIDUAL.name: _by_reading(by_prefix, summarize_residual_agreement),
        PROBABILITY.name: _by_reading(by_prefix, lambda table: boxes(table, "probability", "prefixes")),
    }


def _by_reading(table: pd.DataFrame, summarize: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    found = [summarize(table[table["reading"] == reading]).assign(reading=reading) for reading in READINGS]
    together = pd.concat(found, ignore_index=True)
    return together[["reading", *(name for name in together if name != "reading")]]


def summarize_differences(by_memory: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Compares the readings memory by memory, above chance, as docs/translation.md defines it (`DIFFERENCES`).

    `by_memory`: rows of `BY_MEMORY` of all layers. Halves are those of the verdicts: the layer in the middle is in neither.
    """
    keys = by_memory[by_memory["triggers"] > 0]
    translated, shuffled = (keys[keys["reading"] == reading].set_index(["layer", "memory"]) for reading in READINGS)
    own, null = (above_chance(table, "agrees") for table in (translated, shuffled))
    head = above_chance(translated.assign(top_token=translated["head_top_token"]), "head_agrees")
    numbers = {"translated": own, "head": head, "translated - head": own - head, "translated - shuffled": own - null}
    layer = translated.index.get_level_values("layer").to_numpy()
    chosen = (layer < layers // 2, layer >= layers / 2, layer >= 0)
    rows = []
    for half, memories in zip(HALVES, chosen, strict=True):
        for compared, values in numbers.items():
            sample = values.to_numpy()[memories]
            mean = sample.mean() if len(sample) else np.nan
            rows.append((half, compared, len(sample), mean, *mean_interval(sample, -2, 2)))
    return DIFFERENCES.frame(rows)


def above_chance(table: pd.DataFrame, agrees: str) -> pd.Series:
    """Returns the agreement of each key minus the expected rate of permuted keys of its layer [key].

    `table`: keys of one reading, with the layer in the index, their `top_token` and `next_token`.
    """
    expected = {}
    for layer, keys in table.groupby(level="layer"):
        predicted, following = (keys[name].value_counts() for name in ("top_token", "next_token"))
        expected[layer] = (predicted * following).sum() / len(keys) ** 2
    chance = table.index.get_level_values("layer").map(expected).to_numpy(float)
    return table[agrees].astype(float) - chance
