"""Summarizes the tables of the branch `keys`, per layer: figure 2, figure 3 and how often keys fire.

The arguments are the rows of `PATTERNS`, `BY_PREFIX` and `REMOVAL` of all layers, and the model's number of layers.
"""

from itertools import product

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers, tied_first
from ffkv.base.intervals import mean_interval
from ffkv.branches.given import Given
from ffkv.branches.keys.tables import CATEGORIES, FIGURE_3, QUARTILES, REMOVED

SAMPLES = ("trigger", "random")


def summarize_keys(given: Given) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups, per layer."""
    examples = given.triggers
    living = living_layers(examples)
    patterns = given.table("patterns", given.train_identity)
    by_prefix = given.table("by_prefix", given.train_identity, ("sample", "layer", "memory", "rank"), living)
    removal = given.table("removal", given.train_identity, ("layer", "memory", "removed"), living)
    return {
        "figure_2_categories": count_categories(by_prefix, examples.layers),
        "figure_2_pattern_counts": count_patterns(patterns, by_prefix, examples.layers),
        "figure_3_removal": average_removals(removal, examples.layers),
        "activity": measure_activity(examples),
    }


def living_layers(triggers: Triggers) -> set[int]:
    """Returns the layers with at least one key that has a trigger.

    The tables of sampled keys have rows of these layers.
    """
    return {layer for layer in range(triggers.layers) if triggers.count[triggers.rows(layer)].any()}


def count_categories(by_prefix: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Number and share of prefixes of each category, per sample and layer (figure 2)."""
    counts = by_prefix.groupby(["sample", "layer", "category"]).size()
    index = pd.MultiIndex.from_product([SAMPLES, range(layers), CATEGORIES], names=counts.index.names)
    table = counts.reindex(index, fill_value=0).rename("prefixes").reset_index()
    table["share"] = table["prefixes"] / table.groupby(["sample", "layer"])["prefixes"].transform("sum")
    return table


def count_patterns(patterns: pd.DataFrame, by_prefix: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Keys with a pattern, patterns per key and share of covered prefixes: one row per sample and layer (figure 2)."""
    group = ["sample", "layer"]
    table = pd.DataFrame(index=pd.MultiIndex.from_product([SAMPLES, range(layers)], names=group))
    table["keys"] = by_prefix.groupby(group)["memory"].nunique()
    table["keys_with_pattern"] = patterns.groupby(group)["memory"].nunique()
    table["patterns_per_key"] = patterns.groupby(group).size()
    table = table.fillna(0).astype(int)
    table["patterns_per_key"] = table["patterns_per_key"] / table["keys"]
    table["coverage"] = (by_prefix["category"] != "none").groupby([by_prefix[name] for name in group]).mean()
    return table.reset_index()


def average_removals(removal: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Mean over keys of their mean change, with its 95 % interval over keys, one row per layer and removal (figure 3).

    The median over keys is beside it: a change relative to a coefficient near 0 can outweigh those of all other keys.
    """
    rows = []
    for layer, removed in product(range(layers), REMOVED):
        by_key = removal[(removal["layer"] == layer) & (removal["removed"] == removed)]
        changes = by_key["change"].dropna().to_numpy()
        triggers, skipped = by_key["triggers"].sum(), by_key["skipped"].sum()
        mean, median = (changes.mean(), np.median(changes)) if len(changes) else (np.nan, np.nan)
        rows.append((layer, removed, len(changes), triggers, skipped, mean, *mean_interval(changes), median))
    return pd.DataFrame(rows, columns=FIGURE_3.names)


def measure_activity(triggers: Triggers) -> pd.DataFrame:
    """Dead keys, keys with few triggers, and quartiles of the share of prefixes on which keys fire: one row per layer.

    `one_token` is the share of trigger examples that have one token alone, BOS not counted. Many of them mean that the
    model treats the first position apart, whatever word is there.

    `tied` is the number of keys whose first trigger example is tied with the second (`ffkv.activations.trigger_file`): the
    corpus decides between them.

    If the negative side is stored, the last columns say the same of negative coefficients.
    """
    sides = {"firing": triggers} | ({"negative": triggers.negative} if triggers.negative else {})
    rows = []
    for layer in range(triggers.layers):
        count = triggers.count[triggers.rows(layer)]
        fewer = (count < triggers.coefficient.shape[1]).sum()
        one_token = (triggers.position[triggers.rows(layer)] == 1).sum() / max(count.sum(), 1)
        row = {"layer": layer, "keys": len(count), "dead": (count == 0).sum(), "fewer": fewer, "one_token": one_token}
        for name, side in sides.items():
            tied = tied_first(side.coefficient[triggers.rows(layer)]).sum()
            quartiles = np.quantile(side.fires[triggers.rows(layer)] / max(triggers.prefixes, 1), [0.25, 0.5, 0.75])
            row |= {"tied" if name == "firing" else "negative_tied": tied}
            row |= {f"{name}_{part}": value for part, value in zip(QUARTILES, quartiles, strict=True)}
        rows.append(row)
    return pd.DataFrame(rows)
