"""What comparisons take: a block of each of their real functions runs on random numbers of the sizes of the runs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.comparison.compared import find_memories_by
from ffkv.comparison.comparison_file import Measured
from ffkv.comparison.curves import difference_of_medians
from ffkv.comparison.drawings import draw_curves
from ffkv.comparison.matching import highest_correlation, random_rotation, standardise
from ffkv.comparison.same_memories import BY_CHANCE, Memories, compare_memories
from ffkv.plan.shape import Shape
from ffkv.plan.trial import stop_watch
from ffkv.report import drawing
from ffkv.report.registry import FIGURES, load_figure
from ffkv.settings import Comparison
from ffkv.streams import Purpose, random_stream

MEMORIES, COLUMNS, PREFIXES, EXAMPLES = 512, 256, 2000, 200  # of a block, at most
FIGURE = "figure_9"  # is drawn once
PAGE_BYTES, ROW_BYTES = 60_000, 15  # of a drawing with its data; of a row of `by_memory.parquet`


class Cost(NamedTuple):
    """What a job of a comparison takes beyond its start: seconds, bytes at its peak, bytes of its outputs."""

    seconds: float
    memory: float
    written: float


def measure_comparison(
    name: str, comparison: Comparison, per_key: int, models: Sequence[tuple[Shape, int]]
) -> dict[str, Cost]:
    """What the rules of a comparison take, by rule, in the order in which they run.

    Args:
        name: name of the comparison.
        comparison: its settings.
        per_key: number of trigger examples per key.
        models: the shape of the model of each run, and the number of sampled prefixes.
    Raises:
        UserError: the settings ask for memories by number, and the models have different shapes.
    """
    shapes, prefixes = [shape for shape, _ in models], max(count for _, count in models)
    found_by = find_memories_by(comparison, [(shape.width, shape.memories) for shape in shapes], name)
    curves = [curve for name in FIGURES for curve in load_figure(name).curves]
    medians = sum(curve.units is not None and curve.units.median for curve in curves)
    seconds = _bootstrap_seconds(prefixes) * medians * sum(len(shape.memories) for shape in shapes[1:])
    memory = written = 0.0
    if found_by == "by_number":
        rows = 2 * len(shapes) * sum(shapes[0].memories)
        chance = 2 * len(shapes) * comparison.permutations * sum(min(BY_CHANCE, size) for size in shapes[0].memories)
        seconds += (rows + chance) * _row_seconds(per_key, shapes[0].width)
        memory = 3 * sum(shapes[0].memories) * (8 * shapes[0].width + 8 * per_key)
        written = ROW_BYTES * rows
    if found_by == "by_correlation":
        seconds += sum(_match_seconds(comparison.sampled_memories, prefixes, shape.memories) for shape in shapes[1:])
        memory = max(16.0 * prefixes * size + 12 * size**2 for shape in shapes for size in shape.memories)
    figures = sum(bool(load_figure(name).curves) for name in FIGURES)
    drawn = figures * (2 if comparison.axis else 1) + 3
    return {
        "comparison_measure": Cost(seconds, memory, written),
        "comparison_report": Cost(drawn * _draw_seconds(comparison, shapes), 2 * written, PAGE_BYTES * drawn),
    }


def _seconds(run: Callable[[], object]) -> float:
    """Seconds of the second time: the first one also takes what is only done once."""
    run()
    seconds = stop_watch()
    run()
    return seconds()


def _bootstrap_seconds(prefixes: int) -> float:
    """Seconds of a difference of medians over prefixes."""
    stream, count = random_stream(0, Purpose.COMPARISON_BOOTSTRAP), min(prefixes, PREFIXES)
    numbers = stream.standard_normal((2, count))
    return _seconds(lambda: difference_of_medians(numbers[0], numbers[1], True, stream)) * prefixes / max(count, 1)


def _row_seconds(per_key: int, width: int) -> float:
    """Seconds to compare a memory with another one. Each example is compared with each one."""
    stream, count = random_stream(0, Purpose.COMPARISON_PERMUTATIONS), min(per_key, EXAMPLES)
    triggers = stream.permuted(np.tile(np.arange(2 * count), (MEMORIES, 1)), axis=1)[:, :count]
    vectors = stream.standard_normal((MEMORIES, width), np.float32)
    number, share = np.zeros(MEMORIES, np.int64), np.zeros(MEMORIES)
    one = Memories(triggers, number, share, number > 0, vectors, vectors)
    return _seconds(lambda: compare_memories(one, one, comparable=True)) / MEMORIES * (per_key / count) ** 2


def _match_seconds(sampled: int, prefixes: int, memories: Sequence[int]) -> float:
    """Seconds to match sampled memories with those of another model, and with its rotated layers."""
    stream, count = random_stream(0, Purpose.COMPARISON_ROTATION), min(prefixes, PREFIXES)
    own = stream.standard_normal((count, min(sampled, COLUMNS)), np.float32)
    m, square = (stream.standard_normal((rows, COLUMNS), np.float32) for rows in (count, COLUMNS))
    match = _seconds(lambda: highest_correlation(own, standardise(m))) * prefixes / count
    turn = _seconds(lambda: m @ square) * prefixes / count
    rotate = _seconds(lambda: random_rotation(COLUMNS, stream))
    scaled = [(size / COLUMNS, sampled / own.shape[1]) for size in memories]
    return sum(2 * match * size * more + turn * size**2 + rotate * size**3 for size, more in scaled)


def _draw_seconds(comparison: Comparison, shapes: Sequence[Shape]) -> float:
    """Seconds to draw a figure."""
    layers = [len(shape.memories) for shape in shapes]
    runs = pd.DataFrame({"run": comparison.runs, "label": comparison.runs, "layers": layers})
    curves = load_figure(FIGURE).curves
    points = pd.DataFrame(
        [
            {"figure": FIGURE, "curve": curve.label, "run": run, "x": x, "depth": (x + 0.5) / count}
            for curve in curves
            for run, count in zip(comparison.runs, layers, strict=True)
            for x in range(count)
        ]
    ).assign(value=0.5, difference=0.5, low=0.4, high=0.6)
    nothing = pd.DataFrame()
    measured = Measured("plan", comparison, "no", runs, points, points, nothing, nothing, nothing)
    with drawing.look():
        return _seconds(lambda: drawing.svg(draw_curves(measured, FIGURE, curves), FIGURE, "", ""))
