"""Summaries of figures 9 to 11: when the residual holds the final prediction, and which part of a layer decides.

`table` has the rows of `BY_PREFIX` of all layers. A function returns the table of its figure (`tables`).
"""

import pandas as pd

from ffkv.base.intervals import shares
from ffkv.branches.refinement.tables import CASES, FIGURE_11


def summarize_residual_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of prefixes whose residual predicts the model's final prediction (figure 9)."""
    matches = table.assign(matches=table["top_residual"] == table["final"])
    tied = (table["tied"] > 0).groupby(table["layer"]).sum().to_numpy()
    return shares(matches, "matches", "matching", "prefixes").assign(tied=tied)


def summarize_breakdown(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of each case by layer (figure 11)."""
    by_case = [
        shares(table.assign(is_case=table["case"] == case), "is_case", "prefixes", "total").assign(case=case)
        for case in CASES
    ]
    return pd.concat(by_case).sort_values("layer", kind="stable", ignore_index=True)[FIGURE_11.names]
