"""What each value predicts, beside what follows its key's triggers."""

import numpy as np
import pandas as pd
import torch

from ffkv.activations.data import NONE, Triggers
from ffkv.model.head import Head, rank
from ffkv.model.memories import Memories
from ffkv.values.projections import Projections


def compare(head: Head, memories: Memories, projections: Projections, triggers: Triggers) -> pd.DataFrame:
    """One row a memory: what its value predicts beside what follows its triggers. Columns: see docs/architecture.md.

    next_token is w_i, the token after the key's first trigger (-1: the key has none); agrees: top(v_i) = w_i; rank: number
    of tokens with a strictly greater logit than w_i (-1: no trigger); matching: how many of all its triggers are followed
    by top(v_i); first_match: the rank of the first of these (-1: none). Of keys whose negative coefficients are kept, also
    how many negative triggers there are, the token after the first of them (-1: none), and whether it is the bottom token
    of v_i, which a negative coefficient promotes.
    """
    rows = triggers.layer_offset[memories.layer] + memories.memory
    following, w = triggers.next_token[rows], triggers.next_token[rows, 0]
    matches = (following == projections.top[:, None]) & (following != NONE)
    table = pd.DataFrame(
        {
            "layer": memories.layer,
            "memory": memories.memory,
            "norm": projections.norm,
            "top_token": projections.top,
            "top_probability": np.exp(projections.top_log_probability[:, 0]),
            "tied": projections.tied,
            "bottom_token": projections.bottom,
            "triggers": triggers.count[rows],
            "next_token": w,
            "rank": _ranks(head, memories, w),
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


def _ranks(head: Head, memories: Memories, w: np.ndarray) -> np.ndarray:
    ranks = np.full(len(w), -1, np.int32)
    for layer in np.unique(memories.layer):
        chosen = np.flatnonzero((memories.layer == layer) & (w != NONE))
        for part, logits in head.chunks(torch.from_numpy(memories.value[chosen]), int(layer)):
            tokens = torch.from_numpy(w[chosen[part]].astype(np.int64)).to(logits.device)
            ranks[chosen[part]] = rank(logits, tokens).cpu().numpy()
    return ranks
