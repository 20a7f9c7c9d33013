"""Judges the map of a layer, and reads states through it."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from ffkv.activations.prefix_file import PrefixLayer
from ffkv.branches.translation.ridge import Ridge
from ffkv.model.head.head import CHUNK_BYTES, Head
from ffkv.model.head.topk import predictions


def explained_variance(target: np.ndarray, reading: np.ndarray) -> float:
    """Returns 1 - Σ‖target - reading‖² / Σ‖target - its mean‖², of vectors [n, d] each; NaN if targets are all alike."""
    total = ((target - target.mean(0, dtype=np.float64)) ** 2).sum()
    return float(1 - ((target - reading.astype(np.float64)) ** 2).sum() / total) if total else float("nan")


def apply(ridge: Ridge, x: np.ndarray) -> np.ndarray:
    """Returns x W + b of states [n, d]."""
    return x @ ridge.weight + ridge.offset


def divergences(
    head: Head, final: np.ndarray, read_as: int | None, readers: Mapping[str, Head], states: np.ndarray, layer: int
) -> dict[str, np.ndarray]:
    """Returns KL(p‖q) in nats on some prefixes, by reader [prefix].

    p: what the head reads of `final` as a vector of `read_as`. q: what a reader makes of states of the layer. Both are
    [prefix, d].
    """
    known, read = torch.from_numpy(final), torch.from_numpy(states)
    found, step = {name: np.zeros(len(known)) for name in readers}, max(1, CHUNK_BYTES // (8 * head.vocabulary))
    for start in range(0, len(known), step):
        part = slice(start, start + step)
        log_p = head.logits(known[part], read_as).double().log_softmax(-1)
        p = log_p.exp()
        for name, reader in readers.items():
            log_q = reader.logits(read[part], layer).double().log_softmax(-1)
            found[name][part] = (p * (log_p - log_q)).sum(-1).clamp(min=0).cpu().numpy()
    return found


def read_prefixes(
    states: PrefixLayer, final: np.ndarray, top_v: np.ndarray, of_state: Head, of_change: Head
) -> pd.DataFrame:
    """Reads r and y of the sampled prefixes of one layer, and counts the memories that predict what y predicts.

    `final`: the model's prediction [prefix]. `top_v`: top(v_i) in the same reading [memory]. `of_state`: what reads r.
    `of_change`: what reads y. Returns the columns of `BY_PREFIX`, but for reading, layer and prefix.
    """
    r, y = predictions(of_state, states.r, None, final), predictions(of_change, states.y, None)
    agrees = top_v[None] == y.ids[:, None]
    return pd.DataFrame(
        {
            "top_residual": r.ids,
            "top_ffn": y.ids,
            "final": final,
            "probability": r.probability,
            "tied": r.tied.astype(np.int8) + y.tied,
            "agreeing": ((states.m > 0) & agrees).sum(1).astype(np.int32),
            "agreeing_all": agrees.sum(1).astype(np.int32),
        }
    )
