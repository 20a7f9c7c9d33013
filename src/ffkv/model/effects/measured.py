"""What a change does to the prediction: direct and total effects are read out in the same way."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.model.head.head import Head
from ffkv.model.head.topk import highest


class Prediction(NamedTuple):
    """The prediction of the unchanged model on a prefix."""

    logits: Tensor  # float32 [vocabulary]
    log_total: Tensor  # logarithm of the sum of their exponentials, float64
    p: Tensor  # probabilities, float32 [vocabulary]
    first: Tensor  # top(h), the predicted token


class Effects(NamedTuple):
    """What some changes do to the prediction."""

    log_p: Tensor  # change of the log-probability of some tokens, float64, in nats [change, token]
    divergence: Tensor  # KL(p‖p_c) of the new prediction p_c from the old one p, float64, in nats [change]
    changed: Tensor  # whether another token is predicted [change]


def predict(head: Head, ends: Tensor, read_as: int | None) -> list[Prediction]:
    """Returns the predictions from what the head reads after some prefixes [prefix, d].

    `read_as`: see `Anatomy.read_as`.
    """
    return [_prediction(logits[None]) for _, rows in head.chunks(ends, read_as) for logits in rows]


def _prediction(logits: Tensor) -> Prediction:
    """Returns the prediction from logits [1, vocabulary]."""
    log_total = _log_total(logits)
    p = (logits.double() - log_total[:, None]).exp().float()
    return Prediction(logits[0], log_total[0], p[0], highest(logits).first[0])


def measure_effects(
    head: Head,
    ends: Sequence[Tensor],
    bases: Sequence[Prediction],
    tokens: Sequence[Tensor],
    read_as: int | None,
) -> list[Effects]:
    """Measures what changes do to the predictions on some prefixes, from what the head reads after each change.

    Log-probabilities are differences of float32 logits, so that an effect below 1e-5 may be rounding.

    Args:
        ends: what the head reads after each change [prefix][change, d].
        bases: the predictions of the unchanged model [prefix].
        tokens: ids whose log-probabilities are wanted [prefix][token].
        read_as: as in `predict`.
    """
    found = [
        Effects(
            torch.zeros(len(own), len(wanted), dtype=torch.float64),
            torch.zeros(len(own), dtype=torch.float64),
            torch.zeros(len(own), dtype=torch.bool),
        )
        for own, wanted in zip(ends, tokens, strict=True)
    ]
    first = np.cumsum([0, *map(len, ends)])  # change of each prefix, among those of all
    for rows, logits in head.chunks(torch.cat([*ends]), read_as):  # many at a time: the head reads its weights once
        for n in range(np.searchsorted(first, rows.start, "right") - 1, np.searchsorted(first, rows.stop)):
            start, stop = max(rows.start, first[n]), min(rows.stop, first[n + 1])
            measured = _effects_of(logits[start - rows.start : stop - rows.start], bases[n], tokens[n])
            for whole, part in zip(found[n], measured, strict=True):
                whole[start - first[n] : stop - first[n]] = part
    return found


def _effects_of(logits: Tensor, base: Prediction, tokens: Tensor) -> Effects:
    """Returns what changes do, from the logits after each of them [change, vocabulary], which it overwrites."""
    growth = _log_total(logits) - base.log_total
    log_p = (logits[:, tokens] - base.logits[tokens]).double() - growth[:, None]
    changed = highest(logits).first != base.first
    moved = logits.sub_(base.logits)
    # A token that the model never predicts has the logit minus infinity, here and there.
    moved.masked_fill_(~base.logits.isfinite(), 0)
    divergence = (growth - (moved @ base.p).double()).clamp_min(0)  # below 0 by rounding alone
    return Effects(log_p, divergence, changed)


def _log_total(logits: Tensor) -> Tensor:
    """Returns the logarithm of the sum of the exponentials of logits [n, vocabulary], float64 [n]."""
    most = logits.amax(-1, keepdim=True)
    return most[:, 0].double() + (logits - most).exp_().sum(-1).double().log()
