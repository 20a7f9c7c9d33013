"""Summaries of figures 7 and 8: how many memories compose a layer's output, and whether one of them predicts it.

`table` has one row per layer and prefix, see `ffkv.branches.composition.step.measure_composition`.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ffkv.base.intervals import boxes, shares

READINGS = {"active": "agreeing", "all": "agreeing_all"}  # reading of "no memory agrees": column that counts agreement


def summarize_active(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of active memories, one `ffkv.base.intervals.box` per layer (figure 7)."""
    return boxes(table, "share", "prefixes")


def summarize_effective(table: pd.DataFrame, memories: Mapping[int, int]) -> pd.DataFrame:
    """Effective number of memories, as quartiles over prefixes (figure 7).

    Args:
        memories: d_m of each layer.
    Returns:
        One row per layer: layer, memories, effective_q1, effective_median, effective_q3, participation_median.
    """
    layers = table.groupby("layer")
    summary = pd.DataFrame({"memories": pd.Series(memories)}).rename_axis("layer").loc[list(layers.groups)]
    for name, share in {"q1": 0.25, "median": 0.5, "q3": 0.75}.items():
        summary[f"effective_{name}"] = layers["effective"].quantile(share)
    return summary.assign(participation_median=layers["participation"].median()).reset_index()


def summarize_no_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of prefixes on which no memory predicts the same token as its layer (figure 8).

    Returns:
        One row per reading and layer: layer, reading, prefixes, no_agreement (number of such prefixes), share, low,
        high (Wilson interval). Reading "active": no active memory has top(v_i) = top(y). Reading "all": no memory has
        it.
    """
    readings = [
        shares(table.assign(none=table[agreeing] == 0), "none", "no_agreement", "prefixes").assign(reading=reading)
        for reading, agreeing in READINGS.items()
    ]
    columns = ["layer", "reading", "prefixes", "no_agreement", "share", "low", "high"]
    return pd.concat(readings, ignore_index=True)[columns]


def summarize_cases(table: pd.DataFrame, short_prefix: int) -> pd.DataFrame:
    """Describes the prefixes on which an active memory agrees with its layer (figure 8).

    Args:
        short_prefix: a prefix with fewer words is short.
    Returns:
        One row for all layers (layer -1) and one per layer: layer; cases (prefixes with agreement); stop_word and short
        (how many of them precede a stop word, or are short) with their shares of the cases; base_stop_word_share and
        base_short_share (the same shares of all prefixes). What is about stop words is NaN without a list of them.
    """
    table = table.assign(short=table["words"] < short_prefix)
    rows = []
    for layer, prefixes in [(-1, table), *table.groupby("layer")]:
        cases = prefixes[prefixes["agreeing"] > 0]
        stop, short, n = cases["target_is_stop_word"].sum(min_count=1), int(cases["short"].sum()), len(cases)
        of_cases = (stop, stop / n, short, short / n) if n else (0, np.nan, 0, np.nan)
        rows.append((layer, n, *of_cases, prefixes["target_is_stop_word"].mean(), prefixes["short"].mean()))
    columns = "layer cases stop_word stop_word_share short short_share base_stop_word_share base_short_share"
    return pd.DataFrame(rows, columns=columns.split())
