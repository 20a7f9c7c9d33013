"""What a coefficient becomes when a token of its prefix is removed (paper section 3.2, figure 3), and when it is computed in float32.

The steps import torch themselves: it takes a second, and other readers of this module do without it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers
from ffkv.base.files import tables
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.given import Given
from ffkv.branches.keys.key_sample import sample_keys, trigger_prefixes
from ffkv.branches.keys.settings import Keys
from ffkv.branches.keys.tables import PRECISION, PRECISION_KEYS, REMOVAL, REMOVED
from ffkv.corpus.corpus_file import Corpus

# The coefficients of memories, numbered in all layers [row], at the last token of rows of token ids with BOS [row][token].
Coefficients = Callable[[list[np.ndarray], np.ndarray], np.ndarray]


def remove_tokens(given: Given, settings: Keys = Keys(), seed: int = 0) -> pd.DataFrame:
    """Removes the first, the last or a random token from trigger examples of random keys (paper section 3.2, figure 3).

    `settings`: `per_layer` and `removal_triggers` are used. Returns the table `REMOVAL`.
    """
    from ffkv.activations.last_token import can_branch, last_coefficients

    if not given.layers:
        return tables.frame(REMOVAL, [], given.train_identity)
    examples, sentences, loaded = given.triggers, given.train, given.model()
    longest = sentences.ids(int(sentences.lengths.argmax()))
    branching = can_branch(loaded, np.concatenate([sentences.bos, longest]))
    if not branching:
        say(
            "Prefixes without a middle token are read whole: this model gives something else where it reads their beginning once."
        )
    keys = [sample_keys(examples, layer, settings.per_layer, seed) for layer in given.layers]
    memories, positions, prefixes = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for layer, of_layer in zip(given.layers, keys, strict=True):
        own, _, ids = trigger_prefixes(examples, sentences, layer, of_layer, settings.removal_triggers)
        stream = random_stream(seed, Purpose.REMOVED_TOKENS, layer)
        positions.append(choose_positions(np.array([*map(len, ids)], int), stream))
        memories.append(own)
        prefixes += ids

    def coefficients(rows: list[np.ndarray], memories: np.ndarray) -> np.ndarray:
        with progress(len(rows), "prefixes", "token removal") as bar:
            return last_coefficients(loaded, rows, memories, loaded.batch_tokens, branching, bar.update)

    counts = [*map(len, memories)]
    flat = np.concatenate(memories) + np.repeat(examples.layer_offset[given.layers], counts)
    changes = relative_changes(prefixes, flat, sentences.bos, coefficients, np.concatenate(positions))
    of_layers = zip(given.layers, keys, memories, np.split(changes, np.cumsum(counts)))
    rows = [row for of_layer in of_layers for row in removal_rows(*of_layer)]
    return tables.frame(REMOVAL, rows, given.train_identity)


def measure_precision(given: Given, settings: Keys = Keys(), seed: int = 0) -> pd.DataFrame:
    """Computes the coefficients of trigger examples of random keys again in float32, and compares them.

    `settings`: `per_layer` is used, if it is at most 25. Returns the table `PRECISION`.
    """
    from ffkv.activations.last_token import last_coefficients
    from ffkv.model.placement import running_in_float32

    examples, sentences, rows = given.triggers, given.train, []
    loaded, most = given.model(), min(settings.per_layer, PRECISION_KEYS)
    coefficients = partial(last_coefficients, loaded, batch_tokens=loaded.batch_tokens)
    with running_in_float32(loaded.model):
        for layer in given.each_layer("float32"):
            keys = sample_keys(examples, layer, most, seed)
            rows.append(precision_row(layer, *rescore(examples, sentences, layer, keys, coefficients)))
    return PRECISION.frame(rows)


def choose_positions(lengths: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Chooses the tokens to remove from each prefix: the first, the last, and a random one between them.

    `lengths`: number of tokens of each prefix, without BOS [prefix]. Returns positions from 0 [prefix, `REMOVED`]; -1 if a
    removal is impossible. A removal must leave a token, so it needs 2 tokens; a token between the first and the last needs 3.
    """
    between = generator.integers(1, np.maximum(lengths - 1, 2))
    positions = np.stack([np.zeros_like(lengths), lengths - 1, between], axis=1)
    return np.where(lengths[:, None] >= (2, 2, 3), positions, -1)


