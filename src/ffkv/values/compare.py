"""What each value predicts, beside what follows its key's triggers."""

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import NONE, Triggers
from ffkv.model.values_file import Values
from ffkv.values.projections import Projections


def first_next(memories: Values, triggers: Triggers) -> np.ndarray:
    """w_i, the token that follows the first trigger of each memory's key [row]; -1: the key has none."""
    return triggers.next_token[triggers.layer_offset[memories.layer] + memories.memory, 0]


def compare(projections: Projections, ranks: np.ndarray, triggers: Triggers) -> pd.DataFrame:
    """One row a memory: what its value predicts beside what follows its triggers. Columns: see docs/architecture.md.

    next_token is w_i, the token after the key's first trigger (-1: the key has none); agrees: top(v_i) = w_i; rank: number
    of tokens with a strictly greater logit than w_i (-1: no trigger); matching: how many of all its triggers are followed
    by top(v_i); first_match: the rank of the first of these (-1: none). Of keys whose negative coefficients are kept, also
    how many negative triggers there are, the token after the first of them (-1: none), and whether it is the bottom token
    of v_i, which a negative coefficient promotes.

    Args:
        projections, ranks: of `project`.
    """
    rows = triggers.layer_offset[projections.layer] + projections.memory
    following, w = triggers.next_token[rows], triggers.next_token[rows, 0]
    matches = (following == projections.top[:, None]) & (following != NONE)
    table = pd.DataFrame(
        {
            "layer": projections.layer,
            "memory": projections.memory,
            "norm": projections.norm,
            "top_token": projections.top,
            "top_probability": np.exp(projections.top_log_probability[:, 0]),
            "tied": projections.tied,
            "bottom_token": projections.bottom,
            "triggers": triggers.count[rows],
            "next_token": w,
            "rank": ranks,
            "agrees": matches[:, 0],
            "matching": matches.sum(1),
            "first_match": np.where(matches.any(1), matches.argmax(1), -1),
        }
    )
    if triggers.negative:
        following = triggers.negative.next_token[rows, 0]
        table["negative_triggers"] = triggers.negative.count[rows]
        table["negative_next_token"] = following
        table["negative_agrees"] = following == projections.bottom
    return table.astype({"matching": np.int32, "first_match": np.int32})
