"""What each value predicts, beside one plain product of the values and the output embedding."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.inputs import GPT2, Shape
from benchmarks.measure import Arm, Row, cpu_ratio
from ffkv.model.head.head import CHUNK_BYTES
from ffkv.model.head.head_file import load_head, stored_output_embedding
from ffkv.model.values_file import Values
from ffkv.process.runtime import configure, torch_with
from ffkv.values.projections import Projections
from ffkv.values.step import project

COUNT = 50  # tokens kept at either end
WARM = 64  # values read before the clock runs


def ffkv(scratch: Path, shape: list[int], values: int) -> Callable:
    """Our pass: the highest and the lowest tokens, whether the highest is tied, the rank of one token."""
    configure(1)
    torch_with(1)
    head, memories = load_head(inputs.model_folder(scratch, Shape(*shape)), "cpu"), random_values(Shape(*shape), values)
    w = np.random.default_rng(1).integers(0, head.vocabulary, values)
    project(head, random_values(Shape(*shape), WARM), COUNT, w[:WARM])
    return lambda: (digest(*project(head, memories, COUNT, w)), {})


def product(scratch: Path, shape: list[int], values: int) -> Callable:
    """The product alone, in chunks of the same size, of which nothing is kept."""
    configure(1)
    torch_with(1)
    embedding = torch.from_numpy(stored_output_embedding(inputs.model_folder(scratch, Shape(*shape))))
    return products([torch.from_numpy(random_values(Shape(*shape), values).value)], embedding)


def products(vectors: list[torch.Tensor], embedding: torch.Tensor) -> Callable:
    """The work of multiplying sets of vectors [n, d] with the output embedding [vocabulary, d], once warm."""
    rows = CHUNK_BYTES // (4 * len(embedding))

    def work(some: list[torch.Tensor] = vectors) -> None:
        for each in some:
            for start in range(0, len(each), rows):
                each[start : start + rows] @ embedding.T

    work([vectors[0][:WARM]])
    return work


def random_values(shape: Shape, count: int) -> Values:
    """Random values of the first layer."""
    value = np.random.default_rng(0).standard_normal((count, shape.width), np.float32)
    return Values(np.zeros(count, np.int32), np.arange(count, dtype=np.int32), value, {})


def digest(found: Projections, ranks: np.ndarray) -> str:
    """Of the tokens and of the ranks."""
    return hashlib.sha256(found.top_token.tobytes() + found.bottom.tobytes() + ranks.tobytes()).hexdigest()[:16]


def row(shape: Shape, values: int, target: float) -> Row:
    """So many values over the plain product."""
    same = {"shape": list(shape), "values": values}
    return Row(
        "values",
        f"{shape}, {values:,} values",
        {name: Arm(f"{__name__}:{name}", same) for name in ("product", "ffkv")},
        cpu_ratio("ffkv", "product"),
        target,
        "times the CPU time of one plain matrix product",
        rounds=2,
        note=f"top and bottom {COUNT} and the rank of one token",
    )


ROWS = [row(GPT2, 6144, 1.5)]
