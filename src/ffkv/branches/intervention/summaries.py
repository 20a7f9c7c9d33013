"""Summaries of interventions over memories and prefixes.

`by_memory`, `by_prefix` and `kept` are tables of `ffkv.branches.intervention.step.Measured`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ffkv.base.intervals import bootstrap_mean, wilson
from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.intervention.tables import OWN

SOURCES = ("own", "random_memories", "random_directions", "similar_size", "placebo", "other_tokens")


def summarize_sources(by_memory: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Computes the removal beside its controls, by layer.

    Returns:
        One row per layer, side, reach and source: layer, side, reach, source, memories (that have it), mean, low, high
        (95 % bootstrap over memories, in nats), and significant (memories with a q-value up to 0.05; of "own" only).
    """
    rows = []
    for (layer, side, reach), group in by_memory.groupby(["layer", "side", "reach"]):
        generator = random_stream(seed, Purpose.INTERVENTION_BOOTSTRAP, 0, layer)
        for source in SOURCES:
            sample = group[source].dropna().to_numpy()
            low, high = bootstrap_mean(sample, generator)
            significant = int((group["q_value"] <= SIGNIFICANT).sum()) if source == "own" else np.nan
            mean = sample.mean() if len(sample) else np.nan
            rows.append((layer, side, reach, source, len(sample), mean, low, high, significant))
    columns = "layer side reach source memories mean low high significant"
    return pd.DataFrame(rows, columns=columns.split())


def summarize_doses(by_prefix: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Computes what each change of a memory's own coefficient does, over all layers and by layer.

    Returns:
        One row per layer (-1: all), side, reach and change: layer, side, reach, change ("scale", "mean"), scale,
        memories; top, low, high (mean change of the log-probabilities of the value's top tokens over memories, 95 %
        bootstrap); next, divergence, changed (means).
    """
    own = by_prefix[by_prefix["source"] == OWN]
    keys = ["layer", "memory", "side", "reach", "change", "scale"]
    memories = own.groupby(keys, dropna=False)[["top", "next", "divergence", "changed"]].mean().reset_index()
    rows = []
    for layer, of_layer in [(-1, memories), *memories.groupby("layer")]:
        generator = random_stream(seed, Purpose.INTERVENTION_BOOTSTRAP, 1, layer + 1)
        for (side, reach, change, scale), group in of_layer.groupby(keys[2:], dropna=False):
            low, high = bootstrap_mean(group["top"].to_numpy(), generator)
            means = [float(group[name].mean()) for name in ("next", "divergence", "changed")]
            rows.append((layer, side, reach, change, scale, len(group), float(group["top"].mean()), low, high, *means))
    columns = "layer side reach change scale memories top low high next divergence changed"
    return pd.DataFrame(rows, columns=columns.split())


def summarize_kept(kept: pd.DataFrame) -> pd.DataFrame:
    """Computes how often the prediction stays if few memories of a layer are kept.

    Returns:
        One row per layer, choice and number of kept memories: layer, choice ("largest", "random", "all"), kept,
        prefixes, unchanged (number of predictions that stay), share, low, high (Wilson interval), divergence (mean, in
        nats).
    """
    groups = kept.groupby(["layer", "choice", "kept"])
    table = groups.agg(
        prefixes=("unchanged", "size"), unchanged=("unchanged", "sum"), divergence=("divergence", "mean")
    )
    table = table.reset_index()
    table["share"] = table["unchanged"] / table["prefixes"]
    table["low"], table["high"] = wilson(table["unchanged"], table["prefixes"])
    return table[["layer", "choice", "kept", "prefixes", "unchanged", "share", "low", "high", "divergence"]]


def describe_memories(
    by_memory: pd.DataFrame, top_token: Mapping[tuple[int, int], int], vocabulary: Sequence[str]
) -> pd.DataFrame:
    """Returns the memories that were changed, the largest specific total effect first.

    Returns:
        The columns of `by_memory`, and token (the text of the value's top token).
    """
    places = zip(by_memory["layer"].tolist(), by_memory["memory"].tolist(), strict=True)
    tokens = [vocabulary[top_token[place]] for place in places]
    table = by_memory.assign(token=tokens, magnitude=by_memory["specific"].abs())
    order = ["reach", "magnitude", "layer", "memory", "side"]
    return table.sort_values(order, ascending=[False, False, True, True, True], ignore_index=True).drop(
        columns="magnitude"
    )
