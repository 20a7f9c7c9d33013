"""The rules of verdicts on planted numbers whose truth is known."""

import numpy as np
import pytest

from ffkv.base.intervals import difference_of_intervals, wilson
from ffkv.run.report.verdicts import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNTRAINED,
    Estimate,
    Medians,
    Rule,
    Shares,
    judge,
    known,
    level,
    trend,
    turn,
)

RISE, FALL, MOST = Rule(1, paper=0.2), Rule(-1, paper=-0.2), Rule(limit=0.5)


def shares(values, units=1000, **others):
    values = np.asarray(values, float)
    return Shares(values, np.broadcast_to(units, len(values)), **others)


def verdict_of_trend(values, units=1000, rule=RISE, control=None, **others):
    its = trend(shares(control, units, **others)) if control is not None else None
    return judge(rule, trend(shares(values, units, **others)), its)


def test_a_trend_is_the_upper_half_minus_the_lower_half_by_hand():
    """Of 5 layers the middle one is left out: 30 of 200 below, 90 of 200 above; Newcombe's interval."""
    found = trend(shares([0.1, 0.2, 0.99, 0.4, 0.5], 100))
    expected = difference_of_intervals(0.45, *wilson(90, 200), 0.15, *wilson(30, 200))
    assert found[:3] == pytest.approx(expected)
    assert (found.lower, found.upper, found.problem) == (pytest.approx(0.15), pytest.approx(0.45), "")


def test_layers_of_many_units_count_more_and_the_same_units_count_once():
    course = Shares(np.array([0.1, 0.2, 0.4, 0.5]), np.array([100, 300, 100, 100]))
    assert trend(course).lower == pytest.approx((0.1 * 100 + 0.2 * 300) / 400)
    once, often = trend(shares([0.1, 0.2, 0.4, 0.5], 100, same=True)), trend(shares([0.1, 0.2, 0.4, 0.5], 100))
    assert once.value == often.value and once.high - once.low > 1.3 * (often.high - often.low)


def test_what_is_by_chance_is_taken_away():
    """The rates rise by 0.2, and so does what chance gives."""
    chance = np.array([0.1, 0.1, 0.3, 0.3])
    assert trend(shares([0.15, 0.15, 0.35, 0.35], chance=chance)).value == pytest.approx(0)


TRENDS = [
    (np.linspace(0.1, 0.5, 12), 200, HOLDS, FAILS),
    (np.linspace(0.5, 0.1, 12), 200, FAILS, HOLDS),
    (np.full(12, 0.3), 5000, FAILS, FAILS),  # surely less than a fifth of the paper's difference
    (np.full(12, 0.3), 20, UNKNOWN, UNKNOWN),
    (np.linspace(0.1, 0.5, 12), 1, UNKNOWN, UNKNOWN),  # too few
    (np.concatenate([np.linspace(0.1, 0.5, 11), [0.1]]), 200, HOLDS, FAILS),  # the last layer falls back
    (np.abs(np.linspace(-0.4, 0.4, 12)), 2000, FAILS, FAILS),  # a valley in the middle
    (np.zeros(12), 5000, FAILS, FAILS),
    (np.ones(12), 5000, FAILS, FAILS),
    (np.zeros(12), 3, UNKNOWN, UNKNOWN),
    (np.full(12, np.nan), 100, UNKNOWN, UNKNOWN),
    (np.linspace(0.1, 0.5, 12), 0, UNKNOWN, UNKNOWN),
    ([0.1, 0.5, 0.9], 1000, UNKNOWN, UNKNOWN),
    ([0.1, 0.9], 1000, UNKNOWN, UNKNOWN),
    ([0.1], 1000, UNKNOWN, UNKNOWN),
    ([], 1000, UNKNOWN, UNKNOWN),
    (np.linspace(0.1, 0.5, 80), 20, HOLDS, FAILS),
]


def test_planted_trends(subtests):
    for values, units, rising, falling in TRENDS:
        with subtests.test(values=values, units=units, rising=rising, falling=falling):
            assert verdict_of_trend(values, units, RISE)[0] == rising
            assert verdict_of_trend(values, units, FALL)[0] == falling


