"""The predictions of the head for many vectors: top(h), ties, probabilities."""

from typing import NamedTuple

import numpy as np
import torch

from ffkv.model.head.head import Head
from ffkv.model.head.topk import highest, log_probabilities


class Predictions(NamedTuple):
    """The predictions of n vectors."""

    ids: np.ndarray  # top(h), the lowest id of equal logits [n]
    tied: np.ndarray  # whether several ids share the highest logit [n]
    probability: np.ndarray  # of one given token per vector, float32 [n]; [0] if no tokens were given


def predictions(head: Head, vectors: np.ndarray, layer: int | None, tokens: np.ndarray | None = None) -> Predictions:
    """Returns the predictions top(h) of many vectors [n, d] of a layer; None: of outputs of the last block.

    `tokens`: one token per vector [n], if its probability is wanted.
    """
    ids, tied = np.zeros(len(vectors), np.int32), np.zeros(len(vectors), bool)
    probability = np.zeros(0 if tokens is None else len(vectors), np.float32)
    for rows, logits in head.chunks(torch.from_numpy(vectors), layer):
        top = highest(logits)
        ids[rows], tied[rows] = top.first.cpu().numpy(), top.tied.cpu().numpy()
        if tokens is not None:
            chosen = torch.from_numpy(tokens[rows].astype(np.int64)).to(logits.device)
            probability[rows] = log_probabilities(logits, chosen[:, None])[:, 0].exp().cpu().numpy()
    return Predictions(ids, tied, probability)
