"""Intervals and boxes against published numbers and other libraries."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.cbook import boxplot_stats
from scipy.special import stdtrit
from scipy.stats import binom, binomtest, poisson

from ffkv.base.intervals import (
    box,
    boxes,
    difference_of_intervals,
    is_above_0,
    mean_interval,
    paired_interval,
    scatter_of_layers,
    shares,
    skewed_interval,
    wilson,
)


@pytest.mark.parametrize(
    "successes, trials, low, high", [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]
)
def test_wilson_as_published(successes, trials, low, high):
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3: the score interval without continuity correction."""
    assert wilson(successes, trials) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 5000).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_wilson_as_scipy_has_it(pair):
    expected, (low, high) = binomtest(*pair).proportion_ci(method="wilson"), wilson(*pair)
    rare, nearly_all = 1 <= pair[0] <= 3, 1 <= pair[1] - pair[0] <= 3  # corrected there
    assert low <= expected.low + 1e-9 if rare else low == pytest.approx(expected.low, abs=1e-9)
    assert high >= expected.high - 1e-9 if nearly_all else high == pytest.approx(expected.high, abs=1e-9)


def test_wilson_of_none_all_and_nothing_tried():
    low, high = wilson(np.array([0, 5, 0]), np.array([5, 5, 0]))
    assert (low[0], high[1]) == (0, 1)  # exactly, not up to rounding
    assert (low[2], high[2]) == (0, 1)
    assert np.all(low <= high)
    assert (wilson(np.zeros(500), np.arange(1, 501))[0] == 0).all()
    assert wilson(1, 1) == (pytest.approx(0.0512933), 1)


def test_wilson_of_small_integers_overflows_nowhere():
    assert wilson(np.array([50], np.int32), np.array([100_000], np.int32)) == wilson(50, 100_000)


def test_rare_successes_by_the_poisson_distribution():
    """Brown, Cai and DasGupta 2001: of a mean that leaves k successes or more a probability of 5 %."""
    for count in (1, 2, 3):
        low, high = wilson(count, 1000)
        assert poisson.sf(count - 1, 1000 * low) == pytest.approx(0.05, abs=1e-6)
        mirrored = wilson(1000 - count, 1000)
        assert (low, high) == (pytest.approx(1 - mirrored[1], abs=1e-12), pytest.approx(1 - mirrored[0], abs=1e-12))


@pytest.mark.parametrize("n", [10, 20, 100, 512])
def test_wilson_covers_whatever_the_share_is(n):
    """Exactly, over all counts. Uncorrected it covers 84 % at a share of 0.17 / n."""
    counts, shares = np.arange(n + 1), np.linspace(0.02 / n, 0.5, 2000)[:, None]
    low, high = wilson(counts, np.full(n + 1, n))
    covered = (binom.pmf(counts, n, shares) * ((low <= shares) & (shares <= high))).sum(1)
    assert covered.min() > 0.915 and covered.mean() == pytest.approx(0.955, abs=0.01)


def test_the_interval_of_a_difference_as_published():
    """Newcombe, Statistics in Medicine 17 (1998), table II, method 10: 56/70 - 48/80, and 9/10 - 3/10."""
    found = difference_of_intervals(56 / 70, *wilson(56, 70), 48 / 80, *wilson(48, 80))
    assert found == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    found = difference_of_intervals(0.9, 0.595850, 0.982124, 0.3, 0.107791, 0.603222)  # of their score intervals
    assert found == pytest.approx((0.6, 0.1705, 0.8090), abs=5e-5)


def test_the_interval_of_a_mean_by_hand():
    """Of a symmetric sample it is that of Student's t."""
    half = 4.302652729911275 * 1 / math.sqrt(3)  # t of 2 degrees of freedom, standard deviation 1
    assert mean_interval(np.array([1.0, 2.0, 3.0])) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert mean_interval(np.array([1.0, 2.0, 3.0]), 0, 4) == (0, 4)


