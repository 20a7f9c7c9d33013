"""Summarizes interventions over memories and prefixes.

`by_memory`, `by_prefix` and `kept` are tables of all layers. A function returns the table that it is about (`tables`).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ffkv.base.files import tables
from ffkv.base.intervals import mean_interval, wilson
from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.branches.given import Given
from ffkv.branches.intervention.tables import BY_LAYER, DOSES, KEPT_MEMORIES, OWN, SOURCES


def summarize_interventions(given: Given) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups for the report's section of interventions."""
    by_prefix, by_memory = given.table("by_prefix", given.identity), given.table("by_memory", given.identity)
    kept = given.table("kept", given.identity, ("layer", "prefix", "choice", "kept"))
    tables.check_layers(by_memory, ["layer", "memory", "side", "reach"], {*by_memory["layer"]}, "--by-memory")
    return {
        "interventions_by_layer": summarize_sources(by_memory),
        "intervention_doses": summarize_doses(by_prefix),
        "kept_memories": summarize_kept(kept),
        "intervention_memories": describe_memories(by_memory, given.top_token_texts(by_memory)),
    }


def summarize_sources(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Computes the removal beside its controls, by layer: `BY_LAYER`."""
    rows = []
    for (layer, side, reach), group in by_memory.groupby(["layer", "side", "reach"]):
        for source in SOURCES:
            sample = group[source].dropna().to_numpy()
            low, high = mean_interval(sample)
            significant = int((group["q_value"] <= SIGNIFICANT).sum()) if source == "own" else np.nan
            mean = sample.mean() if len(sample) else np.nan
            rows.append((layer, side, reach, source, len(sample), mean, low, high, significant))
    return pd.DataFrame(rows, columns=BY_LAYER.names)


def summarize_doses(by_prefix: pd.DataFrame) -> pd.DataFrame:
    """Computes what each change of a memory's own coefficient does, over all layers and by layer: `DOSES`."""
    own = by_prefix[by_prefix["source"] == OWN]
    keys = ["layer", "memory", "side", "reach", "change", "scale"]
    memories = own.groupby(keys, dropna=False)[["top", "next", "divergence", "changed"]].mean().reset_index()
    rows = []
    for layer, of_layer in [(-1, memories), *memories.groupby("layer")]:
        for (side, reach, change, scale), group in of_layer.groupby(keys[2:], dropna=False):
            low, high = mean_interval(group["top"].to_numpy())
            means = [float(group[name].mean()) for name in ("next", "divergence", "changed")]
            rows.append((layer, side, reach, change, scale, len(group), float(group["top"].mean()), low, high, *means))
    return pd.DataFrame(rows, columns=DOSES.names)


def summarize_kept(kept: pd.DataFrame) -> pd.DataFrame:
    """Computes how often the prediction stays if few memories of a layer are kept: `KEPT_MEMORIES`."""
    table = kept.groupby(["layer", "choice", "kept"], as_index=False).agg(
        prefixes=("unchanged", "size"), unchanged=("unchanged", "sum"), divergence=("divergence", "mean")
    )
    table["share"] = table["unchanged"] / table["prefixes"]
    table["low"], table["high"] = wilson(table["unchanged"], table["prefixes"])
    return table[KEPT_MEMORIES.names]


def describe_memories(by_memory: pd.DataFrame, tokens: Sequence[str]) -> pd.DataFrame:
    """Returns the memories that were changed, the largest specific total effect first: `MEMORIES_TABLE`.

    `tokens`: the top token of the value of each row's memory.
    """
    table = by_memory.assign(token=tokens, magnitude=by_memory["specific"].abs())
    order = ["reach", "magnitude", "layer", "memory", "side"]
    table = table.sort_values(order, ascending=[False, False, True, True, True], ignore_index=True)
    return table.drop(columns="magnitude")
