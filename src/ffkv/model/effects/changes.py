"""The vectors by which o of a layer changes at one token, and what such a change does to the prediction.

A memory contributes s m_i v_i to the residual stream, with the factor s of a norm after the layer, which is held. All
changes of one token are rows of one array [change, d]. Direct and total effects are read out in the same way.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ffkv.base.batching import to_device
from ffkv.model.head.head import Head


def scaled(m: float, factor: float, scales: Sequence[float]) -> np.ndarray:
    """m_i := c m_i: by which multiple of v_i o changes, for each scale c [scale]. `m`: the coefficient m_i. `factor`: s."""
    return (np.array(scales) - 1) * (factor * m)


def other_memories(own: int, norms: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Draws up to `count` other memories whose values are not 0. `own`: the memory. `norms`: lengths of values [memory]."""
    found = np.flatnonzero((norms > 0) & (np.arange(len(norms)) != own))
    return generator.choice(found, min(count, len(found)), replace=False)


def similar_memories(
    own: int, m: np.ndarray, norms: np.ndarray, difference: float, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Draws other memories whose contributions on a prefix are about as long as that of a memory.

    `own`: the memory. `m`: coefficients of all memories of the layer [memory]. `norms`: lengths of their values [memory].
    `difference`: largest relative difference of |m_j| ‖v_j‖ from |m_i| ‖v_i‖. `count`: how many are drawn at most. Returns
    numbers of the memories, ascending; none if no memory is like it.
    """
    sizes = np.abs(m.astype(np.float64)) * norms
    near = np.abs(sizes - sizes[own]) <= difference * sizes[own]
    near[own] = False
    found = np.flatnonzero(near & (sizes > 0))
    return np.sort(generator.choice(found, min(count, len(found)), replace=False))


def choose_kept(
    m: np.ndarray, norms: np.ndarray, counts: Sequence[int], generators: Sequence[np.random.Generator]
) -> np.ndarray:
    """Chooses the sets of memories that are kept on some prefixes.

    `m`: coefficients [prefix, memory]. `norms`: lengths of the values [memory]. `counts`: sizes of the sets. `generators`: what
    draws memories [prefix]. Returns whether a memory is kept [prefix, set, memory]. The sets: those with the largest
    |m_j| ‖v_j‖, of equal ones the first, for each size; random ones among those with m_j ≠ 0, for each size; and all. Where a
    layer, or its active memories, are fewer than a size, all of them are kept.
    """
    place = np.arange(m.shape[1], dtype=np.int32)
    ranks = np.full((len(m), 2, m.shape[1]), m.shape[1], np.int32)  # by contribution, and as drawn
    order = np.argsort(-np.abs(m.astype(np.float64)) * norms, axis=1, kind="stable")
    np.put_along_axis(ranks[:, 0], order, np.broadcast_to(place, order.shape), axis=1)
    for row, own, generator in zip(ranks[:, 1], m, generators, strict=True):
        drawn = generator.permutation(np.flatnonzero(own))
        row[drawn] = place[: len(drawn)]
    # A memory that is not drawn has a rank above all.
    sizes = np.minimum(counts, m.shape[1])[:, None]
    few = (ranks[:, :, None] < sizes).reshape(len(m), -1, m.shape[1])
    return np.concatenate([few, np.ones_like(few[:, :1])], axis=1)


def keep_few(m: Tensor, mean: Tensor, values: Tensor, factor: Tensor, kept: Tensor) -> Tensor:
    """m_j := its mean for all memories but a few, for each set of those that are kept [prefix, set, d].

    `m`: coefficients [prefix, memory]; `mean`: their means over the corpus [memory]. `values`: v [memory, d]. `factor`: s
    [prefix, 1]. `kept`: whether a memory keeps its coefficient [prefix, set, memory].
    """
    change = (factor * (mean - m))[:, None].masked_fill(kept, 0)
    return (change.flatten(0, 1) @ values).unflatten(0, kept.shape[:2])


class Prediction(NamedTuple):
    """The predictions of the unchanged model on some prefixes."""

    logits: Tensor  # float32 [prefix, vocabulary]
    log_total: Tensor  # logarithm of the sum of their exponentials, float64 [prefix]
    p: Tensor  # probabilities, float64 [prefix, vocabulary]
    mean: Tensor  # mean of the logits by p, float64 [prefix]
    first: Tensor  # top(h), the predicted token [prefix]


class Effects(NamedTuple):
    """What some changes do to the prediction."""

    log_p: Tensor  # change of the log-probability of some tokens, float64, in nats [change, token]
    divergence: Tensor  # KL(p‖p_c) of the new prediction p_c from the old one p, float64, in nats [change]
    changed: Tensor  # whether another token is predicted [change]


def predict(head: Head, ends: Tensor, read_as: int | None) -> Prediction:
    """Returns the predictions from what the head reads after some prefixes [prefix, d].

    `read_as`: see `Anatomy.read_as`.
    """
    logits = torch.cat([rows.clone() for _, rows in head.chunks(ends, read_as)])
    log_total = _log_total(logits)
    p = (logits.double() - log_total[:, None]).exp_()
    return Prediction(logits, log_total, p, torch.linalg.vecdot(_known(logits), p), logits.argmax(-1))


def measure_effects(
    head: Head, ends: Sequence[Tensor], bases: Prediction, tokens: Sequence[Tensor], read_as: int | None
) -> list[Effects]:
    """Measures what changes do to the predictions on some prefixes, from what the head reads after each change.

    Log-probabilities are differences of float32 logits, so that an effect below 1e-5 may be rounding. A GPU is waited for once.

    Args:
        ends: what the head reads after each change [prefix][change, d].
        bases: the predictions of the unchanged model.
        tokens: ids whose log-probabilities are wanted [prefix][token].
        read_as: as in `predict`.
    Returns:
        The effects on each prefix, on the CPU.
    """
    counts, device = [*map(len, ends)], str(bases.p.device)
    prefix = np.repeat(np.arange(len(counts)), counts)  # of each change
    owner = to_device(prefix, device)
    ids = to_device(pad_sequence([each.cpu() for each in tokens], True).numpy(), device)
    old = bases.logits.gather(1, ids)
    found = [old.new_zeros(0, ids.shape[1] + 2, dtype=torch.float64)]
    for rows, logits in head.chunks(torch.cat([*ends]), read_as):  # many at a time: the head reads its weights once
        own, near = owner[rows], slice(prefix[rows.start], prefix[rows.stop - 1] + 1)
        growth = _log_total(logits) - bases.log_total[own]
        log_p = (logits.gather(1, ids[own]) - old[own]).double() - growth[:, None]
        mean = (_known(logits) @ bases.p[near].T).gather(1, own[:, None] - int(near.start))[:, 0]
        divergence = (growth - mean + bases.mean[own]).clamp_min(0)  # below 0 by rounding alone
        changed = logits.argmax(-1) != bases.first[own]
        found.append(torch.cat([log_p, divergence[:, None], changed[:, None]], 1))
    of_prefixes = zip(torch.cat(found).cpu().split(counts), tokens, strict=True)
    return [Effects(own[:, : len(wanted)], own[:, -2], own[:, -1] > 0) for own, wanted in of_prefixes]


def _log_total(logits: Tensor) -> Tensor:
    """Returns the logarithm of the sum of the exponentials of logits [n, vocabulary], float64 [n]."""
    most = logits.amax(-1, keepdim=True)
    return most[:, 0].double() + (logits - most).exp_().sum(-1, dtype=torch.float64).log()


def _known(logits: Tensor) -> Tensor:
    """Returns logits in float64. A token that the model never predicts has minus infinity, and the probability 0."""
    return logits.double().clamp_min_(-1e300)
