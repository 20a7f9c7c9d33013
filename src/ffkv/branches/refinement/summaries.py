"""Summaries of figures 9 to 11: when the residual holds the final prediction, and which part of a layer decides.

`table` has one row per layer and prefix, see `ffkv.branches.refinement.step.measure_refinement`.
"""

import pandas as pd

from ffkv.base.intervals import boxes, shares
from ffkv.branches.refinement.tables import CASES


def summarize_residual_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of prefixes whose residual predicts the model's final prediction (figure 9).

    Returns:
        One row per layer: layer, prefixes, matching, share, low, high (Wilson interval), tied (prefixes on which the
        residual, the FF output or the block output has several tokens with the highest logit).
    """
    matches = table.assign(matches=table["top_residual"] == table["final"])
    tied = (table["tied"] > 0).groupby(table["layer"]).sum().to_numpy()
    return shares(matches, "matches", "matching", "prefixes").assign(tied=tied)


def summarize_final_probability(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the probability that the residual gives to the final prediction.

    One `ffkv.base.intervals.box` per layer (figure 10).
    """
    return boxes(table, "probability", "prefixes")


def summarize_breakdown(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of each case by layer (figure 11).

    Returns:
        One row per layer and case: layer, case, prefixes (number with this case), share, low, high (Wilson interval).
    """
    by_case = [
        shares(table.assign(is_case=table["case"] == case), "is_case", "prefixes", "total").assign(case=case)
        for case in CASES
    ]
    rows = pd.concat(by_case).sort_values("layer", kind="stable", ignore_index=True)
    return rows[["layer", "case", "prefixes", "share", "low", "high"]]
