"""Memories that are like another one: by their values, their coefficients, and trigger examples that they share.

Each function returns what `Memory.similar` returns, for the memory `row` in flat arrays.
"""

import itertools

import numpy as np
import pandas as pd

from ffkv.corpus.shared_prefixes import prefix_number
from ffkv.run.results.indexes import trigger_places
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import RunFiles

ROWS = 8192  # values that are read at a time
COEFFICIENT_BYTES = 2**25  # of coefficients that are read at a time
ROUNDING = 1e-12  # a sum of squared deviations below it, relative to the squares, is rounding of equal coefficients


def by_value(files: RunFiles, row: int, count: int) -> pd.DataFrame:
    """Finds the memories whose values have the highest cosine with that of memory `row`.

    All values are read once, a block at a time, so that memory does not grow with the model.
    """
    with files.open_values() as file:
        values = file["value"]
        value = values[row] / max(np.linalg.norm(values[row]), np.finfo(np.float32).tiny)
        cosine = np.empty(len(values), np.float32)
        for start in range(0, len(values), ROWS):
            block = values[start : start + ROWS]
            length = np.sqrt(np.einsum("ij,ij->i", block, block))
            cosine[start : start + len(block)] = block @ value / np.maximum(length, np.finfo(np.float32).tiny)
    cosine[row] = -np.inf
    best = _largest(cosine, count)
    return _named(files, best).assign(cosine=cosine[best].astype(float))


def by_coefficients(files: RunFiles, row: int, count: int) -> pd.DataFrame:
    """Finds the memories whose coefficients have the highest correlation with those of memory `row`.

    All are read once, layer by layer as they are stored, a block of prefixes at a time. There are no such memories if the
    coefficient of memory `row` never changes.
    """
    with files.open_sampled_prefixes() as file:
        m = file["m"]
        own = m[:, row].astype(float)
        own -= own.mean()
        own_square = float(own @ own)
        product, total, square = np.zeros((3, m.shape[1]))
        for layer in itertools.starmap(slice, itertools.pairwise(files.anatomy.layer_offset)):
            block = max(1, COEFFICIENT_BYTES // (8 * max(1, layer.stop - layer.start)))
            for start in range(0, len(m), block):
                part = m[start : start + block, layer].astype(float)
                product[layer] += own[start : start + block] @ part
                total[layer] += part.sum(0)
                square[layer] += np.einsum("ij,ij->j", part, part)
        spread = square - total**2 / len(m)
    changes = spread > ROUNDING * square
    if not changes[row]:
        return _named(files, np.zeros(0, int)).assign(correlation=np.zeros(0))
    correlation = np.full(len(product), -np.inf)
    correlation[changes] = product[changes] / np.sqrt(own_square * spread[changes])
    correlation[row] = -np.inf
    best = _largest(correlation, count)
    best = best[np.isfinite(correlation[best])]
    return _named(files, best).assign(correlation=correlation[best])


def by_triggers(files: RunFiles, row: int, count: int) -> pd.DataFrame:
    """Finds the memories that share the most trigger examples (the same prefix) with memory `row`."""
    places = trigger_places(files)
    sentence, position = places.sentence[row], places.position[row]
    exists = sentence >= 0
    shared = np.zeros(len(places.sentence), np.int64)
    own = prefix_number(sentence[exists], position[exists])
    for start in range(0, len(shared), ROWS):
        block = slice(start, start + ROWS)
        candidates = np.isin(places.sentence[block], sentence[exists])  # few are; only these are looked at closely
        memory, rank = np.nonzero(candidates)
        prefixes = prefix_number(places.sentence[block][memory, rank], places.position[block][memory, rank])
        np.add.at(shared, start + memory, np.isin(prefixes, own))
    shared[row] = 0
    best = _largest(shared, count)
    best = best[shared[best] > 0]
    return _named(files, best).assign(shared=shared[best])


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns where the largest values are, the largest first; of equal values the first one first."""
    return np.argsort(-values, kind="stable")[: min(count, len(values) - 1)]


def _named(files: RunFiles, rows: np.ndarray) -> pd.DataFrame:
    layers, memories = files.anatomy.places_of(rows)
    names = [memory_name(*place) for place in zip(layers.tolist(), memories.tolist())]
    return pd.DataFrame({"layer": layers, "memory": memories, "name": names})
