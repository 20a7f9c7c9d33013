"""The rules of verdicts on planted numbers whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from ffkv.base.intervals import difference_of_intervals, mean_interval, wilson
from ffkv.run.report.verdicts import (
    FAILS,
    HOLDS,
    UNKNOWN,
    UNTRAINED,
    Estimate,
    Means,
    Medians,
    Rule,
    Shares,
    judge,
    known,
    level,
    trend,
    turn,
)
from ffkv.run.results.text import NO_BREAK_SPACE

RISE, FALL, MOST = Rule(1, paper=0.2), Rule(-1, paper=-0.2), Rule(limit=0.5)


def shares(values, units=1000, **others):
    values = np.asarray(values, float)
    return Shares(values, np.broadcast_to(units, len(values)), **others)


def verdict_of_trend(values, units=1000, rule=RISE, control=None, **others):
    its = trend(shares(control, units, **others)) if control is not None else None
    return plain(judge(rule, trend(shares(values, units, **others)), its))


def plain(found):
    """A verdict and its reason, with plain blanks."""
    return found[0], found[1].replace(NO_BREAK_SPACE, " ")


def test_a_trend_is_the_upper_half_minus_the_lower_half_by_hand():
    """Of 5 layers the middle one is left out: 30 of 200 below, 90 of 200 above; Newcombe's interval of few keys."""
    found = trend(shares([0.1, 0.2, 0.99, 0.4, 0.5], 100))
    value, low, high = difference_of_intervals(0.45, *wilson(90, 200), 0.15, *wilson(30, 200))
    assert found.value == pytest.approx(value) and found.low < low and found.high > high  # the layers scatter more
    assert (found.lower, found.upper, found.problem) == (pytest.approx(0.15), pytest.approx(0.45), "")
    assert trend(shares([0.15, 0.15, 0.99, 0.45, 0.45], 100))[:3] == pytest.approx((value, low, high))


def test_the_scatter_of_neighbouring_layers_by_hand():
    """Steps of 0.1 and 0.1: the variance of a layer is 0.1² / 2, with 2 degrees of freedom; two layers in a half."""
    found = trend(shares([0.1, 0.2, 0.4, 0.5], 10**9))
    half = student.ppf(0.975, 2) * np.sqrt(0.1**2 / 2 * (1 / 2 + 1 / 2))
    assert found[1:3] == pytest.approx((0.3 - half, 0.3 + half), abs=1e-4)


def test_layers_of_many_units_count_more_and_the_same_units_count_once():
    course = Shares(np.array([0.1, 0.2, 0.4, 0.5]), np.array([100, 300, 100, 100]))
    assert trend(course).lower == pytest.approx((0.1 * 100 + 0.2 * 300) / 400)
    level_of = [level(shares([0.1, 0.2, 0.4, 0.5], 100, same=same), np.arange(4)) for same in (True, False)]
    once, often = (each.high - each.low for each in level_of)
    assert once > 1.8 * often


def test_a_unit_of_several_layers_counts_once_with_its_mean():
    """500 prefixes in 30 layers, half of which agree in each: all about alike, so the interval is that of their means."""
    drawn = np.random.default_rng(0).random((500, 30)) < 0.474
    numbers = pd.DataFrame(
        {"layer": np.tile(range(30), 500), "unit": np.repeat(range(500), 30), "value": drawn.ravel()}
    )
    course = Means(numbers.astype({"value": float}), 30, 0, 1)
    found = level(course, np.arange(30))
    assert found[:3] == pytest.approx((drawn.mean(), *mean_interval(drawn.mean(1), 0, 1)))
    assert found.high - found.low < 0.2 * (2 * 1.96 * 0.5 / np.sqrt(500))  # of 500 independent draws
    assert judge(MOST, found)[0] == FAILS
    assert course.values == pytest.approx(drawn.mean(0)) and (course.units == 500).all()
    assert course.part(np.array([3])) == pytest.approx(
        (drawn[:, 3].mean(), *map(float, wilson(drawn[:, 3].sum(), 500)))
    )


