"""What each rule of a comparison has to do."""

from collections.abc import Sequence

from ffkv.comparison.compared import find_memories_by
from ffkv.comparison.same_memories import BY_CHANCE
from ffkv.plan.growth import Amounts
from ffkv.plan.shape import Shape
from ffkv.settings import Comparison


def measure_comparison(
    name: str, comparison: Comparison, per_key: int, models: Sequence[tuple[Shape, int]]
) -> dict[str, Amounts]:
    """How much each rule of a comparison has to do, by `Job.work`.

    Args:
        name: name of the comparison.
        comparison: its settings.
        per_key: number of trigger examples per key.
        models: the shape of the model of each run, and its number of sampled prefixes.
    Raises:
        UserError: the settings ask for memories by number, and the models have different shapes.
    """
    (first, prefixes), *others = models
    found_by = find_memories_by(comparison, [(shape.width, shape.memories) for shape, _ in models], name)
    measured = Amounts()
    if found_by == "by_number":  # beside the first run and the last one, and beside permuted memories
        rows = 2 * len(models) * sum(first.memories)
        chance = 2 * len(models) * comparison.permutations * sum(min(BY_CHANCE, size) for size in first.memories)
        held = 24 * sum(first.memories) * (first.width + per_key)  # of three runs
        measured = Amounts((rows + chance) * (per_key**2 + first.width), memory=held, rows=rows)
    if found_by == "by_correlation":  # with each layer, and with a rotated one
        sizes = [size for shape, _ in others for size in shape.memories]
        sampled = min(comparison.sampled_memories, sum(first.memories))
        work = sum(prefixes * size * (2 * sampled + size) + size**3 for size in sizes)
        measured = Amounts(work, memory=max(16 * prefixes * size + 12 * size**2 for size in sizes))
    report = Amounts(memory=measured.memory / 10)
    return {f"comparison_measure of {name}": measured, f"comparison_report of {name}": report}
