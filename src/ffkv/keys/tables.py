"""The tables of the keys branch; their columns are listed in docs/architecture.md."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers
from ffkv.intervals import bootstrap_mean
from ffkv.keys.features import KINDS
from ffkv.keys.key_sample import Examples
from ffkv.keys.patterns import CATEGORIES, Pattern, categories
from ffkv.keys.removal import REMOVED

PATTERNS = {
    "sample": "str",
    "layer": "int64",
    "memory": "int64",
    "pattern": "int64",
    "kind": "str",
    "family": "str",
    "label": "str",
    "prefixes": "int64",
    "chance": "float64",
    "p_value": "float64",
    "q_value": "float64",
    "ranks": "object",
}
PREFIXES = {"sample": "str", "layer": "int64", "memory": "int64", "rank": "int64", "category": "str"}
REMOVAL = {
    "layer": "int64",
    "memory": "int64",
    "removed": "str",
    "triggers": "int64",
    "skipped": "int64",
    "change": "float64",
}
SAMPLES = ("trigger", "random")


def pattern_rows(layer: int, examples: Sequence[Examples], found: Sequence[Sequence[Pattern]]) -> list[dict]:
    """A row for each pattern of a layer's keys, numbered from 0 within its key."""
    return [
        {
            "sample": key.sample,
            "layer": layer,
            "memory": key.memory,
            "pattern": number,
            "kind": pattern.feature[0],
            "family": pattern.family,
            "label": label(pattern),
            "prefixes": len(pattern.members),
            "chance": pattern.chance,
            "p_value": pattern.p_value,
            "q_value": pattern.q_value,
            "ranks": [key.ranks[member] for member in pattern.members],
        }
        for key, patterns in zip(examples, found, strict=True)
        for number, pattern in enumerate(patterns)
    ]


def label(pattern: Pattern) -> str:
    """A pattern in words."""
    kind, text = pattern.feature
    return KINDS[kind].phrase.format(text)


def prefix_rows(layer: int, examples: Sequence[Examples], found: Sequence[Sequence[Pattern]]) -> list[dict]:
    """A row for each prefix of a layer's keys, with its category."""
    return [
        {"sample": key.sample, "layer": layer, "memory": key.memory, "rank": rank, "category": category}
        for key, patterns in zip(examples, found, strict=True)
        for rank, category in zip(key.ranks, categories(patterns, len(key.ranks)), strict=True)
    ]


def removal_rows(layer: int, keys: np.ndarray, memories: np.ndarray, changes: np.ndarray) -> list[dict]:
    """A row for each key of a layer and each removal: the mean change over the key's triggers.

    Args:
        keys: memories that were sampled. memories: of each trigger [trigger]. changes: in %, NaN where skipped
            [trigger, `REMOVED`].
    """
    rows = []
    for memory in keys.tolist():
        for removed, change in zip(REMOVED, changes[memories == memory].T, strict=True):
            used = change[np.isfinite(change)]
            mean = used.mean() if len(used) else np.nan
            rows.append(
                {
                    "layer": layer,
                    "memory": memory,
                    "removed": removed,
                    "triggers": len(used),
                    "skipped": len(change) - len(used),
                    "change": mean,
                }
            )
    return rows


def living_layers(triggers: Triggers) -> set[int]:
    """The layers that have a key with a trigger: those that tables of sampled keys are about."""
    return {layer for layer in range(triggers.layers) if triggers.count[triggers.rows(layer)].any()}


def typed(rows: list[dict], columns: dict[str, str]) -> pd.DataFrame:
    """Rows as a table whose columns have their types even where there is no row."""
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def category_shares(prefixes: pd.DataFrame, layers: int) -> pd.DataFrame:
    """`keys/categories.csv` (figure 2): how many of a layer's prefixes fall into each category."""
    counts = prefixes.groupby(["sample", "layer", "category"]).size()
    everywhere = pd.MultiIndex.from_product([SAMPLES, range(layers), CATEGORIES], names=counts.index.names)
    table = counts.reindex(everywhere, fill_value=0).rename("prefixes").reset_index()
    table["share"] = table["prefixes"] / table.groupby(["sample", "layer"])["prefixes"].transform("sum")
    return table


def pattern_summary(patterns: pd.DataFrame, prefixes: pd.DataFrame, layers: int) -> pd.DataFrame:
    """`keys/patterns.csv`: how many keys have a pattern, how many each has, how many prefixes they cover."""
    by, everywhere = (
        ["sample", "layer"],
        pd.MultiIndex.from_product([SAMPLES, range(layers)], names=["sample", "layer"]),
    )
    table = pd.DataFrame(index=everywhere)
    table["keys"] = prefixes.groupby(by)["memory"].nunique()
    table["keys_with_pattern"] = patterns.groupby(by)["memory"].nunique()
    table["patterns_per_key"] = patterns.groupby(by).size()
    table = table.fillna(0).astype(int)
    table["patterns_per_key"] = table["patterns_per_key"] / table["keys"]
    table["coverage"] = (prefixes["category"] != "none").groupby([prefixes[name] for name in by]).mean()
    return table.reset_index()


def removal_summary(removal: pd.DataFrame, layers: int, seed: int) -> pd.DataFrame:
    """`keys/removal.csv` (figure 3): mean over keys of the mean change over triggers, with its bootstrap interval."""
    rows = []
    for layer in range(layers):
        for number, removed in enumerate(REMOVED):
            found = removal[(removal["layer"] == layer) & (removal["removed"] == removed)]
            changes = found["change"].dropna().to_numpy()
            low, high = bootstrap_mean(changes, seed + layer * len(REMOVED) + number)
            mean = changes.mean() if len(changes) else np.nan
            rows.append(
                {
                    "layer": layer,
                    "removed": removed,
                    "keys": len(changes),
                    "triggers": found["triggers"].sum(),
                    "skipped": found["skipped"].sum(),
                    "change": mean,
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)


def activity(triggers: Triggers) -> pd.DataFrame:
    """`keys/activity.csv`: keys that never fire or seldom, and the share of prefixes on which the others do.

    Where negative coefficients are kept, also the share of prefixes on which they are negative.
    """
    sides = {"firing": triggers.fires, **({"negative": triggers.negative.fires} if triggers.negative else {})}
    rows = []
    for layer in range(triggers.layers):
        count = triggers.count[triggers.rows(layer)]
        row = {
            "layer": layer,
            "keys": len(count),
            "dead": (count == 0).sum(),
            "fewer": (count < triggers.coefficient.shape[1]).sum(),
        }
        for side, fires in sides.items():
            shares = fires[triggers.rows(layer)] / max(triggers.prefixes, 1)
            quartiles = np.quantile(shares, [0.25, 0.5, 0.75])
            row |= dict(zip([f"{side}_q1", f"{side}_median", f"{side}_q3"], quartiles, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)
