"""What the removal of a token does to the memory coefficient (paper section 3.2, figure 3)."""

from collections.abc import Callable, Sequence

import numpy as np

REMOVED = ("first", "last", "random")


def removed_positions(lengths: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Which token is removed from each prefix: the first, the last, and a random one that is neither.

    Args:
        lengths: tokens of each prefix, BOS not counted [prefix].
    Returns:
        Positions from 0 [prefix, `REMOVED`]; -1 where a removal is impossible: it would leave nothing (fewer than 2
        tokens), or there is no token between the first and the last (fewer than 3).
    """
    between = generator.integers(1, np.maximum(lengths - 1, 2))
    positions = np.stack([np.zeros_like(lengths), lengths - 1, between], axis=1)
    return np.where(lengths[:, None] >= (2, 2, 3), positions, -1)


def relative_changes(
    prefixes: Sequence[np.ndarray],
    memories: np.ndarray,
    bos: Sequence[int],
    coefficients: Callable[[list[np.ndarray], np.ndarray], np.ndarray],
    generator: np.random.Generator,
) -> np.ndarray:
    """The relative change of a memory's coefficient at the last position when a token of the prefix is removed.

    The coefficient m of the whole prefix is computed in the same pass as the coefficients m' of the shortened ones, so
    that device, type and batching are the same for both.

    Args:
        prefixes: token ids of each trigger example, without BOS [prefix][token].
        memories: whose trigger each one is, as a number in the layer [prefix].
        bos: ids that stay in front whatever is removed.
        coefficients: gives the coefficient of a memory at the last position of each row.
    Returns:
        100 (m' - m) / m in % [prefix, `REMOVED`]; NaN where the removal is impossible or m is not positive.
    """
    lengths = np.array([len(ids) for ids in prefixes], int)
    positions = removed_positions(lengths, generator)
    whole, (prefix, removed) = np.flatnonzero(lengths >= 2), np.nonzero(positions >= 0)
    rows = [prefixes[index] for index in whole]
    rows += [np.delete(prefixes[index], position) for index, position in zip(prefix, positions[prefix, removed])]
    front = np.asarray(bos, np.int32)
    found = coefficients([np.concatenate([front, ids]) for ids in rows], memories[np.concatenate([whole, prefix])])
    m = np.full(len(prefixes), np.nan)
    m[whole] = found[: len(whole)]
    m[~(m > 0)] = np.nan
    shortened = np.full(positions.shape, np.nan)
    shortened[prefix, removed] = found[len(whole) :]
    return 100 * (shortened - m[:, None]) / m[:, None]
