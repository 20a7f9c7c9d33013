"""Scores, by cases that were computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from ffkv.apps.machine.scores import balanced_accuracy, correlation, intruder_accuracy, rates, summarize


def test_balanced_accuracy_by_hand():
    trigger, said = [True, True, True, True, False, False], [True, True, True, False, True, False]
    assert rates(trigger, said) == (0.75, 0.5)
    assert balanced_accuracy(trigger, said) == 0.625


def test_guessing_gives_one_half_whatever_the_share_of_triggers():
    trigger = [True] * 9 + [False]
    assert balanced_accuracy(trigger, [True] * 10) == balanced_accuracy(trigger, [False] * 10) == 0.5


def test_one_class_alone_has_no_balanced_accuracy():
    assert math.isnan(balanced_accuracy([True, True], [True, False]))
    assert math.isnan(balanced_accuracy([], []))


def test_correlation_by_hand():
    # deviations (-1, 0, 1) and (-2, 1, 1): 3 / sqrt(2 * 6)
    assert correlation([1, 2, 3], [0, 3, 3]) == pytest.approx(3 / math.sqrt(12), rel=1e-12)  # rounding of float64
    assert correlation([1, 2, 3], [9, 6, 3]) == pytest.approx(-1, rel=1e-12)


def test_what_does_not_vary_has_no_correlation():
    assert math.isnan(correlation([1, 2, 3], [5, 5, 5]))
    assert math.isnan(correlation([0, 0, 0], [1, 5, 2]))
    assert math.isnan(correlation([0, 1], [0, 10]))


def test_intruders_by_hand():
    assert intruder_accuracy([0, 4, 2, 2], [0, 1, 2, 3]) == 0.5
    assert math.isnan(intruder_accuracy([], []))


def row(layer, memory, label, value, refused=0):
    counts = {"asked": 4, "answered": 4 - refused, "refused": refused}
    place = {"layer": layer, "memory": memory, "score": "detection", "label": label}
    return {**place, "value": value, "chance": 0.5, **counts}


def test_memories_are_averaged_and_what_was_refused_is_told():
    rows = [row(0, 0, "own", 1.0), row(0, 1, "own", 0.5, refused=1), row(1, 0, "own", np.nan, refused=4)]
    by_memory = pd.DataFrame([*rows, row(0, 0, "other", 0.4)])
    table = summarize(by_memory).set_index(["layer", "label"])
    own = table.loc[(-1, "own")]
    assert (own["memories"], own["mean"], own["asked"], own["answered"], own["refused"]) == (2, 0.75, 12, 7, 5)
    assert (own["low"], own["high"]) == (0, 1)  # two memories tell little: t of one degree of freedom is 12.7
    assert table.loc[(-1, "own - other"), "mean"] == pytest.approx(0.6, rel=1e-12)
    assert table.loc[(1, "own"), "memories"] == 0 and math.isnan(table.loc[(1, "own"), "mean"])
    assert table.loc[(0, "own"), "chance"] == 0.5
