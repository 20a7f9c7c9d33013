"""Cosines of what memories read and write, beside those of permuted memories, and the types that follow from them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.multiple_tests import q_values
from ffkv.branches.roles.tables import ATYPICAL, TYPES

PERMUTATIONS = 20  # so that the smallest p-value is below 0.05 of a layer's memories
BAND = (0.025, 0.975)  # of permuted memories


class Cosines(NamedTuple):
    """Cosines of two vectors of each memory of a layer."""

    own: np.ndarray  # float32 [memory]; NaN where a vector is not known or has no length
    p: np.ndarray  # two-sided p-value among permuted memories [memory]; NaN where there is none
    q: np.ndarray  # adjusted for the memories of the layer (Benjamini-Hochberg)
    null_mean: float  # of permuted memories
    null_low: float  # lower end of their middle 95 %
    null_high: float

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `BY_MEMORY`, by the ends of their names."""
        return {"_cosine": self.own, "_p": self.p, "_q": self.q}


def compare(a: Tensor, b: Tensor, generator: np.random.Generator) -> Cosines:
    """Compares two vectors of each memory, a_i and b_i [memory, d], with pairs of different memories, a_i and b_j.

    The memories are put into a random order. Each a_i meets the b_j of the next 20 memories of this order, or of all others
    if there are fewer. These cosines of all memories together are the null: the p-value is twice the smaller share of
    them at or beyond the own cosine, with the own one among them.
    """
    a, b = (vectors / vectors.norm(dim=1, keepdim=True) for vectors in (a, b))
    own = (a * b).sum(1).numpy()
    p, q = (np.full(len(own), np.nan) for _ in range(2))
    known = np.flatnonzero(np.isfinite(own))
    if len(known) < 2:
        return Cosines(own, p, q, *[np.nan] * 3)
    order = torch.from_numpy(generator.permutation(known))
    a, b = a[order], torch.cat([b[order]] * 2)
    shifts = range(1, min(PERMUTATIONS, len(known) - 1) + 1)
    null = torch.cat([torch.linalg.vecdot(a, b[shift : shift + len(a)]) for shift in shifts]).sort().values.numpy()
    below = np.searchsorted(null, own[known], side="right")
    above = len(null) - np.searchsorted(null, own[known])
    p[known] = np.minimum(1, 2 * (1 + np.minimum(below, above)) / (1 + len(null)))
    q[known] = q_values(p[known], len(known))
    return Cosines(own, p, q, float(null.mean()), *np.quantile(null, BAND).tolist())


def name_types(threshold: float, key_value: np.ndarray, gate_value: np.ndarray, gate_up: np.ndarray) -> np.ndarray:
    """Names the type of each memory [memory] by its three cosines [memory] (Gerstner and Schütze 2025, section 3).

    A cosine counts as 1 above the threshold, as -1 below its negative, else as 0. Without a gate, the cosine of key and value
    alone decides. "" where the cosines that decide are not known.
    """
    cosines = (key_value, gate_value, gate_up)
    kv, gv, gu = (np.where(np.abs(cosine) > threshold, np.sign(cosine), 0) for cosine in cosines)
    gated = np.isfinite(gate_value)
    enriching, conditional, proportional, orthogonal, conditionally_depleting, depleting = TYPES
    along = [kv > 0, kv < 0]
    typed = np.select(
        [*(side & ((gv != 0) | ~gated) for side in along), *along, gated & (gv != 0)],
        [enriching, depleting, conditional, conditionally_depleting, proportional],
        orthogonal,
    ).astype(object)
    atypical = gated & (gu != kv * gv) & ((kv != 0) | (gv != 0))
    typed[atypical] = ATYPICAL + typed[atypical]
    typed[~np.isfinite(key_value)] = ""
    return typed