def relative_changes(
    prefixes: Sequence[np.ndarray],
    memories: np.ndarray,
    bos: Sequence[int],
    coefficients: Coefficients,
    positions: np.ndarray,
) -> np.ndarray:
    """Returns the relative change of a memory's coefficient at the last token when a token of the prefix is removed.

    The coefficient m of the whole prefix is computed together with the coefficients m' of the shortened prefixes: on the
    same device, and with the same number type.

    Args:
        prefixes: token ids of each trigger example, without BOS [prefix][token].
        memories: memory of each prefix, as `coefficients` counts them [prefix].
        bos: ids that stay in front of the prefix in every removal.
        positions: the tokens to remove, see `choose_positions` [prefix, `REMOVED`].
    Returns:
        100 (m' - m) / m in % [prefix, `REMOVED`]; NaN if the removal is impossible or m is not positive.
    """
    whole = np.flatnonzero(np.array([len(ids) for ids in prefixes], int) >= 2)
    prefix, removed = np.nonzero(positions >= 0)
    front = np.asarray(bos, np.int32)
    rows = [np.concatenate([front, prefixes[index]]) for index in whole.tolist()]
    for index, position in zip(prefix.tolist(), positions[prefix, removed].tolist(), strict=True):
        rows.append(np.concatenate([front, prefixes[index][:position], prefixes[index][position + 1 :]]))
    computed = coefficients(rows, memories[np.concatenate([whole, prefix])])
    m = np.full(len(prefixes), np.nan)
    m[whole] = computed[: len(whole)]
    m[~(m > 0)] = np.nan
    shortened = np.full(positions.shape, np.nan)
    shortened[prefix, removed] = computed[len(whole) :]
    return 100 * (shortened - m[:, None]) / m[:, None]


def removal_rows(layer: int, keys: np.ndarray, memories: np.ndarray, changes: np.ndarray) -> list[tuple[Any, ...]]:
    """Returns the rows of `REMOVAL` of a layer: the mean change over the triggers of each key.

    `keys`: memories that were sampled [key]. `memories`: memory of each trigger [trigger]. `changes`: see `relative_changes`
    [trigger, `REMOVED`].
    """
    rows = []
    for memory in keys.tolist():
        for removed, change in zip(REMOVED, changes[memories == memory].T, strict=True):
            used = change[np.isfinite(change)]
            mean = used.mean() if len(used) else np.nan
            rows.append((layer, memory, removed, len(used), len(change) - len(used), mean))
    return rows


def rescore(
    triggers: Triggers, corpus: Corpus, layer: int, keys: np.ndarray, coefficients: Coefficients
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the coefficients of the trigger examples of some keys [key] of a layer again, ordered by key and rank.

    Returns the memory of each trigger example, its stored coefficient, and its new coefficient [trigger].
    """
    memories, stored, prefixes = trigger_prefixes(triggers, corpus, layer, keys, triggers.sentence.shape[1])
    rows = [np.concatenate([corpus.bos, prefix]) for prefix in prefixes]
    return memories, stored, coefficients(rows, triggers.layer_offset[layer] + memories)


def precision_row(layer: int, memories: np.ndarray, coefficients: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Measures how far the coefficients of a layer's trigger examples are from those in float32.

    `memories`: memory of each trigger example, ordered by memory and rank [trigger]. `coefficients`: those of the run,
    positive; `exact`: those in float32, both [trigger]. Returns a row of `PRECISION`. error_median and error_largest are of
    |m - exact| / m. first_stays is the share of keys whose highest trigger example is also the highest in float32.
    upper_half_stays is the share of the trigger examples in the upper half of their key's list that are in the upper half
    in float32, too. A share of nothing is NaN.
    """
    starts = np.flatnonzero(np.diff(memories, prepend=-1))
    errors = np.abs(coefficients - exact) / coefficients
    first_stays, stays, halves = [], 0, 0
    for exact_of_key in np.split(exact, starts)[1:]:
        order, half = np.argsort(-exact_of_key, kind="stable"), len(exact_of_key) // 2
        first_stays.append(order[0] == 0)
        stays += int(np.count_nonzero(order[:half] < half))
        halves += half
    return {
        "layer": layer,
        "keys": len(starts),
        "triggers": len(memories),
        "error_median": np.median(errors) if len(errors) else np.nan,
        "error_largest": errors.max() if len(errors) else np.nan,
        "first_stays": np.mean(first_stays) if first_stays else np.nan,
        "upper_half_stays": stays / halves if halves else np.nan,
    }
