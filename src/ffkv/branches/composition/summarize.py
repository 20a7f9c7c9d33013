"""Summaries of figures 7 and 8: how many memories compose a layer's output, and whether one of them predicts it.

`table` has the rows of `BY_PREFIX` of all layers. A function returns a table of its figure (`tables`).
Those of figure 8 leave out layers whose units add up to the residual stream.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ffkv.base.intervals import boxes, shares
from ffkv.branches.composition.settings import Composition
from ffkv.branches.composition.tables import FIGURE_8_CASES, FIGURE_8_NO_AGREEMENT, READINGS
from ffkv.branches.given import Given


def summarize_composition(given: Given, settings: Composition = Composition()) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups into the tables of figures 7 and 8. `settings`: `short_prefix` is used."""
    table = given.table("by_prefix", given.identity, ("layer", "prefix"))
    memories = {layer.index: layer.memories for layer in given.anatomy.layers}
    return {
        "figure_7_active_memories": boxes(table, "share", "prefixes"),
        "figure_7_effective_number": summarize_effective(table, memories),
        "figure_8_no_agreement": summarize_no_agreement(table),
        "figure_8_agreement_cases": summarize_cases(table, settings.short_prefix),
    }


def summarize_effective(table: pd.DataFrame, memories: Mapping[int, int]) -> pd.DataFrame:
    """Effective number of memories, as quartiles over prefixes (figure 7). `memories`: d_m of each layer."""
    layers = table.groupby("layer")
    summary = pd.DataFrame({"memories": pd.Series(memories)}).rename_axis("layer").loc[list(layers.groups)]
    for name, share in {"q1": 0.25, "median": 0.5, "q3": 0.75}.items():
        summary[f"effective_{name}"] = layers["effective"].quantile(share)
    return summary.assign(participation_median=layers["participation"].median()).reset_index()


def summarize_no_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of prefixes on which no memory predicts the same token as its layer (figure 8).

    Reading "active": no active memory has top(v_i) = top(y). Reading "all": no memory has it.
    """
    table = table[table["agreeing"] >= 0]
    readings = [
        shares(table.assign(none=table[agreeing] == 0), "none", "no_agreement", "prefixes").assign(reading=reading)
        for reading, agreeing in READINGS.items()
    ]
    return pd.concat(readings, ignore_index=True)[FIGURE_8_NO_AGREEMENT.names]


def summarize_cases(table: pd.DataFrame, short_prefix: int) -> pd.DataFrame:
    """Describes the prefixes on which an active memory agrees with its layer (figure 8).

    A prefix with fewer words than `short_prefix` is short. What is about stop words is NaN without a list of them.
    """
    table = table[table["agreeing"] >= 0].assign(short=table["words"] < short_prefix)
    rows = []
    for layer, prefixes in [(-1, table), *table.groupby("layer")]:
        cases = prefixes[prefixes["agreeing"] > 0]
        stop, short, n = cases["target_is_stop_word"].sum(min_count=1), int(cases["short"].sum()), len(cases)
        of_cases = (stop, stop / n, short, short / n) if n else (0, np.nan, 0, np.nan)
        rows.append((layer, n, *of_cases, prefixes["target_is_stop_word"].mean(), prefixes["short"].mean()))
    return pd.DataFrame(rows, columns=FIGURE_8_CASES.names)
