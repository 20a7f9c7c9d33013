"""The vectors by which o of a layer changes at one token, and what such a change does to the prediction.

A memory contributes s m_i v_i to the residual stream, with the factor s of a norm after the layer, which is held. All
changes of one token are rows of one array [change, d]. Direct and total effects are read out in the same way.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.model.head.head import Head
from ffkv.model.head.topk import highest


def scaled(m: float, value: Tensor, factor: float, scales: list[float]) -> Tensor:
    """m_i := c m_i, for each scale c [scale, d].

    Args:
        m: the coefficient m_i.
        value: v_i [d].
        factor: s.
        scales: values of c.
    """
    return torch.outer((value.new_tensor(scales) - 1) * (factor * m), value)


def set_to(m: float, value: Tensor, factor: float, new: float) -> Tensor:
    """m_i := `new` [1, d]. Other arguments: see `scaled`."""
    return (factor * (new - m) * value)[None]


def as_long_as_removed(m: float, size: float, directions: Tensor) -> Tensor:
    """Removes, in place of a contribution s m_i v_i, one of equal length along other vectors [direction, d].

    It has the sign of m_i, so that another memory's value is treated as the memory's own value would be.

    Args:
        m: s m_i.
        size: |s m_i| ‖v_i‖.
        directions: vectors of any length, but not 0 [direction, d].
    """
    return -math.copysign(size, m) * directions / directions.norm(dim=1, keepdim=True)


def similar_memories(
    own: int, m: np.ndarray, norms: np.ndarray, difference: float, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Draws other memories whose contributions on a prefix are about as long as that of a memory.

    Args:
        own: the memory.
        m: coefficients of all memories of the layer [memory].
        norms: lengths of their values [memory].
        difference: largest relative difference of |m_j| ‖v_j‖ from |m_i| ‖v_i‖.
        count: how many are drawn at most.
    Returns:
        Numbers of the memories, ascending; none if no memory is like it.
    """
    sizes = np.abs(m.astype(np.float64)) * norms
    near = np.abs(sizes - sizes[own]) <= difference * sizes[own]
    near[own] = False
    found = np.flatnonzero(near & (sizes > 0))
    return np.sort(generator.choice(found, min(count, len(found)), replace=False))


def keep_few(m: Tensor, mean: Tensor, values: Tensor, factor: float, kept: list[Tensor]) -> Tensor:
    """m_j := its mean for all memories but a few, for each set of those that are kept [set, d].

    Args:
        m: coefficients [memory].
        mean: mean coefficients over the corpus [memory].
        values: v [memory, d].
        factor: s.
        kept: the numbers of the memories that keep their coefficients [set][memory].
    """
    change = (factor * (mean - m)).repeat(len(kept), 1)
    for row, few in zip(change, kept, strict=True):
        row[few] = 0
    return change @ values


def choose_kept(
    m: np.ndarray, norms: np.ndarray, counts: list[int], generator: np.random.Generator
) -> list[tuple[str, int, np.ndarray]]:
    """Chooses the sets of memories that are kept on a prefix.

    Args:
        m: coefficients [memory].
        norms: lengths of the values [memory].
        counts: sizes of the sets.
    Returns:
        Choice ("largest": those with the largest |m_j| ‖v_j‖, or "random": among those with m_j ≠ 0), size, and the
        memories. Where a layer, or its active memories, are fewer than a size, all of them are kept. The last set has
        all memories.
    """
    order = np.argsort(-np.abs(m.astype(np.float64)) * norms, kind="stable")
    drawn = generator.permutation(np.flatnonzero(m))
    sets = [("largest", count, order[:count]) for count in counts]
    sets += [("random", count, drawn[:count]) for count in counts]
    return [*sets, ("all", len(m), order)]


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
    found = []
    for logits in (row[None] for _, rows in head.chunks(ends, read_as) for row in rows):
        log_total = _log_total(logits)
        p = (logits.double() - log_total[:, None]).exp().float()
        found.append(Prediction(logits[0], log_total[0], p[0], highest(logits).first[0]))
    return found


def measure_effects(
    head: Head, ends: Sequence[Tensor], bases: Sequence[Prediction], tokens: Sequence[Tensor], read_as: int | None
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
