"""Composition and refinement of sampled prefixes in one layer, beside the plain matrix products that they need."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.cases.values import multiply, random_values
from benchmarks.inputs import GPT2, Shape, prepare_model
from benchmarks.measure import Comparison, Work, cpu_ratio, digest, same_work
from ffkv.activations.prefix_file import PrefixLayer
from ffkv.branches.composition.measure import describe_memories
from ffkv.branches.refinement.measure import measure_layer
from ffkv.branches.settings import Composition
from ffkv.branches.values.project import project
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions

STATES = {"composition": "y", "refinement": "ryo"}  # states that each branch projects onto the vocabulary
WARM = 16  # prefixes that a contender warms up with


def ffkv(scratch: Path, shape: list[int], prefixes: int, branch: str) -> Work:
    """One layer of a branch. Composition reads the predictions of the values from their projections, made before."""
    head, states = load_head(prepare_model(scratch, shape), "cpu"), random_states(shape, prefixes)
    final = np.random.default_rng(1).integers(0, head.vocabulary, prefixes)
    memories = Shape(*shape).memories
    if branch == "composition":
        values, _ = project(head, random_values(shape, memories), 1, np.full(memories, -1))

    def measure(states: PrefixLayer) -> pd.DataFrame:
        if branch == "composition":
            top_y = predictions(head, states.y, 0).ids
            return describe_memories(states.m, values.top, top_y, values.norm, Composition().mass)
        return measure_layer(head, states, final[: len(states.y)], 0)

    measure(PrefixLayer(*(getattr(states, name)[:WARM] for name in "ryom")))
    return lambda: {"digest": digest(measure(states).select_dtypes("integer").to_numpy(np.int64))}


def product(scratch: Path, shape: list[int], prefixes: int, branch: str) -> Work:
    """The products alone, in chunks of the same size: the states that the branch projects, by the output embedding."""
    states = random_states(shape, prefixes)
    return multiply(prepare_model(scratch, shape), [getattr(states, name) for name in STATES[branch]])


def random_states(shape: list[int], prefixes: int) -> PrefixLayer:
    """Random states and coefficients of one layer."""
    generator, width, memories = np.random.default_rng(2), Shape(*shape).width, Shape(*shape).memories
    r, y, m = (generator.standard_normal((prefixes, size), np.float32) for size in (width, width, memories))
    return PrefixLayer(r, y, r + y, m)


COMPARISONS = [
    Comparison(
        branch,
        f"{GPT2}, 2,000 prefixes, one layer",
        same_work(__name__, ("product", "ffkv"), shape=GPT2, prefixes=2000, branch=branch),
        cpu_ratio("ffkv", "product"),
        1.5,
        "times the CPU time of the plain matrix products",
        rounds=2,
    )
    for branch in STATES
]
