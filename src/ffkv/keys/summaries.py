"""Summaries of the tables of the room `keys`, per layer: figure 2, figure 3 and how often keys fire."""

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers
from ffkv.intervals import bootstrap_mean
from ffkv.keys.patterns import CATEGORIES
from ffkv.keys.removal import REMOVED

SAMPLES = ("trigger", "random")


def living_layers(triggers: Triggers) -> set[int]:
    """The layers with at least one key that has a trigger. The tables of sampled keys have rows of these layers."""
    return {layer for layer in range(triggers.layers) if triggers.count[triggers.rows(layer)].any()}


def count_categories(by_prefix: pd.DataFrame, layers: int) -> pd.DataFrame:
    """`keys/figure_2_categories.csv`: number and share of prefixes of each category, per sample and layer.

    Args:
        by_prefix: rows of `BY_PREFIX` of all layers.
        layers: number of layers of the model.
    """
    counts = by_prefix.groupby(["sample", "layer", "category"]).size()
    index = pd.MultiIndex.from_product([SAMPLES, range(layers), CATEGORIES], names=counts.index.names)
    table = counts.reindex(index, fill_value=0).rename("prefixes").reset_index()
    table["share"] = table["prefixes"] / table.groupby(["sample", "layer"])["prefixes"].transform("sum")
    return table


def count_patterns(patterns: pd.DataFrame, by_prefix: pd.DataFrame, layers: int) -> pd.DataFrame:
    """`keys/figure_2_pattern_counts.csv`: keys with a pattern, patterns per key and share of covered prefixes.

    Args:
        patterns: rows of `PATTERNS` of all layers.
        by_prefix: rows of `BY_PREFIX` of all layers.
        layers: number of layers of the model.
    Returns:
        A row per sample and layer.
    """
    group = ["sample", "layer"]
    table = pd.DataFrame(index=pd.MultiIndex.from_product([SAMPLES, range(layers)], names=group))
    table["keys"] = by_prefix.groupby(group)["memory"].nunique()
    table["keys_with_pattern"] = patterns.groupby(group)["memory"].nunique()
    table["patterns_per_key"] = patterns.groupby(group).size()
    table = table.fillna(0).astype(int)
    table["patterns_per_key"] = table["patterns_per_key"] / table["keys"]
    table["coverage"] = (by_prefix["category"] != "none").groupby([by_prefix[name] for name in group]).mean()
    return table.reset_index()


def average_removals(removal: pd.DataFrame, layers: int, seed: int) -> pd.DataFrame:
    """`keys/figure_3_removal.csv`: mean over keys of their mean change, with its 95 % bootstrap interval.

    Args:
        removal: rows of `REMOVAL` of all layers.
        layers: number of layers of the model.
        seed: the run's seed.
    Returns:
        A row per layer and removal.
    """
    rows = []
    for layer in range(layers):
        for number, removed in enumerate(REMOVED):
            by_key = removal[(removal["layer"] == layer) & (removal["removed"] == removed)]
            changes = by_key["change"].dropna().to_numpy()
            low, high = bootstrap_mean(changes, seed + layer * len(REMOVED) + number)
            rows.append(
                {
                    "layer": layer,
                    "removed": removed,
                    "keys": len(changes),
                    "triggers": by_key["triggers"].sum(),
                    "skipped": by_key["skipped"].sum(),
                    "change": changes.mean() if len(changes) else np.nan,
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)


def measure_activity(triggers: Triggers) -> pd.DataFrame:
    """`keys/activity.csv`: dead keys, keys with few triggers, and quartiles of the share of prefixes on which keys fire.

    If the negative side is stored, there are also quartiles of the share of prefixes with a negative coefficient.

    Returns:
        A row per layer.
    """
    fires_by_side = {"firing": triggers.fires}
    if triggers.negative:
        fires_by_side["negative"] = triggers.negative.fires
    rows = []
    for layer in range(triggers.layers):
        count = triggers.count[triggers.rows(layer)]
        row = {
            "layer": layer,
            "keys": len(count),
            "dead": (count == 0).sum(),
            "fewer": (count < triggers.coefficient.shape[1]).sum(),
        }
        for side, fires in fires_by_side.items():
            shares = fires[triggers.rows(layer)] / max(triggers.prefixes, 1)
            quartiles = np.quantile(shares, [0.25, 0.5, 0.75])
            row |= dict(zip([f"{side}_q1", f"{side}_median", f"{side}_q3"], quartiles, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)
