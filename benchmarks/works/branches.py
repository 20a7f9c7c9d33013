"""Composition and refinement of sampled prefixes, beside the plain matrix products that they need."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks import inputs
from benchmarks.inputs import GPT2, Shape
from benchmarks.measure import Arm, Row, cpu_ratio
from benchmarks.works.values import products, random_values
from ffkv.activations.prefix_file import PrefixLayer
from ffkv.composition import step as composition_step
from ffkv.model.head.head_file import load_head, stored_output_embedding
from ffkv.process.runtime import configure, torch_with
from ffkv.refinement import step as refinement_step
from ffkv.settings import Composition
from ffkv.values.step import project

WARM = 16  # prefixes read before the clock runs


def composition(scratch: Path, shape: list[int], prefixes: int) -> Callable:
    """What `ffkv composition measure` does with one layer: top(y), and the coefficients of every prefix."""
    head, at, form, mass = *_ready(scratch, shape, prefixes), Composition().mass
    stored = random_values(form, form.memories)
    values, _ = project(head, stored, 1, np.full(len(stored.value), -1))
    composition_step.measure_layer(head, _first(at), values, 0, mass)
    return lambda: (_digest(composition_step.measure_layer(head, at, values, 0, mass)), {})


def refinement(scratch: Path, shape: list[int], prefixes: int) -> Callable:
    """What `ffkv refinement measure` does with one layer: r, y and o, and a probability."""
    head, at, form = _ready(scratch, shape, prefixes)
    final = np.random.default_rng(1).integers(0, form.vocabulary, prefixes)
    refinement_step.measure_layer(head, _first(at), final[:WARM], 0)
    return lambda: (_digest(refinement_step.measure_layer(head, at, final, 0)), {})


def product(scratch: Path, shape: list[int], prefixes: int, quantities: str) -> Callable:
    """The products alone, in the same chunks: of states of the prefixes ("r", "y", "o")."""
    _, at, form = _ready(scratch, shape, prefixes)
    embedding = torch.from_numpy(stored_output_embedding(inputs.model_folder(scratch, form)))
    vectors = {"r": at.r, "y": at.y, "o": at.o}
    return products([torch.from_numpy(vectors[name]) for name in quantities], embedding)


def _ready(scratch: Path, shape: list[int], prefixes: int):
    """The head, random states and coefficients of one layer, and the shape."""
    configure(1)
    torch_with(1)
    form, generator = Shape(*shape), np.random.default_rng(2)
    r, y = (generator.standard_normal((prefixes, form.width), np.float32) for _ in range(2))
    m = generator.standard_normal((prefixes, form.memories), np.float32)
    return load_head(inputs.model_folder(scratch, form), "cpu"), PrefixLayer(r, r, y, r + y, m), form


def _first(at: PrefixLayer) -> PrefixLayer:
    return PrefixLayer(*(part[:WARM] for part in (at.r, at.x, at.y, at.o, at.m)))


def _digest(found: pd.DataFrame) -> str:
    whole = found.select_dtypes("integer").to_numpy(np.int64)
    return hashlib.sha256(whole.tobytes()).hexdigest()[:16]


def row(name: str, quantities: str, shape: Shape, prefixes: int, target: float) -> Row:
    """One layer of so many prefixes over the products that it needs."""
    same = {"shape": list(shape), "prefixes": prefixes}
    return Row(
        name,
        f"{shape}, {prefixes:,} prefixes, one layer",
        {
            "product": Arm(f"{__name__}:product", {**same, "quantities": quantities}),
            "ffkv": Arm(f"{__name__}:{name}", same),
        },
        cpu_ratio("ffkv", "product"),
        target,
        "times the CPU time of the plain matrix products",
        rounds=2,
    )


ROWS = [row("composition", "y", GPT2, 2000, 1.5), row("refinement", "ryo", GPT2, 2000, 1.5)]
