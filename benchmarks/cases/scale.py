"""Costs of more text: memory of the trigger pass, its tokens per second, and the padding in its batches."""

from pathlib import Path

from benchmarks.inputs import GPT2, MEAN, WARM, Shape, draw_lengths
from benchmarks.measure import Comparison, Contender, Measurement, Work, same_work
from ffkv.activations.batches import Batching, blocks
from ffkv.base.batching import batches
from ffkv.base.settings import Triggers

TINY = Shape(1, 16, 32, 500)
MIDDLE = Shape(3, 128, 512, 8192)
TOKENS = (10**4, 10**5, 10**6)
STATE_BYTES = GPT2.layers * GPT2.memories * Triggers().per_key * 2 * 8  # triggers of both signs, of 8 bytes each


def padding(scratch: Path, sentences: int) -> Work:
    """The share of real tokens in ffkv's batches of random sentences."""
    lengths, batching = draw_lengths(sentences), Batching()
    blocks_of_lengths = [lengths[block.start : block.stop] for block in blocks(sentences, batching.block_sentences)]
    cut = [block[rows] for block in blocks_of_lengths for rows in batches(block, batching.tokens)]
    return lambda: {"real": float(lengths.sum() / sum(batch.max() * len(batch) for batch in cut))}


def trigger_pass(shape: Shape, sentences: int, name: str = "ffkv") -> Contender:
    """A function of `benchmarks.cases.triggers` over random sentences."""
    return same_work("benchmarks.cases.triggers", (name,), shape=shape, sentences=sentences)[name]


def spread_of_rates(measurements: dict[str, Measurement]) -> float:
    """The highest number of tokens per second, divided by the lowest."""
    rates = [measurement.extra["tokens"] / measurement.cpu for measurement in measurements.values()]
    return max(rates) / min(rates)


COMPARISONS = [
    Comparison(
        "batches",
        "4,000 sentences of WikiText's lengths",
        same_work(__name__, ("padding",), sentences=4000),
        lambda measurements: measurements["padding"].extra["real"],
        0.95,
        "of the computed tokens are real",
        at_most=False,
        rounds=1,
    ),
    Comparison(
        "memory of a trigger shard",
        f"{GPT2}, 200 sentences",
        {"forward": trigger_pass(GPT2, WARM, "forward"), "ffkv": trigger_pass(GPT2, 200)},
        lambda measurements: measurements["ffkv"].peak / (measurements["forward"].peak + STATE_BYTES),
        1.2,
        "times the peak of model, one batch and state",
        rounds=1,
    ),
    Comparison(
        "memory of a trigger shard",
        f"{TINY}, 1,000,000 sentences over 10,000",
        {"10,000": trigger_pass(TINY, 10**4), "1,000,000": trigger_pass(TINY, 10**6)},
        lambda measurements: measurements["1,000,000"].peak / measurements["10,000"].peak,
        1.2,
        "times the peak",
        rounds=1,
    ),
    Comparison(
        "triggers by tokens",
        f"{MIDDLE}, 10^4, 10^5, 10^6 tokens",
        {f"{tokens:,} tokens": trigger_pass(MIDDLE, int(tokens / MEAN)) for tokens in TOKENS},
        spread_of_rates,
        1.10,
        "is the highest number of tokens per second over the lowest",
        rounds=1,
    ),
]