def test_reasons_name_what_decided():
    assert verdict_of_trend(np.linspace(0.1, 0.5, 12)) == (
        HOLDS,
        "The interval is above 0. Not compared with an untrained model.",
    )
    assert verdict_of_trend(np.linspace(0.5, 0.1, 12)) == (FAILS, "The interval is below 0.")
    assert verdict_of_trend(np.full(12, 0.3), 20) == (UNKNOWN, "The interval includes 0.")
    assert verdict_of_trend(np.full(12, 0.3), 5000)[1].startswith("Flat: +")
    assert verdict_of_trend([0.1, 0.9]) == (UNKNOWN, "Fewer than 2 layers in each half.")
    assert judge(MOST, level(shares([0.3], 0), np.array([0]))) == (UNKNOWN, "There is nothing to count.")


def test_one_layer_alone_is_no_trend():
    """The first layer of many models is unlike all others: a step between it and the rest is no rise."""
    values = np.full(12, 0.3)
    values[0] = 0.0
    assert verdict_of_trend(values, 1000) == (UNKNOWN, "Layer 0 alone makes the difference.")
    values[:3] = 0.0
    assert verdict_of_trend(values, 1000)[0] == HOLDS


def test_layers_without_numbers_are_left_out():
    values, units = np.linspace(0.1, 0.5, 12), np.full(12, 500)
    values[2], units[9] = np.nan, 0
    assert known(Shares(values, units)).tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]
    assert judge(RISE, trend(Shares(values, units)))[0] == HOLDS
    units[:5] = 0
    assert judge(RISE, trend(Shares(values, units))) == (UNKNOWN, "Fewer than 2 layers in each half.")


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (np.linspace(0.1, 0.5, 12), UNTRAINED),  # the same curve
        (np.linspace(0.05, 0.9, 12), UNTRAINED),  # it shows more of it
        (np.full(12, 0.3), HOLDS),
        (np.linspace(0.3, 0.35, 12), HOLDS),  # it rises too, but less
        (np.linspace(0.5, 0.1, 12), HOLDS),
        (np.full(12, np.nan), HOLDS),  # it has no number
    ],
)
def test_a_claim_holds_beyond_the_untrained_model_only(control, expected):
    found, reason = verdict_of_trend(np.linspace(0.1, 0.5, 12), 500, control=control)
    assert found == expected
    assert ("Not compared" in reason) == bool(np.isnan(control).all())


def test_a_control_that_is_too_small_decides_nothing():
    own, control = trend(shares(np.linspace(0.25, 0.35, 12), 400)), trend(shares(np.linspace(0.28, 0.32, 12), 5))
    assert judge(RISE, own, control) == (
        UNKNOWN,
        "The interval is above 0, but the difference from the untrained model is not clear.",
    )


LEVELS = [
    (0.8, 400, None, HOLDS),
    (0.8, 400, 0.6, HOLDS),
    (0.8, 400, 0.8, UNTRAINED),
    (0.8, 400, 1.0, UNTRAINED),
    (1.0, 400, 1.0, UNTRAINED),
    (0.52, 400, None, UNKNOWN),
    (0.3, 400, None, FAILS),
    (0.3, 400, 0.1, FAILS),
    (1.0, 2, None, UNKNOWN),
    (0.0, 2, None, UNKNOWN),
]


def test_planted_levels(subtests):
    for share, units, control, expected in LEVELS:
        with subtests.test(share=share, units=units, control=control, expected=expected):
            own, its = (
                level(shares([each], units), np.array([0])) if each is not None else None for each in (share, control)
            )
            assert judge(MOST, own, its)[0] == expected


def test_a_larger_number_never_weakens_a_claim():
    """From falling to rising, the verdicts come in the order does not hold, cannot say, holds."""
    order = {FAILS: 0, UNKNOWN: 1, HOLDS: 2}
    for units in (5, 50, 500):
        slopes = [
            order[verdict_of_trend(0.5 + slope * np.linspace(-1, 1, 12), units)[0]]
            for slope in np.linspace(-0.4, 0.4, 33)
        ]
        assert slopes == sorted(slopes) and slopes[0] < slopes[-1]
        levels = [order[judge(MOST, level(shares([p], units), np.array([0])))[0]] for p in np.linspace(0, 1, 41)]
        assert levels == sorted(levels)


