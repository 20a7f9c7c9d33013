"""Token removal in the last layer, beside a forward pass over as many tokens as its rows have."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.inputs import GPT2, Shape, draw_sentences, prepare_model
from benchmarks.measure import Comparison, Work, cpu_ratio, same_work
from ffkv.activations.batches import Batching
from ffkv.activations.last_token import last_coefficients
from ffkv.base.batching import batches, pad
from ffkv.branches.keys.removal import choose_positions, relative_changes
from ffkv.model.checkpoint.load import load

BOS = [0]
BATCH_TOKENS = Batching().tokens
WARM = 10  # prefixes, or rows, that a contender warms up with


def ffkv(scratch: Path, shape: list[int], prefixes: int) -> Work:
    """The work of `ffkv keys removal` in the last layer, with the model in memory."""
    loaded, examples = load(prepare_model(scratch, shape), "cpu"), random_prefixes(shape, prefixes)
    last = loaded.anatomy.layer_offset[-2]

    def coefficients(rows: list[np.ndarray], memories: np.ndarray) -> np.ndarray:
        return last_coefficients(loaded, rows, memories, BATCH_TOKENS)

    def work(examples: list[np.ndarray] = examples) -> None:
        memories = last + np.arange(len(examples)) % Shape(*shape).memories
        relative_changes(examples, memories, BOS, coefficients, draw_positions(examples))

    work(examples[:WARM])
    return work


def forward(scratch: Path, shape: list[int], prefixes: int) -> Work:
    """The bare body over every row: whole prefixes, and those with the first, the last or another token removed."""
    body, examples = load(prepare_model(scratch, shape), "cpu").model.base_model, random_prefixes(shape, prefixes)
    rows: list[np.ndarray] = []

    def collect(rows_of_examples: list[np.ndarray], memories: np.ndarray) -> np.ndarray:
        rows.extend(rows_of_examples)
        return np.ones(len(rows), np.float32)

    relative_changes(examples, np.zeros(len(examples), int), BOS, collect, draw_positions(examples))
    lengths = np.array([len(row) for row in rows])

    def work(count: int = len(rows)) -> None:
        for batch in batches(lengths[:count], BATCH_TOKENS):
            with torch.inference_mode():
                body(input_ids=pad([rows[number] for number in batch]), use_cache=False)

    work(WARM)
    return work


def random_prefixes(shape: list[int], count: int) -> list[np.ndarray]:
    """Prefixes of random sentences, as trigger examples are [prefix][token]."""
    generator = np.random.default_rng(0)
    sentences = draw_sentences(count, Shape(*shape).vocabulary)
    return [sentence[: generator.integers(1, len(sentence))] for sentence in sentences]


def draw_positions(prefixes: Sequence[np.ndarray], seed: int = 0) -> np.ndarray:
    """The tokens to remove from each prefix, see `choose_positions`."""
    return choose_positions(np.array([*map(len, prefixes)]), np.random.default_rng(seed))


COMPARISONS = [
    Comparison(
        "token removal",
        f"{GPT2}, 100 prefixes, last layer",
        same_work(__name__, ("forward", "ffkv"), shape=GPT2, prefixes=100),
        cpu_ratio("ffkv", "forward"),
        1.3,
        "times the CPU time of a forward pass over the same number of tokens",
        rounds=2,
    )
]
