"""What a change does to the prediction: direct and total effects are read out in the same way."""

from typing import NamedTuple

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


def predict(head: Head, end: Tensor, read_as: int | None) -> Prediction:
    """Returns the prediction from what the head reads [d].

    `read_as`: see `Anatomy.read_as`.
    """
    logits = head.logits(end[None], read_as)
    log_total = _log_total(logits)
    p = (logits.double() - log_total[:, None]).exp().float()
    return Prediction(logits[0], log_total[0], p[0], highest(logits).first[0])


def measure_effects(head: Head, ends: Tensor, base: Prediction, tokens: Tensor, read_as: int | None) -> Effects:
    """Measures what changes do to the prediction, from what the head reads after each of them.

    Log-probabilities are differences of float32 logits, so that an effect below 1e-5 may be rounding.

    Args:
        ends: what the head reads after each change [change, d].
        base: the prediction of the unchanged model.
        tokens: ids whose log-probabilities are wanted [token].
        read_as: as in `predict`.
    """
    log_p = torch.zeros(len(ends), len(tokens), dtype=torch.float64)
    divergence, changed = torch.zeros(len(ends), dtype=torch.float64), torch.zeros(len(ends), dtype=torch.bool)
    never = (
        ~base.logits.isfinite()
    )  # a token that the model never predicts has the logit minus infinity, here and there
    impossible = bool(never.any())
    for rows, logits in head.chunks(ends, read_as):
        growth = _log_total(logits) - base.log_total
        log_p[rows] = ((logits[:, tokens] - base.logits[tokens]).double() - growth[:, None]).cpu()
        changed[rows] = (highest(logits).first != base.first).cpu()
        moved = logits.sub_(base.logits)
        if impossible:
            moved[:, never] = 0
        divergence[rows] = (growth - (moved @ base.p).double()).clamp_min(0).cpu()  # below 0 by rounding alone
    return Effects(log_p, divergence, changed)


def _log_total(logits: Tensor) -> Tensor:
    """Returns the logarithm of the sum of the exponentials of logits [n, vocabulary], float64 [n]."""
    most = logits.amax(-1, keepdim=True)
    return most[:, 0].double() + (logits - most).exp_().sum(-1).double().log()
