"""What more text costs: memory and tokens a second of the trigger pass, and how much of its batches is padding."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import inputs
from benchmarks.inputs import GPT2, Shape
from benchmarks.measure import Arm, Row, Sample
from benchmarks.works import triggers
from ffkv.activations.batches import blocks
from ffkv.batching import batches
from ffkv.settings import Activations, Triggers

TINY = Shape(1, 16, 32, 500)
MIDDLE = Shape(3, 128, 512, 8192)
TOKENS = (10**4, 10**5, 10**6)
SIDES, ENTRY = 2, 8  # triggers are kept of both signs, in 8 bytes each


def model_and_batch(scratch: Path, shape: list[int]) -> Callable:
    """The model in memory and one batch through its body, nothing else: what no pass can do without."""
    return triggers.forward(scratch, shape, inputs.WARM)


def shard(scratch: Path, shape: list[int], sentences: int) -> Callable:
    """A whole pass, as `ffkv triggers` makes it; says how many bytes its state has, and how many tokens there were."""
    work = triggers.ffkv(scratch, shape, sentences)
    state = Shape(*shape).layers * Shape(*shape).memories * Triggers().per_key * SIDES * ENTRY

    def measured_pass() -> tuple[str, dict[str, float]]:
        found, _ = work()
        return found, {"state": state, "tokens": int(inputs.lengths(sentences).sum())}

    return measured_pass


def padding(scratch: Path, sentences: int) -> Callable:
    """Share of real tokens in our batches, and in batches of the same size of sentences in their own order."""
    lengths, cut = inputs.lengths(sentences), Activations()
    ours = [
        lengths[block.start : block.stop][rows]
        for block in blocks(sentences, cut.block_sentences)
        for rows in batches(lengths[block.start : block.stop], cut.batch_tokens)
    ]
    unsorted = np.array_split(lengths, len(ours))

    def real(cells: list[np.ndarray]) -> float:
        return sum(batch.sum() for batch in cells) / sum(batch.max() * len(batch) for batch in cells)

    return lambda: ("", {"sorted": float(real(ours)), "unsorted": float(real(unsorted))})


def beside_its_limit(samples: dict[str, Sample]) -> float:
    """Peak of a pass over model, one batch and state."""
    return samples["ffkv"].peak / (samples["model and one batch"].peak + samples["ffkv"].extra["state"])


def spread_of_rates(samples: dict[str, Sample]) -> float:
    """The highest number of tokens a second over the lowest."""
    rates = [sample.extra["tokens"] / sample.cpu for sample in samples.values()]
    return max(rates) / min(rates)


def pass_over(shape: Shape, sentences: int) -> Arm:
    """A pass over so many sentences."""
    return Arm(f"{__name__}:shard", {"shape": list(shape), "sentences": sentences})


ROWS = [
    Row(
        "batches",
        "4,000 sentences of WikiText's lengths",
        {"ffkv": Arm(f"{__name__}:padding", {"sentences": 4000})},
        lambda samples: samples["ffkv"].extra["sorted"],
        0.95,
        "of the computed tokens are real",
        at_most=False,
        rounds=1,
    ),
    Row(
        "memory of a trigger shard",
        f"{GPT2}, 200 sentences",
        {
            "model and one batch": Arm(f"{__name__}:model_and_batch", {"shape": list(GPT2)}),
            "ffkv": pass_over(GPT2, 200),
        },
        beside_its_limit,
        1.2,
        "times the peak of model, one batch and state",
        rounds=1,
    ),
    Row(
        "memory of a trigger shard",
        f"{TINY}, 1,000,000 sentences over 10,000",
        {"10,000": pass_over(TINY, 10**4), "1,000,000": pass_over(TINY, 10**6)},
        lambda samples: samples["1,000,000"].peak / samples["10,000"].peak,
        1.2,
        "times the peak",
        rounds=1,
    ),
    Row(
        "triggers by tokens",
        f"{MIDDLE}, 10^4, 10^5, 10^6 tokens",
        {f"{tokens:,} tokens": pass_over(MIDDLE, int(tokens / inputs.MEAN)) for tokens in TOKENS},
        spread_of_rates,
        1.10,
        "times the lowest rate is the highest",
        rounds=1,
    ),
]