def test_more_units_of_the_same_numbers_never_make_a_verdict_less_certain():
    sizes = [(verdict_of_trend(np.linspace(0.2, 0.4, 12), units)[0] == HOLDS) for units in (2, 5, 20, 100, 1000, 10**6)]
    assert sizes == sorted(sizes) and sizes[-1]


def test_medians_by_hand():
    """Four layers of 400 prefixes; the error of a median of normal numbers is 1.2533 s / sqrt(n), and IQR = 1.349 s."""
    course = Medians(np.array([0.1, 0.2, 0.5, 0.6]), np.full(4, 400), np.full(4, 0.1349))
    half = 1.96 * 1.2533 * 0.1 / 20
    assert course.part(np.array([0, 1])) == pytest.approx((0.15, 0.15 - half, 0.15 + half), abs=1e-5)
    found = trend(course)
    assert (found.value, found.low) == pytest.approx((0.4, 0.4 - np.hypot(half, half)), abs=1e-5)
    flat = Medians(np.full(4, 0.2), np.full(4, 400), np.full(4, 0.1349))
    assert judge(RISE, trend(flat))[0] != HOLDS


@pytest.mark.parametrize(
    ("values", "sign", "expected"),
    [
        ([0.1, 0.2, 0.6, 0.9, 0.3], 1, 3),
        ([0.9, 0.5, 0.1, 0.2, 0.6], -1, 2),
        ([0.1, 0.2, 0.6, 0.8, 0.9], 1, None),
        ([0.1, 0.2, 0.6, 0.81, 0.8], 1, None),  # not clear
        ([0.3], 1, None),
        ([], 1, None),
    ],
)
def test_a_course_that_turns_back_is_told(values, sign, expected):
    assert turn(shares(values), sign) == expected


SIZES = [(2, 4), (20, 6), (100, 12), (20, 30), (1500, 12)]  # units in a layer, layers


def test_flat_rates_hold_by_chance_as_rarely_as_stated(subtests):
    """Of 400 flat curves, 2.5 % hold by chance at most: the one side of an interval of 95 %. More than 19 of 400 would
    have a chance of 1 in 200 if it were so. Where one layer alone is not enough, there are fewer.
    """
    for units, layers in SIZES:
        for rate in [0.005, 0.05, 0.5]:
            with subtests.test(units=units, layers=layers, rate=rate):
                drawn = np.random.default_rng(units * layers).binomial(units, rate, (400, layers)) / units
                held = sum(verdict_of_trend(each, units)[0] == HOLDS for each in drawn)
                assert held <= 19


def test_rates_at_the_limit_and_equal_controls_hold_as_rarely():
    generator = np.random.default_rng(3)
    for units in (20, 600):
        drawn = generator.binomial(units, 0.5, 400) / units
        found = [level(shares([each], units), np.array([0])) for each in drawn]
        assert sum(judge(MOST, each)[0] == HOLDS for each in found) <= 19
        own, its = generator.binomial(units, 0.8, (2, 400)) / units
        pairs = [[level(shares([each], units), np.array([0])) for each in pair] for pair in zip(own, its)]
        assert sum(judge(MOST, *pair)[0] == HOLDS for pair in pairs) <= 19


def test_trigger_examples_that_repeat_each_other_do_not_make_a_claim_hold():
    """Of 10 keys in a layer, each has a pattern in all 25 trigger examples or in none: a key counts once."""
    drawn = np.random.default_rng(4).binomial(10, 0.4, (400, 12)) / 10
    assert sum(verdict_of_trend(each, 10)[0] == HOLDS for each in drawn) <= 19
    careless = sum(verdict_of_trend(each, 250)[0] == HOLDS for each in drawn)
    assert careless > 60  # as if trigger examples counted


def test_estimates_without_numbers_are_no_verdict():
    assert judge(MOST, Estimate())[0] == UNKNOWN
