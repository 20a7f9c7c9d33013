"""Token removal, beside a forward pass over as many tokens as its rows have."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.inputs import GPT2, Shape
from benchmarks.measure import Arm, Row, cpu_ratio
from ffkv.activations.last_token import last_coefficients
from ffkv.batching import batches, pad
from ffkv.keys.removal import relative_changes
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.process.runtime import configure, torch_with
from ffkv.settings import Activations

BOS = np.array([0], np.int32)


def ready(scratch: Path, shape: list[int], prefixes: int) -> tuple[LoadedModel, list[np.ndarray]]:
    """The model, and prefixes of random sentences, as trigger examples are."""
    configure(1)
    torch_with(1)
    loaded = load(inputs.model_folder(scratch, Shape(*shape)), "cpu")
    generator = np.random.default_rng(0)
    sentences = inputs.sentences_of(prefixes, Shape(*shape).vocabulary)
    return loaded, [sentence[: generator.integers(1, len(sentence))] for sentence in sentences]


def ffkv(scratch: Path, shape: list[int], prefixes: int) -> Callable:
    """What `ffkv keys removal` does in the last layer."""
    loaded, examples = ready(scratch, shape, prefixes)
    last = len(loaded.anatomy.layers) - 1

    def coefficients(rows: list[np.ndarray], memories: np.ndarray) -> np.ndarray:
        return last_coefficients(loaded, last, rows, memories, Activations().batch_tokens)

    def work(examples: list[np.ndarray] = examples) -> None:
        memories = np.arange(len(examples)) % Shape(*shape).memories
        relative_changes(examples, memories, BOS, coefficients, np.random.default_rng(0))

    work(examples[:10])
    return work


def forward(scratch: Path, shape: list[int], prefixes: int) -> Callable:
    """The bare body over every row: whole prefixes, and those with the first, the last, another token removed."""
    loaded, examples = ready(scratch, shape, prefixes)
    rows: list[np.ndarray] = []

    def collect(wanted: list[np.ndarray], memories: np.ndarray) -> np.ndarray:
        rows.extend(wanted)
        return np.ones(len(wanted), np.float32)

    relative_changes(examples, np.zeros(len(examples), int), BOS, collect, np.random.default_rng(0))
    lengths = np.array([len(row) for row in rows])

    def work(count: int = len(rows)) -> None:
        for numbers in batches(lengths[:count], Activations().batch_tokens):
            with torch.inference_mode():
                loaded.model.base_model(input_ids=pad([rows[number] for number in numbers], "cpu"), use_cache=False)

    work(10)
    return work


SAME = {"shape": list(GPT2), "prefixes": 100}
ROWS = [
    Row(
        "token removal",
        f"{GPT2}, 100 prefixes, last layer",
        {name: Arm(f"{__name__}:{name}", SAME) for name in ("forward", "ffkv")},
        cpu_ratio("ffkv", "forward"),
        1.3,
        "times the CPU time of a forward pass over the same number of tokens",
        rounds=2,
    )
]
