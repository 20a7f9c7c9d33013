"""Predictions of r, y and o at every position and layer, and the final prediction before and after changes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.model.head.head import Head
from ffkv.model.head.topk import highest, log_probabilities, rank
from ffkv.run.results.memory_statistics import token_texts
from ffkv.run.trace.result import POINTS
from ffkv.run.trace.states import States


def predict_layers(head: Head, states: States, top: int, vocabulary: Sequence[str]) -> tuple[np.ndarray, pd.DataFrame]:
    """Reads the top tokens of r, y and o of every layer at every position. r is o - y.

    Returns their ids, the highest logit first [position, layer, point, rank], and `Trace.predictions`.
    """
    shape = (len(states.y[0]), len(states.y), len(POINTS), top)
    ids, probability = np.zeros(shape, np.int64), np.zeros(shape)
    for layer, (y, o) in enumerate(zip(states.y, states.o, strict=True)):
        vectors = torch.cat([o - y, y, o])  # in the order of `POINTS`
        found = [_top(logits, top) for _, logits in head.chunks(vectors, layer)]
        for into, parts in zip((ids, probability), zip(*found)):
            into[:, layer] = np.concatenate(parts).reshape(len(POINTS), -1, top).swapaxes(0, 1)
    position, at, point, place = np.indices(shape).reshape(4, -1)
    table = {
        "position": position,
        "layer": at,
        "point": np.array(POINTS, object)[point],
        "rank": place,
        "token_id": ids.ravel(),
        "token": token_texts(ids.ravel(), vocabulary),
        "probability": probability.ravel(),
    }
    return ids, pd.DataFrame(table)


def _top(logits: Tensor, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and probabilities of the top tokens of logits [n, vocabulary], each [n, top].

    The first one is top(h).
    """
    extremes = highest(logits, top)
    ids = extremes.ids.clone()
    # Of equal logits the lowest id comes first. It may stand further behind, or be none of those found.
    elsewhere = (ids == extremes.first[:, None]) & (ids[:, :1] != extremes.first[:, None])
    ids = torch.where(elsewhere, ids[:, :1], ids)
    ids[:, 0] = extremes.first
    return ids.cpu().numpy(), log_probabilities(logits, ids).exp().cpu().numpy()


def final_table(logits: Tensor, token: int, top: int, vocabulary: Sequence[str]) -> pd.DataFrame:
    """`Trace.final`, from the logits of the final prediction [vocabulary]."""
    ids = [*dict.fromkeys([*_top(logits[None], top)[0][0].tolist(), token])]
    chosen = torch.tensor(ids, device=logits.device)
    ranks = rank(logits.expand(len(ids), -1), chosen)
    return pd.DataFrame(
        {
            "rank": ranks.cpu().numpy(),
            "token_id": ids,
            "token": token_texts(np.asarray(ids), vocabulary),
            "probability": log_probabilities(logits[None], chosen[None])[0].exp().cpu().numpy(),
        }
    )


def effect_table(
    before: Tensor, after: Tensor, token: int, top: int, vocabulary: Sequence[str]
) -> tuple[pd.DataFrame, float]:
    """`Trace.effect` and `Trace.divergence`, from the logits of the final prediction before and after [vocabulary]."""
    tops = [_top(logits[None], top)[0][0].tolist() for logits in (before, after)]
    ids = np.array([*dict.fromkeys([*tops[0], *tops[1], token])])
    log_p, log_p_after = (logits.double().log_softmax(-1).cpu().numpy() for logits in (before, after))
    p = np.exp(log_p)
    table = pd.DataFrame(
        {
            "token_id": ids,
            "token": token_texts(ids, vocabulary),
            "before": p[ids],
            "after": np.exp(log_p_after[ids]),
            "change": log_p_after[ids] - log_p[ids],
        }
    ).sort_values("before", ascending=False, kind="stable", ignore_index=True)
    possible = p > 0  # a token that the model never predicts adds nothing, also where its logit is minus infinity
    return table, float((p[possible] * (log_p - log_p_after)[possible]).sum())