def test_one_unit_says_nothing():
    numbers = pd.DataFrame({"layer": [0], "unit": [0], "value": [-3.0]})
    found = level(Means(numbers, 1), np.arange(1))
    assert judge(Rule(-1), found) == (UNKNOWN, "One number alone has no interval.")


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
    (np.concatenate([np.linspace(0.1, 0.5, 29), [0.1]]), 200, HOLDS, FAILS),  # the last layer falls back
    (np.concatenate([np.linspace(0.1, 0.5, 11), [0.1]]), 200, UNKNOWN, FAILS),  # one step of few makes the scatter
    (np.abs(np.linspace(-0.4, 0.4, 30)), 2000, FAILS, FAILS),  # a valley in the middle
    (np.linspace(0.29, 0.31, 12), 10**6, FAILS, FAILS),  # it surely rises, but by less than a fifth
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
    ([*[0.0] * 3, *[0.3] * 9], 1000, HOLDS, FAILS),
]


def test_planted_trends(subtests):
    for values, units, rising, falling in TRENDS:
        with subtests.test(values=values, units=units, rising=rising, falling=falling):
            assert verdict_of_trend(values, units, RISE)[0] == rising
            assert verdict_of_trend(values, units, FALL)[0] == falling


def test_reasons_name_what_decided():
    assert verdict_of_trend(np.linspace(0.1, 0.5, 12)) == (
        HOLDS,
        "In these layers, 109 % of the paper’s difference, 92 % at least. Not compared with an untrained model.",
    )
    assert verdict_of_trend(np.linspace(0.5, 0.1, 12)) == (FAILS, "The interval is below 0.")
    assert verdict_of_trend(np.full(12, 0.3), 20) == (UNKNOWN, "The interval includes 0.")
    assert verdict_of_trend(np.full(12, 0.3), 5000)[1].startswith("Flat: +")
    assert verdict_of_trend(np.linspace(0.26, 0.34, 12), 2000) == (
        UNKNOWN,
        "The interval includes a fifth of the paper’s difference (+4 points), and less is flat.",
    )
    assert verdict_of_trend([0.1, 0.9]) == (UNKNOWN, "Fewer than 2 layers in each half.")
    assert judge(MOST, level(shares([0.3], 0), np.array([0]))) == (UNKNOWN, "There is nothing to count.")


ALONE = [
    (RISE, [0.0, *[0.3] * 11]),  # the first layer of many models is unlike all others
    (RISE, [0.3] * 11 + [0.95]),
    (RISE, [0, 0.35, 0.35, 0.3, 0.3, 0.3]),  # the others run the other way
    (RISE, [0, *[0.4] * 5, *[0.35] * 6]),
    (RISE, [0.3, 0.3, 0.3, 0.1, 0.1, 0.9]),
    (FALL, [0.9, 0.1, 0.1, 0.2, 0.2, 0.2]),
    (FALL, [0.95, 0.1, 0.2, 0.3, 0.3, 0.3]),
]


@pytest.mark.parametrize(("rule", "values"), ALONE)
def test_one_layer_alone_is_no_trend(rule, values):
    for units in (400, 10**6):
        assert verdict_of_trend(values, units, rule)[0] == UNKNOWN


def test_a_trend_that_needs_each_of_its_layers_names_one():
    verdict, reason = verdict_of_trend([0.18, 0.24, 0.29, 0.33, 0.36, 0.4], 4000)
    assert verdict == UNKNOWN and reason.endswith("22 % at least, but not without layer 5.")
    found = Estimate(0.2, 0.1, 0.3, without=[(0, (0.1, 0.01, 0.2)), (1, (0.03, 0.02, 0.04)), (2, (-0.1, -0.2, -0.05))])
    assert judge(RISE, found)[1].endswith("but not without layer 2.")
    assert judge(RISE, found._replace(without=found.without[:2]))[1].endswith("but not without layer 1.")  # flat
    assert judge(RISE, found._replace(without=found.without[:1]))[0] == HOLDS


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
        (np.full(12, np.nan), UNKNOWN),  # it has no number
    ],
)
def test_a_claim_holds_beyond_the_untrained_model_only(control, expected):
    found, reason = verdict_of_trend(np.linspace(0.1, 0.5, 12), 500, control=control)
    assert found == expected
    assert "Not compared" not in reason
    assert reason.endswith("but the untrained model has no number.") == bool(np.isnan(control).all())


def test_a_control_that_is_too_small_decides_nothing():
    own, control = trend(shares(np.linspace(0.2, 0.4, 12), 400)), trend(shares(np.linspace(0.28, 0.32, 12), 5))
    verdict, reason = judge(RISE, own, control)
    assert verdict == UNKNOWN and reason.endswith("but the difference from the untrained model is not clear.")


