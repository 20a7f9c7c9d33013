"""Highest and lowest logits, ranks and probabilities; the predictions top(h) of many vectors."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.model.head.lens import Lens

GROUP_SIZE = 64  # neighbouring logits of which the extremes are compared first
ROUNDING = 1e-6  # of a logit: what differs less is equal


class Extremes(NamedTuple):
    """The highest logits of many rows, or the lowest."""

    first: Tensor  # id of the most extreme logit, the lowest id of equal ones [n]
    tied: Tensor  # whether several ids share this logit [n]
    ids: Tensor  # ids from the most extreme logit on, equal ones in any order [n, count]


def highest(logits: Tensor, count: int = 1) -> Extremes:
    """Returns the `count` highest of the logits [n, vocabulary] of each row; `first` is top(h)."""
    return _extremes(logits, count, True)


def lowest(logits: Tensor, count: int = 1) -> Extremes:
    """Returns the `count` lowest of the logits [n, vocabulary] of each row."""
    return _extremes(logits, count, False)


def _extremes(logits: Tensor, count: int, largest: bool) -> Extremes:
    outermost, ids = _outermost(logits, min(max(count, 2), logits.shape[-1]), largest)
    first, tied = ids[:, 0].clone(), outermost[:, 0] == outermost[:, min(1, outermost.shape[1] - 1)]
    tied &= logits.shape[-1] > 1
    if tied.any():
        equals = logits[tied]
        first[tied] = equals.argmax(-1) if largest else equals.argmin(-1)
    return Extremes(first, tied, ids[:, :count])


def _outermost(logits: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Returns the logits that `topk` finds, and their ids, each [n, count].

    It compares the extremes of groups first. The `count` outermost logits lie in the `count` outermost groups, because
    each of these has a member at least as far out as all members of the other groups.
    """
    whole = logits.shape[-1] // GROUP_SIZE * GROUP_SIZE
    if whole < 2 * GROUP_SIZE * count:
        return logits.topk(count, -1, largest)
    groups = logits[:, :whole].unflatten(-1, (-1, GROUP_SIZE))
    chosen = (groups.amax(-1) if largest else groups.amin(-1)).topk(count, -1, largest).indices
    ids = (GROUP_SIZE * chosen[:, :, None] + torch.arange(GROUP_SIZE, device=logits.device)).flatten(1)
    rest = torch.arange(whole, logits.shape[-1], device=logits.device).expand(len(ids), -1)
    ids = torch.cat([ids, rest], 1)
    outermost, places = logits.gather(-1, ids).topk(count, -1, largest)
    return outermost, ids.gather(-1, places)


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities [n, count] of some tokens per row [n, count], from logits [n, vocabulary] in float32.

    In nats, float64. Only the exponentials and their sum are in float32. For the given logits the error is below 1e-6,
    whatever constant they contain. The rounding of the logits themselves is larger: some 6e-7 of the largest one.
    """
    highest_logit = logits.amax(-1, keepdim=True)
    total = (logits - highest_logit).exp_().sum(-1, keepdim=True)
    return logits.gather(-1, tokens).double() - highest_logit.double() - total.double().log()


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """Rank [n] of one token per row [n]: the number of tokens with a strictly greater logit; 0 is best."""
    return (logits > logits.gather(-1, tokens[:, None])).sum(-1)


def moments(logits: Tensor, constant: Tensor) -> dict[str, Tensor]:
    """Returns the variance, the skewness and the kurtosis of each row of logits minus a constant row, each [n], by name.

    `logits`: [n, vocabulary]. `constant`: [1, vocabulary]. The kurtosis of a normal distribution is 3. Skewness and
    kurtosis of equal differences are NaN.
    """
    parts = []
    for rows in logits.split(1 if logits.device.type == "cpu" else len(logits)):  # a row stays in the CPU's cache
        centred = rows - constant
        centred -= centred.mean(-1, keepdim=True)
        squares = centred * centred
        sums = (torch.linalg.vecdot(squares, other) for other in (centred, squares))
        parts.append(torch.stack([squares.sum(-1), *sums]) / rows.shape[-1])
    variance, third, fourth = torch.cat(parts, 1)
    variance[variance <= (ROUNDING * constant.abs().amax()) ** 2] = 0
    third, fourth = (torch.where(variance > 0, each, torch.nan) for each in (third, fourth))
    return {"logit_variance": variance, "logit_skewness": third / variance**1.5, "logit_kurtosis": fourth / variance**2}


class Predictions(NamedTuple):
    """The predictions of n vectors."""

    ids: np.ndarray  # top(h), the lowest id of equal logits [n]
    tied: np.ndarray  # whether several ids share the highest logit [n]
    probability: np.ndarray  # of one given token per vector, float32 [n]; [0] if no tokens were given


def predictions(
    lens: Lens, vectors: np.ndarray, layer: int | None, tokens: np.ndarray | None = None, change: bool = False
) -> Predictions:
    """Returns the predictions top(h) of many vectors [n, d] of a layer; None: of outputs of the last block.

    `tokens`: one token per vector [n], if its probability is wanted. `change`: whether vectors are changes of states.
    """
    ids, tied = np.zeros(len(vectors), np.int32), np.zeros(len(vectors), bool)
    probability = np.zeros(0 if tokens is None else len(vectors), np.float32)
    for rows, logits in lens.chunks(torch.from_numpy(vectors), layer, change):
        top = highest(logits)
        ids[rows], tied[rows] = top.first.cpu().numpy(), top.tied.cpu().numpy()
        if tokens is not None:
            chosen = torch.from_numpy(tokens[rows].astype(np.int64)).to(logits.device)
            probability[rows] = log_probabilities(logits, chosen[:, None])[:, 0].exp().cpu().numpy()
    return Predictions(ids, tied, probability)
