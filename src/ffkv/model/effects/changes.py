"""The vectors by which interventions and their controls change o of a layer at one token.

A memory contributes s m_i v_i to the residual stream, with the factor s of a norm after the layer, which is held. All
changes of one token are rows of one array [change, d].
"""

import math

import numpy as np
import torch
from torch import Tensor


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