def test_what_untrained_models_do_holds_beside_one_only():
    own, why = level(shares([0.95], 400), np.array([0])), "Untrained models do it, too."
    assert plain(judge(MOST, own, None, why)) == (
        UNKNOWN,
        f"The interval is above 50 %. {why} Not compared with an untrained model.",
    )
    assert judge(MOST, own, level(shares([0.6], 400), np.array([0])), why)[0] == HOLDS
    assert judge(MOST, own, level(shares([0.97], 400), np.array([0])), why)[0] == UNTRAINED
    assert judge(MOST, own, Estimate(), why)[0] == UNKNOWN
    assert judge(MOST, level(shares([0.2], 400), np.array([0])), None, why)[0] == FAILS


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


def test_medians_by_hand():
    """Medians of the same prefixes may all err alike, so the ends of a half are the means of the ends."""
    values = np.array([0.1, 0.2, 0.5, 0.6])
    course = Medians(values, np.full(4, 400), values - 0.01, values + np.array([0.01, 0.01, 0.05, 0.05]))
    assert course.part(np.array([2, 3])) == pytest.approx((0.55, 0.54, 0.6))
    found = trend(course)
    half = student.ppf(0.975, 2) * np.sqrt(0.1**2 / 2)
    assert (found.value, found.low) == pytest.approx((0.4, 0.4 - half))
    flat = Medians(np.full(4, 0.2), np.full(4, 400), np.full(4, 0.19), np.full(4, 0.21))
    assert trend(flat)[:3] == pytest.approx((0, -np.hypot(0.01, 0.01), np.hypot(0.01, 0.01)))
    assert judge(RISE, trend(flat))[0] == FAILS


@pytest.mark.parametrize(
    ("values", "sign", "expected"),
    [
        ([0.1, 0.2, 0.6, 0.9, 0.3], 1, 3),
        ([0.9, 0.5, 0.1, 0.2, 0.6], -1, 2),
        ([0.1, 0.2, 0.6, 0.8, 0.9], 1, None),
        ([0.1, 0.2, 0.6, 0.81, 0.8], 1, None),  # not clear
        ([0.9, 0.5, 0.1, 0.2], 1, None),  # it never rose
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
    careless = [trend(shares(each, 250)) for each in drawn]  # as if trigger examples counted: their scatter is seen
    assert sum(each.low > 0 for each in careless) <= 19


@pytest.mark.parametrize("control", [False, True])
def test_layers_that_differ_at_random_hold_as_rarely(control):
    """Layers scatter with a standard deviation of 0.05, which 1,536 keys show: one in five held by the keys alone."""
    generator = np.random.default_rng(5)

    def drawn():
        return generator.binomial(1536, generator.normal(0.4, 0.05, 30).clip(0, 1)) / 1536

    courses = [(drawn(), drawn() if control else None) for _ in range(400)]
    tiny = Rule(1, paper=1e-9)  # nothing counts as flat
    held = [verdict_of_trend(own, 1536, tiny, its)[0] == HOLDS for own, its in courses]
    assert sum(held) <= 19


def test_a_curve_that_wanders_may_hold():
    """The limit of what one model can tell, as docs/definitions.md says it: neighbours with a correlation of 0.8 make trends.

    Of 300 draws 26 % and 18 % are expected, by 1,000 draws; 8 points are three standard errors.
    """
    generator = np.random.default_rng(5)

    def drawn():
        steps = generator.normal(size=30)
        for layer in range(1, 30):
            steps[layer] = 0.8 * steps[layer - 1] + 0.6 * steps[layer]
        return generator.binomial(1536, (0.4 + 0.05 * steps).clip(0, 1)) / 1536

    tiny = Rule(1, paper=1e-9)  # nothing counts as flat
    for control, share in ((False, 0.26), (True, 0.18)):
        held = [verdict_of_trend(drawn(), 1536, tiny, drawn() if control else None)[0] == HOLDS for _ in range(300)]
        assert np.mean(held) == pytest.approx(share, abs=0.08)


def test_estimates_without_numbers_or_an_end_are_no_verdict():
    assert judge(MOST, Estimate())[0] == UNKNOWN
    for rule in (Rule(), Rule(-1), Rule(1, paper=0.2)):
        for missing in ("low", "high"):
            own = Estimate(0.5, 0.4, 0.6)._replace(**{missing: np.nan})
            assert judge(rule, own) == (UNKNOWN, "The interval is not known.")
