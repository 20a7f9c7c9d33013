"""Sampled prefixes of the detector, worked out by hand, and the projections of its values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from support import WORDS

from ffkv.base.files import hdf5
from ffkv.branches.values.project import project
from ffkv.branches.values.projections import write_projections
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values

# Memories of each layer: the word that a key detects, the word that its value writes, the weight. Memory 3 is dead.
MEMORIES = [[("a", "b", 1.0), ("b", "c", 0.1), ("c", "c", 1.0)], [("d", "e", 1.0), ("d", "f", 0.5), ("e", "a", 1.0)]]


def one_hot(word: str) -> np.ndarray:
    return np.eye(17, dtype=np.float32)[WORDS.index(word)]


def write_prefixes(path: Path, anatomy: Anatomy, last_words: str, extra: str = "", **attributes) -> Path:
    """Writes `sampled_prefixes.h5`: one prefix of one token per sentence. Each last word appears in one letter.

    Args:
        extra: if it has letters, the model's output comes from a later block that returns these words.
    """
    n = len(last_words)
    r = np.zeros((2, n, 17), np.float32)
    y, m = np.zeros_like(r), np.zeros((n, 8), np.float32)
    for layer, memories in enumerate(MEMORIES):
        r[layer] = [one_hot(word) for word in last_words] if layer == 0 else r[0] + y[0]
        for prefix, word in enumerate(last_words):
            for memory, (detects, writes, weight) in enumerate(memories):
                if detects == word:
                    m[prefix, 4 * layer + memory] = 4
                    y[layer, prefix] += 4 * weight * one_hot(writes)
    with hdf5.create(path, "sampled prefixes", {**anatomy.identity, **attributes}) as file:
        file["layer_offset"], file["m"] = np.array([0, 4, 8]), m
        file["r"], file["y"], file["o"] = r, y, r + y
        file["sentence"], file["position"] = np.arange(n, dtype=np.int32), np.ones(n, np.int32)
        if extra:
            file["end"] = np.stack([one_hot(word) for word in extra])
    return path


def write_detector_projections(path: Path, detector: Path, layers: range = range(2), **attributes) -> Path:
    """Writes `values/projections/<group>.h5` of some layers of the detector."""
    values = read_values(detector.parent / "values.h5", layers)
    projections, _ = project(load_head(detector, "cpu"), values, 3, np.full(len(values.value), -1))
    identity = read_anatomy(detector).identity
    write_projections(path, replace(projections, attributes={**identity, "projection": "head", **attributes}))
    return path