def test_hall_s_cubic_is_inverted():
    """The longer end of 2 - T: T corrects t on the side of the skewness. Without skewness the t interval is left."""
    skewness = np.array([-0.6, -0.15, 0.03, 0.8])
    for degrees in (5, 99):
        quantile = stdtrit(degrees, 0.975)
        low, high = skewed_interval(np.full(4, 2.0), np.ones(4), skewness, degrees)
        t, a = np.where(skewness > 0, 2 - high, 2 - low), skewness / 3
        np.testing.assert_allclose(t + a * t**2 + a**2 * t**3 / 3 + a / 2, -np.sign(skewness) * quantile)
        np.testing.assert_allclose(np.where(skewness > 0, 2 - low, high - 2), quantile)
        assert skewed_interval(np.zeros(1), np.ones(1), np.zeros(1), degrees) == ([-quantile], [quantile])


@pytest.mark.parametrize("size", [6, 20])
def test_the_interval_of_a_skewed_mean_covers_it(size):
    """A percentile bootstrap covers 80 % and 90 % of such means."""
    samples = np.random.default_rng(0).exponential(size=(2000, size))
    bounds = np.array([mean_interval(sample) for sample in samples])
    covered = ((bounds[:, 0] <= 1) & (bounds[:, 1] >= 1)).mean()
    assert 0.92 < covered < 0.97  # the standard error is 0.005
    assert mean_interval(-samples[0]) == pytest.approx(-bounds[0][::-1])


def test_means_of_equal_numbers_and_of_too_few():
    assert mean_interval(np.full(9, 2.5)) == (2.5, 2.5)
    assert all(map(math.isnan, [*mean_interval(np.array([])), *mean_interval(np.array([3.0]))]))


def test_shares_have_their_own_interval():
    """Of 144 memories 2 agree: Hall's correction would go from -0.006 to 0.088."""
    rare = np.repeat([1.0, 0.0], [2, 142])
    assert mean_interval(rare, 0, 1) == pytest.approx((0.35536 / 144, 0.0492), abs=1e-4)
    assert mean_interval(rare)[1] > 0.08  # numbers without bounds are no shares
    assert mean_interval(np.ones(5), 0, 1) == pytest.approx((float(wilson(5, 5)[0]), 1))
    assert mean_interval(np.full(8, 0.5), 0, 1) == pytest.approx([*map(float, wilson(4, 8))])


def test_a_pair_more_in_each_direction():
    """Bonett and Price 2012: 1 of 6 pairs differs upwards and 2 downwards, by hand."""
    half = 1.959964 * math.sqrt((1 / 6 + 2 / 6 - 1 / 36) / 6)
    assert paired_interval(np.array([-1, 0, 0, 0])) == pytest.approx((-1 / 6 - half, -1 / 6 + half))
    low, high = paired_interval(np.zeros(144))
    assert low == -high and high == pytest.approx(1.959964 * math.sqrt(2) / 146)


def test_the_scatter_of_layers_covers_no_difference():
    """Halves of 3 and 15 layers that differ at random: 2.5 % on either side, with a standard error of 0.3 %."""
    generator = np.random.default_rng(1)
    for size in (3, 15):
        halves, drawn = [np.arange(size), np.arange(size, 2 * size)], generator.normal(size=(3000, 2 * size))
        found = [
            values[size:].mean() - values[:size].mean() > scatter_of_layers(values, np.ones(2 * size), halves)
            for values in drawn
        ]
        assert 0.015 < np.mean(found) < 0.036


