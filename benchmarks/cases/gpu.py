"""What `smollm2` measures, on a GPU: there time passes by the clock, not by the processor."""

from collections.abc import Callable

from benchmarks.cases.smollm2 import BLOCKS, CHANGES, CONTENDERS, KEPT, LAYERS, OF_LAYERS, REMOVED, over_limit
from benchmarks.measure import Comparison, Measurement, same_work

BATCH_TOKENS = 16_384
LIMIT = 600  # documents; these have some 500,000 tokens


def wall_ratio(measurements: dict[str, Measurement]) -> float:
    """Time of the trigger pass divided by that of the bare forward pass."""
    return measurements["triggers"].wall / measurements["forward"].wall


def comparison(
    case: str,
    work: str,
    result: Callable[[dict[str, Measurement]], float],
    target: float,
    unit: str,
    dtype: str = "float32",
) -> Comparison:
    """A row; the rows of a type share the runs of all contenders."""
    names = CONTENDERS if dtype == "float32" else ("forward", "triggers")
    options = {"device": "cuda", "batch_tokens": BATCH_TOKENS, "limit": LIMIT, "dtype": dtype}
    contenders = same_work("benchmarks.cases.smollm2", names, **options)
    case = f"{case} on SmolLM2, {dtype}, on a GPU"
    return Comparison(case, work, contenders, result, target, f"times the time {unit}", rounds=1)


TEXT = f"{LIMIT} documents, both signs, batches of {BATCH_TOKENS:,} tokens"
COMPARISONS = [
    comparison("triggers", TEXT, wall_ratio, 1.12, "of the bare forward pass"),
    comparison("removal", f"{REMOVED} prefixes, {OF_LAYERS}", over_limit("removal", clock="wall"), 1.2, BLOCKS),
    comparison(
        "kept memories",
        f"{KEPT} prefixes, {CHANGES} choices each, {OF_LAYERS}",
        over_limit("keep", len(LAYERS), "wall"),
        1.2,
        f"{BLOCKS}, and of the products with the output embedding",
    ),
    comparison("triggers", TEXT, wall_ratio, 1.12, "of the bare forward pass", "bfloat16"),
]
