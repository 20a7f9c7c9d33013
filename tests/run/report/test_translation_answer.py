"""The answer about translated values, on planted differences."""

import pandas as pd
import pytest

from ffkv.branches.translation.section import answer, summarize
from ffkv.run.report.section import summary

PAIRS = {
    ("lower", "translated"): (0.02, 0.01, 0.03),
    ("lower", "head"): (0.0, 0.0, 0.001),
    ("upper", "head"): (0.04, 0.03, 0.05),  # the lower half lacks 4 points; a fifth is 0.8
    ("lower", "translated - head"): (0.02, 0.01, 0.03),
    ("lower", "translated - shuffled"): (0.02, 0.01, 0.03),
}
GAIN, NULL, LESS = ("lower", "translated - head"), ("lower", "translated - shuffled"), ("upper", "head")


@pytest.fixture
def planted(change):
    def planted(changed=None, weights="checkpoint"):
        table = pd.DataFrame(
            [(*pair, *numbers) for pair, numbers in (PAIRS | (changed or {})).items()],
            columns=["half", "compared", "mean", "low", "high"],
        )
        anatomy = change().anatomy.__class__(**{**vars(change().anatomy), "weights": weights})
        return change(tables={"translation_differences": table}, anatomy=anatomy)

    return planted


@pytest.mark.parametrize(
    ("changed", "control", "expected"),
    [
        ({}, None, "Yes: the gain is surely more than a fifth"),
        ({GAIN: (0.002, 0.001, 0.003)}, None, "No: the gain is surely less than a fifth"),  # above 0, and flat
        ({GAIN: (0.002, -0.001, 0.003)}, None, "No: the gain is surely less than a fifth"),
        ({GAIN: (0.01, 0.005, 0.015)}, None, "Cannot say: the interval of the gain includes a fifth"),
        ({GAIN: (-0.001, -0.005, 0.01)}, None, "Cannot say: the interval of the gain includes a fifth"),
        ({NULL: (0.0, -0.01, 0.01)}, None, "Cannot say: the map of shuffled pairs"),
        ({NULL: (-0.05, -0.06, -0.04)}, None, "Cannot say: the map of shuffled pairs"),
        ({}, {}, "As in the untrained model"),
        ({}, {GAIN: (0.05, 0.04, 0.06)}, "As in the untrained model"),
        ({}, {GAIN: (0.0, -0.005, 0.005)}, "Yes"),
        ({}, {GAIN: (0.01, -0.05, 0.07)}, "Cannot say: the difference from the untrained model"),
        ({}, {GAIN: (float("nan"),) * 3}, "Cannot say: the difference from the untrained model"),
        ({LESS: (0.0, 0.0, 0.001)}, None, "Yes: the gain is surely more than 0"),  # nothing is lacking
        ({GAIN: (float("nan"),) * 3}, None, "Cannot say: there is nothing to count."),
        ({LESS: (float("nan"),) * 3}, None, "Cannot say: what the lower half lacks is not known."),
    ],
)  # fmt: skip
def test_the_answer_asks_what_is_flat_its_null_and_its_control(planted, changed, control, expected):
    its = None if control is None else planted(control, "random")
    assert answer(planted(changed), its).startswith(expected)
    (said,) = summarize(planted(changed), its)
    assert f"translated? {expected}" in said
    assert "nan" not in said and "(-" not in said  # a dash, and the page's own minus


def test_an_untrained_run_says_nothing_of_training(planted):
    assert answer(planted(weights="random")) == "This run is of an untrained model itself."


def test_a_trained_control_is_told_and_decides_nothing(planted):
    (said,) = summarize(planted(), planted())
    assert "translated? Yes" in said
    rows = [(own, its) for what, own, its in summary(planted(), planted()) if what.startswith("the difference")]
    assert len(rows) == 1 and rows[0][0] == rows[0][1] and "points (" in rows[0][0]