def test_the_scatter_of_layers_with_weights_and_gaps_by_hand():
    """Steps of 0.3 over one layer, and of 0.2: variance (0.09 / 2 + 0.04) / 2 / 2, of means of 2 and of 1 + 3 parts."""
    values, weights = np.array([0.1, 9, 0.4, 0.5, 0.7]), np.array([2, 0, 2, 1, 3])
    error = math.sqrt(0.085 / 4 * (1 / 2 + 1 / 16 + 9 / 16))
    found = scatter_of_layers(values, weights, [np.array([0, 2]), np.array([3, 4])])
    assert found == pytest.approx(4.30265273 * error)  # t of 2 degrees of freedom


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_box_is_tukeys(sample):
    (expected,) = boxplot_stats(sample)
    ours, theirs = box(np.array(sample)), [expected[name] for name in ("whislo", "q1", "med", "q3", "whishi")]
    assert [ours[name] for name in ("q1", "median", "q3")] == pytest.approx(theirs[1:4])
    points = np.array(sample)
    reach = 1.5 * (ours["q3"] - ours["q1"])
    assert ours["whisker_low"] == points[points >= ours["q1"] - reach].min()
    assert ours["whisker_high"] == points[points <= ours["q3"] + reach].max()
    # matplotlib draws a whisker at the quartile where no point lies between the two
    assert min(ours["whisker_low"], ours["q1"]) == pytest.approx(theirs[0])
    assert max(ours["whisker_high"], ours["q3"]) == pytest.approx(theirs[4])


def test_whiskers_end_within_one_and_a_half_ranges():
    """The quartiles are 10 and 12, so that whiskers are between 7 and 15."""
    assert box([6, 10, 11, 12, 13])["whisker_low"] == 10 and box([7, 10, 11, 12, 13])["whisker_low"] == 7
    assert box([9, 10, 11, 12, 16])["whisker_high"] == 12 and box([9, 10, 11, 12, 15])["whisker_high"] == 15


def test_a_box_of_nothing():
    assert all(map(math.isnan, box(np.array([])).values()))


def test_a_box_for_each_layer():
    frame = pd.DataFrame({"layer": [1, 0, 0, 0, 0], "rank": [7, 1, 2, 3, 100]})
    table = boxes(frame, "rank", "keys")
    assert list(table.columns) == ["layer", "keys", "whisker_low", "q1", "median", "q3", "whisker_high"]
    assert table.dtypes.tolist() == [int, int, *[float] * 5]
    assert table.to_numpy().tolist() == [[0, 4, 1, 1.75, 2.5, 27.25, 3], [1, 1, 7, 7, 7, 7, 7]]


def test_a_share_for_each_layer():
    frame = pd.DataFrame({"layer": [0, 0, 0, 2], "agrees": [True, False, True, False]})
    table = shares(frame, "agrees", "agreeing", "keys")
    assert table[["layer", "keys", "agreeing"]].to_numpy().tolist() == [[0, 3, 2], [2, 1, 0]]
    assert table["share"].tolist() == [2 / 3, 0] and table["agreeing"].dtype == int
    np.testing.assert_allclose(table[["low", "high"]], np.stack(wilson(np.array([2, 0]), np.array([3, 1])), 1))


@pytest.mark.parametrize("table", [boxes, lambda *arguments: shares(*arguments, "keys")])
def test_no_rows_give_no_layers(table):
    assert len(table(pd.DataFrame({"layer": [], "agrees": []}), "agrees", "agreeing")) == 0


def test_boxes_of_nothing_have_their_columns():
    columns = ["layer", "keys", "whisker_low", "q1", "median", "q3", "whisker_high"]
    assert boxes(pd.DataFrame({"layer": [], "rank": []}), "rank", "keys").columns.tolist() == columns


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([2, 2.1, 1.9, 2.0], True),
        ([0.0, 0.1, -0.1, 0.0], False),
        ([0.1, 5, -5, 1], False),  # the interval has 0
        ([1.0], True),  # no group was left out: no interval is known
        ([-1.0], False),
        ([np.nan, np.nan, np.nan], False),
    ],
)
def test_a_statistic_is_above_0_with_its_interval_where_that_is_known(values, told):
    """The statistic of all groups, then without each of them."""
    assert is_above_0(np.array(values, float)) is told
