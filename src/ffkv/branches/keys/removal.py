"""The effect of removing a token from a prefix on the memory coefficient (paper section 3.2, figure 3)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ffkv.branches.keys.tables import REMOVED

# The coefficients of memories [row] at the last token of rows of token ids with BOS [row][token].
Coefficients = Callable[[list[np.ndarray], np.ndarray], np.ndarray]


def choose_positions(lengths: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Chooses the tokens to remove from each prefix: the first, the last, and a random one between them.

    Args:
        lengths: number of tokens of each prefix, without BOS [prefix].
    Returns:
        Positions from 0 [prefix, `REMOVED`]; -1 if a removal is impossible. A removal must leave a token, so it needs
        2 tokens; a token between the first and the last needs 3.
    """
    between = generator.integers(1, np.maximum(lengths - 1, 2))
    positions = np.stack([np.zeros_like(lengths), lengths - 1, between], axis=1)
    return np.where(lengths[:, None] >= (2, 2, 3), positions, -1)


def relative_changes(
    prefixes: Sequence[np.ndarray],
    memories: np.ndarray,
    bos: Sequence[int],
    coefficients: Coefficients,
    generator: np.random.Generator,
) -> np.ndarray:
    """Returns the relative change of a memory's coefficient at the last token when a token of the prefix is removed.

    The coefficient m of the whole prefix is computed in the same pass as the coefficients m' of the shortened
    prefixes. So both are computed on the same device, with the same number type and the same batches.

    Args:
        prefixes: token ids of each trigger example, without BOS [prefix][token].
        memories: memory of each prefix, as a number in the layer [prefix].
        bos: ids that stay in front of the prefix in every removal.
        generator: chooses the random tokens.
    Returns:
        100 (m' - m) / m in % [prefix, `REMOVED`]; NaN if the removal is impossible or m is not positive.
    """
    lengths = np.array([len(ids) for ids in prefixes], int)
    positions = choose_positions(lengths, generator)
    whole = np.flatnonzero(lengths >= 2)
    prefix, removed = np.nonzero(positions >= 0)
    rows = [prefixes[index] for index in whole.tolist()]
    removals = zip(prefix.tolist(), positions[prefix, removed].tolist(), strict=True)
    rows += [np.delete(prefixes[index], position) for index, position in removals]
    with_bos = [np.concatenate([np.asarray(bos, np.int32), ids]) for ids in rows]
    computed = coefficients(with_bos, memories[np.concatenate([whole, prefix])])
    m = np.full(len(prefixes), np.nan)
    m[whole] = computed[: len(whole)]
    m[~(m > 0)] = np.nan
    shortened = np.full(positions.shape, np.nan)
    shortened[prefix, removed] = computed[len(whole) :]
    return 100 * (shortened - m[:, None]) / m[:, None]


def removal_rows(layer: int, keys: np.ndarray, memories: np.ndarray, changes: np.ndarray) -> list[tuple[Any, ...]]:
    """Returns the rows of `REMOVAL` of a layer: the mean change over the triggers of each key.

    Args:
        keys: memories that were sampled [key].
        memories: memory of each trigger [trigger].
        changes: see `relative_changes` [trigger, `REMOVED`].
    """
    rows = []
    for memory in keys.tolist():
        for removed, change in zip(REMOVED, changes[memories == memory].T, strict=True):
            used = change[np.isfinite(change)]
            mean = used.mean() if len(used) else np.nan
            rows.append((layer, memory, removed, len(used), len(change) - len(used), mean))
    return rows
