"""What comparisons take: blocks of their real functions, as many times as the runs are larger."""

import pytest

from ffkv.errors import UserError
from ffkv.plan.comparisons import ROW_BYTES, measure_comparison
from ffkv.plan.shape import Shape
from ffkv.settings import Comparison


def shape(layers: int, memories: int, width: int = 32) -> Shape:
    return Shape("Hand", (memories,) * layers, width, 100, 1000, 800, 200, "float32")


def costs(*shapes: Shape, per_key: int = 10, prefixes: int = 300, **settings):
    comparison = Comparison(runs=[f"run-{number}" for number in range(len(shapes))], **settings)
    return measure_comparison("hand", comparison, per_key, [(shape, prefixes) for shape in shapes])


def test_every_memory_of_each_run_is_a_row_beside_the_first_run_and_the_last():
    found = costs(shape(2, 500), shape(2, 500), shape(2, 500))
    assert found["comparison_measure"].written == 3 * 2 * 2 * 500 * ROW_BYTES


def test_more_memories_take_longer():
    """A hundred times as many: ten times as long at least, so that no machine is too busy to see it."""
    few, many = (costs(*[shape(2, size)] * 2, memories="by_number", permutations=1) for size in (1000, 100_000))
    assert many["comparison_measure"].seconds > 10 * few["comparison_measure"].seconds
    assert many["comparison_measure"].memory == pytest.approx(100 * few["comparison_measure"].memory)


def test_models_of_two_shapes_are_matched_by_correlation():
    """Rotations of a layer grow with the third power of its size."""
    small, large = (costs(shape(2, 64), shape(2, size)) for size in (64, 4096))
    matched = costs(shape(2, 64), shape(2, 64), memories="by_correlation")
    assert small["comparison_measure"].written > 0
    assert large["comparison_measure"].written == matched["comparison_measure"].written == 0
    assert large["comparison_measure"].seconds > 10 * matched["comparison_measure"].seconds


def test_an_axis_doubles_the_figures():
    without, over = costs(shape(1, 8), shape(1, 8)), costs(shape(1, 8), shape(1, 8), axis="step", values=[0, 1])
    assert without["comparison_report"].seconds > 0
    assert 1.7 < over["comparison_report"].written / without["comparison_report"].written < 2  # but for three figures


def test_large_settings_take_no_large_block():
    """A billion prefixes, or a million examples per key, as arrays would not fit into any memory."""
    for way in ("by_number", "by_correlation"):
        cost = costs(shape(1, 8), shape(1, 8), memories=way, per_key=10**6, prefixes=10**9)["comparison_measure"]
        assert cost.seconds > 100 * costs(shape(1, 8), shape(1, 8), memories=way)["comparison_measure"].seconds


def test_what_the_comparison_would_refuse_is_refused():
    with pytest.raises(UserError, match="different shapes: run-0 has 2 layers, 16 memories and a width of 32; run-1 "):
        costs(shape(2, 8), shape(2, 8, width=64), memories="by_number")
