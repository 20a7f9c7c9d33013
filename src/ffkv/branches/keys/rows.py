"""Rows of the tables of the room `keys`: patterns, prefixes and token removals."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ffkv.branches.keys.features import KINDS
from ffkv.branches.keys.key_sample import Examples
from ffkv.branches.keys.patterns import Pattern, categorize
from ffkv.branches.keys.tables import REMOVED


def pattern_rows(layer: int, keys: Sequence[Examples], patterns: Sequence[Sequence[Pattern]]) -> list[dict[str, Any]]:
    """Returns a row of `PATTERNS` per pattern of a layer. Patterns are numbered from 0 within their key.

    Args:
        keys: the prefixes of each key [key].
        patterns: the patterns of each key [key][pattern].
    """
    return [
        {
            "sample": key.sample,
            "layer": layer,
            "memory": key.memory,
            "pattern": number,
            "kind": pattern.feature[0],
            "family": pattern.family,
            "label": describe_pattern(pattern),
            "prefixes": len(pattern.members),
            "chance": pattern.chance,
            "p_value": pattern.p_value,
            "q_value": pattern.q_value,
            "ranks": [key.ranks[member] for member in pattern.members],
        }
        for key, patterns_of_key in zip(keys, patterns, strict=True)
        for number, pattern in enumerate(patterns_of_key)
    ]


def describe_pattern(pattern: Pattern) -> str:
    """Returns a pattern in words, for example: ends with “of”."""
    kind, text = pattern.feature
    return KINDS[kind].phrase.format(text)


def prefix_rows(layer: int, keys: Sequence[Examples], patterns: Sequence[Sequence[Pattern]]) -> list[dict[str, Any]]:
    """Returns a row of `BY_PREFIX` per prefix of a layer's keys, with the prefix's category.

    Arguments: see `pattern_rows`.
    """
    return [
        {"sample": key.sample, "layer": layer, "memory": key.memory, "rank": rank, "category": category}
        for key, patterns_of_key in zip(keys, patterns, strict=True)
        for rank, category in zip(key.ranks, categorize(patterns_of_key, len(key.ranks)), strict=True)
    ]


def removal_rows(layer: int, keys: np.ndarray, memories: np.ndarray, changes: np.ndarray) -> list[tuple[Any, ...]]:
    """Returns a row of `REMOVAL` per key of a layer and removal: the mean change over the key's triggers.

    Args:
        keys: memories that were sampled [key].
        memories: memory of each trigger [trigger].
        changes: relative change in %, NaN if the removal was skipped [trigger, `REMOVED`].
    """
    rows = []
    for memory in keys.tolist():
        for removed, change in zip(REMOVED, changes[memories == memory].T, strict=True):
            used = change[np.isfinite(change)]
            mean = used.mean() if len(used) else np.nan
            rows.append((layer, memory, removed, len(used), len(change) - len(used), mean))
    return rows
