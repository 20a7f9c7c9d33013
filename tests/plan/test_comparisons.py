"""What the rules of a comparison have to do, by hand."""

import pytest
from plan.hand import known

from ffkv.base.errors import UserError
from ffkv.base.settings import Comparison, Settings
from ffkv.plan.growth import Amounts, measure_comparison
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.plan.trial import _small_comparison


def shape(layers: int, memories: int, width: int = 32) -> Shape:
    return Shape("Hand", (memories,) * layers, width, 100, 1000, 800, 200, "float32")


def amounts(*shapes: Shape, **settings) -> Amounts:
    """Of the rule that measures: ten triggers per key, 300 sampled prefixes."""
    comparison = Comparison(runs=[f"run-{number}" for number in range(len(shapes))], **settings)
    settings = Settings(model={"checkpoint": "somewhere"}, triggers={"per_key": 10}, prefixes={"count": 300})
    split = Split(1000.0, 100.0, 10.0, 5000.0, 1.0, "")
    runs = [known(settings, shape, {"validation": split}) for shape in shapes]
    return measure_comparison(comparison, "hand", runs)["comparison_measure"]


def test_every_memory_of_each_run_is_a_row_beside_the_first_run_and_the_last():
    """Three runs of two layers; of each layer 256 memories are compared with permuted ones, four times."""
    found = amounts(shape(2, 500), shape(2, 500), shape(2, 500), permutations=4)
    assert found.stored == 3 * 2 * 2 * 500
    assert found.work == (3 * 2 * 2 * 500 + 3 * 2 * 4 * 2 * 256) * (10**2 + 32)


def test_models_of_two_shapes_are_matched_by_correlation():
    """With each layer of the second model, and with this layer rotated. Of the first model 2 x 8 memories are sampled."""
    found = amounts(shape(2, 8), shape(3, 64))
    assert found.work == 3 * (300 * 64 * (2 * 16 + 64) + 64**3)
    assert found.stored == 0
    assert found == amounts(shape(2, 8), shape(3, 64), memories="by_correlation")


def test_without_memories_nothing_grows():
    assert amounts(shape(2, 8), shape(2, 8), memories="no") == Amounts()


def test_what_the_comparison_would_refuse_is_refused():
    with pytest.raises(UserError, match="different shapes: run-0 has 2 layers, 16 memories and a width of 32; run-1 "):
        amounts(shape(2, 8), shape(2, 8, width=64), memories="by_number")


@pytest.mark.parametrize("order", [{}, {"axis": "step", "values": [0, 10, 20], "labels": ["a", "b", "c"]}])
def test_the_trial_compares_two_runs(order):
    small = _small_comparison(Comparison(runs=["x", "y", "z"], **order))
    assert small.contradictions() == []
    assert (len(small.runs), small.axis) == (2, order.get("axis", ""))
