"""Projections of values, beside one plain product of the values and the output embedding."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import GPT2, Shape, prepare_model
from benchmarks.measure import Comparison, Work, cpu_ratio, digest, same_work
from ffkv.branches.values.project import project
from ffkv.model.head.head_file import load_head, stored_output_embedding
from ffkv.model.head.lens import CHUNK_BYTES
from ffkv.model.values_file import Values

TOKENS = 50  # highest tokens, and lowest tokens, that are kept per value
WARM = 64  # vectors that a contender warms up with


def ffkv(scratch: Path, shape: list[int], values: int) -> Work:
    """The pass of ffkv: highest and lowest tokens, ties of the highest, and the rank of one token."""
    head = load_head(prepare_model(scratch, shape), "cpu")
    stored, w = random_values(shape, values), np.random.default_rng(1).integers(0, head.vocabulary, values)
    project(head, random_values(shape, min(WARM, values)), TOKENS, w[:WARM])

    def work() -> dict[str, Any]:
        projections, ranks = project(head, stored, TOKENS, w)
        return {"digest": digest(projections.top_token, projections.bottom, ranks)}

    return work


def product(scratch: Path, shape: list[int], values: int) -> Work:
    """The product alone, in chunks of the same size. No result is kept."""
    return multiply(prepare_model(scratch, shape), [random_values(shape, values).value])


def multiply(folder: Path, arrays: list[np.ndarray]) -> Work:
    """The work of multiplying vectors [array][vector, d] by the output embedding [vocabulary, d], in chunks."""
    embedding = torch.from_numpy(stored_output_embedding(folder))
    rows = CHUNK_BYTES // (4 * len(embedding))

    def work(arrays: list[np.ndarray] = arrays) -> None:
        for array in arrays:
            for chunk in torch.from_numpy(array).split(rows):
                chunk @ embedding.T

    work([arrays[0][:WARM]])
    return work


def random_values(shape: list[int], count: int) -> Values:
    """Random values of the first layer."""
    value = np.random.default_rng(0).standard_normal((count, Shape(*shape).width), np.float32)
    return Values(np.zeros(count, np.int32), np.arange(count, dtype=np.int32), value, {})


COMPARISONS = [
    Comparison(
        "values",
        f"{GPT2}, 6,144 values",
        same_work(__name__, ("product", "ffkv"), shape=GPT2, values=6144),
        cpu_ratio("ffkv", "product"),
        1.5,
        "times the CPU time of one plain matrix product",
        rounds=2,
        note=f"top and bottom {TOKENS} and the rank of one token",
    )
]
