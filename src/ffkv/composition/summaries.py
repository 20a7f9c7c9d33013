"""Summaries of figures 7 and 8: how many memories compose a layer's output, and whether one of them predicts it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ffkv.intervals import boxes, shares

READINGS = {"active": "agreeing", "all": "agreeing_all"}  # reading of "no memory agrees": column that counts agreement


def summarize_active(table: pd.DataFrame) -> pd.DataFrame:
    """Share of active memories, as one box per layer (figure 7).

    Args:
        table: by prefix, all layers.
    Returns:
        One row per layer: see `ffkv.intervals.boxes`.
    """
    return boxes(table, "share", "prefixes")


def summarize_effective(table: pd.DataFrame, memories: Mapping[int, int]) -> pd.DataFrame:
    """Effective number of memories, as quartiles over prefixes (figure 7).

    Args:
        table: by prefix, all layers.
        memories: d_m of each layer.
    Returns:
        One row per layer: layer, memories, effective_q1, effective_median, effective_q3, participation_median.
    """
    rows = []
    for layer, prefixes in table.groupby("layer"):
        q1, median, q3 = prefixes["effective"].quantile([0.25, 0.5, 0.75])
        rows.append(
            {
                "layer": layer,
                "memories": memories[layer],
                "effective_q1": q1,
                "effective_median": median,
                "effective_q3": q3,
                "participation_median": prefixes["participation"].median(),
            }
        )
    return pd.DataFrame(rows)


def summarize_no_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Share of prefixes on which no memory predicts the same token as its layer (figure 8).

    Args:
        table: by prefix, all layers.
    Returns:
        One row per reading and layer: layer, reading, prefixes, no_agreement (number of such prefixes), share, low, high
        (Wilson interval). Reading "active": no active memory has top(v_i) = top(y). Reading "all": no memory has it.
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
        table: by prefix, all layers.
        short_prefix: a prefix with fewer words is short.
    Returns:
        One row for all layers (layer -1) and one per layer: layer; cases (prefixes with agreement); stop_word and short
        (how many of them precede a stop word, or are short) with their shares of the cases; base_stop_word_share and
        base_short_share (the same shares of all prefixes).
    """
    table = table.assign(short=table["words"] < short_prefix)
    rows = []
    for layer, prefixes in [(-1, table), *table.groupby("layer")]:
        cases = prefixes[prefixes["agreeing"] > 0]
        stop, short, n = int(cases["target_is_stop_word"].sum()), int(cases["short"].sum()), len(cases)
        rows.append(
            {
                "layer": layer,
                "cases": n,
                "stop_word": stop,
                "stop_word_share": stop / n if n else np.nan,
                "short": short,
                "short_share": short / n if n else np.nan,
                "base_stop_word_share": prefixes["target_is_stop_word"].mean(),
                "base_short_share": prefixes["short"].mean(),
            }
        )
    return pd.DataFrame(rows)
