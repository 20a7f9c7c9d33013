"""Compares the prediction of each value with the tokens that follow its key's trigger examples (paper section 4)."""

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import NONE, Triggers
from ffkv.branches.values.projections import Projections


def compare(projections: Projections, ranks: np.ndarray, triggers: Triggers) -> pd.DataFrame:
    """Compares values of some layers with the trigger examples of their keys (paper section 4, figures 4 to 6).

    `ranks`: rank of w_i in the projection of v_i [row]; -1 if the key has no trigger example. Returns the table `BY_MEMORY`.
    """
    rows = triggers.layer_offset[projections.layer] + projections.memory
    next_tokens = triggers.next_token[rows]
    matches = (next_tokens == projections.top[:, None]) & (next_tokens != NONE)
    table = pd.DataFrame(
        {
            "layer": projections.layer,
            "memory": projections.memory,
            "norm": projections.norm,
            "contribution": projections.norm * triggers.coefficient[rows].sum(1) / np.maximum(triggers.count[rows], 1),
            "top_token": projections.top,
            "top_probability": np.exp(projections.top_log_probability[:, 0]),
            "tied": projections.tied,
            "bottom_token": projections.bottom,
            "triggers": triggers.count[rows],
            "next_token": next_tokens[:, 0],
            "rank": ranks,
            "agrees": matches[:, 0],
            "matching": matches.sum(1),
            "first_match": np.where(matches.any(1), matches.argmax(1), -1),
        }
    )
    if triggers.negative:
        table["negative_triggers"] = triggers.negative.count[rows]
        table["negative_next_token"] = triggers.negative.next_token[rows, 0]
        table["negative_agrees"] = table["negative_next_token"] == table["bottom_token"]
    return table.astype({"matching": np.int32, "first_match": np.int32})
