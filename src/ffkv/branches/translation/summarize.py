"""Tables of figures 4, 5 and 8 to 10 in the translated reading, and the differences of readings."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.intervals import boxes, paired_interval, wilson
from ffkv.branches.composition.summarize import summarize_no_agreement
from ffkv.branches.given import Given
from ffkv.branches.refinement.summarize import summarize_residual_agreement
from ffkv.branches.translation import tables
from ffkv.branches.values.summarize import summarize_agreement, summarize_rank


def summarize_translation(given: Given, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups as figures 4, 5 and 8 to 10 do, and compares the readings.

    `seed`: of the permutations.
    """
    unigram = given.competing.count_next_tokens(given.anatomy.vocabulary)

    def both(name: str, belongs_to: Mapping[str, Any], key: str) -> pd.DataFrame:
        made = [each for each in (name, f"jacobian_{name}") if given.files.get(each)]
        if not made:
            raise UserError(
                f"No table is named. Name those of all groups, by --{name} or --jacobian-{name}.".replace("_", "-")
            )
        found = [given.table(each, belongs_to, ("layer", "reading", *[key] * bool(key))) for each in made]
        return pd.concat(found, ignore_index=True)

    memories = both("by_memory", given.train_identity, "memory")
    read = both("by_prefix", given.identity, "prefix")
    judged = both("fit", given.identity, "").drop_duplicates(["layer", "reading"])  # both have the head's rows
    judged = tables.FIT_BY_LAYER.completed(judged).fillna({"texts": 0, "positions": 0})
    judged = judged.astype({"texts": "int64", "positions": "int64"})
    return summarize_readings(memories, read, unigram, seed) | {
        "translation_fit": tables.FIT_BY_LAYER.frame(judged.sort_values("layer", kind="stable", ignore_index=True)),
        "translation_differences": summarize_differences(memories, len(given.anatomy.layers)),
    }


def summarize_readings(
    by_memory: pd.DataFrame, by_prefix: pd.DataFrame, unigram: np.ndarray, seed: int
) -> dict[str, pd.DataFrame]:
    """Summarizes rows of `BY_MEMORY` and `BY_PREFIX` as figures 4, 5 and 8 to 10, for each reading.

    For `unigram` and `seed` see `summarize_agreement`.
    """
    renamed = {"reading": "counted"}
    return {
        tables.AGREEMENT.name: _by_reading(by_memory, lambda own: summarize_agreement(own, unigram, seed)),
        tables.RANK.name: _by_reading(by_memory, summarize_rank),
        tables.NO_AGREEMENT.name: _by_reading(
            by_prefix, lambda own: summarize_no_agreement(own).rename(columns=renamed)
        ),
        tables.RESIDUAL.name: _by_reading(by_prefix, summarize_residual_agreement),
        tables.PROBABILITY.name: _by_reading(by_prefix, lambda own: boxes(own, "probability", "prefixes")),
    }


def _by_reading(table: pd.DataFrame, summarize: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    readings = [each for each in tables.ALL_READINGS if each in {*table["reading"]}]
    found = pd.concat({each: summarize(table[table["reading"] == each]) for each in readings}, names=["reading"])
    return found.reset_index(0).reset_index(drop=True)


def summarize_differences(by_memory: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Compares the readings memory by memory, above chance, as docs/translation.md defines it (`DIFFERENCES`).

    `by_memory`: rows of `BY_MEMORY` of all layers. Halves are those of the verdicts: the layer in the middle is in neither.
    Shares have the interval of Wilson, and their differences that of pairs, so that no agreement at all has one, too.
    """
    keys = by_memory[by_memory["triggers"] > 0]
    read = {name: own.set_index(["layer", "memory"]) for name, own in keys.groupby("reading")}
    one = next(iter(read.values()), keys.set_index(["layer", "memory"]))
    read["head"] = one.assign(top_token=one["head_top_token"], agrees=one["head_agrees"])
    layer = one.index.get_level_values("layer").to_numpy()
    chosen = (layer < layers // 2, layer >= layers / 2, layer >= 0)
    rows = []
    for half, memories in zip(tables.HALVES, chosen, strict=True):
        numbers = {
            name: (each["agrees"].to_numpy(float)[memories], by_chance(each)[memories]) for name, each in read.items()
        }
        for name in (name for name in tables.COMPARED if {*name.split(" - ")} <= {*read}):
            first, _, second = name.partition(" - ")
            agrees, chance = numbers[first]
            if second:
                agrees, chance = agrees - numbers[second][0], chance - numbers[second][1]
            ends = paired_interval(agrees) if second else wilson(agrees.sum(), len(agrees))
            found = np.array([agrees.mean(), *ends]) - chance.mean() if len(agrees) else (np.nan,) * 3
            rows.append((half, name, len(agrees), *found))
    return tables.DIFFERENCES.frame(rows)


def by_chance(table: pd.DataFrame) -> np.ndarray:
    """Returns the expected rate of permuted keys of its layer for each key [key].

    `table`: keys of one reading, with the layer in the index, their `top_token` and `next_token`.
    """
    expected = {}
    for layer, keys in table.groupby(level="layer"):
        predicted, following = (keys[name].value_counts() for name in ("top_token", "next_token"))
        expected[layer] = (predicted * following).sum() / len(keys) ** 2
    return table.index.get_level_values("layer").map(expected).to_numpy(float)
