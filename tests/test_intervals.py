"""Intervals and boxes against published numbers and other libraries."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.cbook import boxplot_stats
from scipy.stats import binomtest

from ffkv.base.intervals import bootstrap_mean, box, boxes, shares, wilson


@pytest.mark.parametrize(
    "successes, trials, low, high",
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_published(successes, trials, low, high):
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3: the score interval without continuity correction."""
    assert wilson(successes, trials) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 5000).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_wilson_as_scipy_has_it(pair):
    expected = binomtest(*pair).proportion_ci(method="wilson")
    assert wilson(*pair) == (pytest.approx(expected.low, abs=1e-9), pytest.approx(expected.high, abs=1e-9))


def test_wilson_of_none_all_and_nothing_tried():
    low, high = wilson(np.array([0, 5, 0]), np.array([5, 5, 0]))
    assert (low[0], high[1]) == (0, 1)  # exactly, not up to rounding
    assert (low[2], high[2]) == (0, 1)
    assert np.all(low <= high)


def test_bootstrap_of_a_constant_is_that_constant():
    assert bootstrap_mean(np.full(9, 2.5), np.random.default_rng(0)) == (2.5, 2.5)


def test_bootstrap_is_near_the_normal_interval_and_reproducible():
    sample = np.random.default_rng(0).normal(3, 2, 400)
    low, high = bootstrap_mean(sample, np.random.default_rng(1))
    half = 1.96 * sample.std() / math.sqrt(400)
    # the ends of 2,000 resamples are known to about a tenth of the half width
    assert (low, high) == (
        pytest.approx(sample.mean() - half, abs=half / 5),
        pytest.approx(sample.mean() + half, abs=half / 5),
    )
    assert bootstrap_mean(sample, np.random.default_rng(1)) == (low, high)
    assert bootstrap_mean(sample, np.random.default_rng(2)) != (low, high)


@pytest.mark.parametrize("size", [1, 2, 7, 131, 1000])
def test_bootstrap_draws_what_one_resample_after_the_other_draws(size, monkeypatch):
    """The interval is equal to the bit, whatever the size of a block."""
    sample, generator = np.random.default_rng(3).normal(size=size), np.random.default_rng(4)
    means = [sample[generator.integers(0, size, size)].mean() for _ in range(300)]
    expected = tuple(np.quantile(means, [0.025, 0.975]).tolist())
    for block in (1, 1000, 2**18):
        monkeypatch.setattr("ffkv.base.intervals.AT_A_TIME", block)
        assert bootstrap_mean(sample, np.random.default_rng(4), 300) == expected


def test_bootstrap_of_nothing():
    assert all(map(math.isnan, bootstrap_mean(np.array([]), np.random.default_rng(0))))


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


def test_a_box_of_nothing():
    assert all(map(math.isnan, box(np.array([])).values()))


def test_a_box_for_each_layer():
    frame = pd.DataFrame({"layer": [1, 0, 0, 0, 0], "rank": [7, 1, 2, 3, 100]})
    table = boxes(frame, "rank", "keys")
    assert list(table.columns) == ["layer", "keys", "whisker_low", "q1", "median", "q3", "whisker_high"]
    assert table.to_numpy().tolist() == [[0, 4, 1, 1.75, 2.5, 27.25, 3], [1, 1, 7, 7, 7, 7, 7]]


def test_a_share_for_each_layer():
    frame = pd.DataFrame({"layer": [0, 0, 0, 2], "agrees": [True, False, True, False]})
    table = shares(frame, "agrees", "agreeing", "keys")
    assert table[["layer", "keys", "agreeing"]].to_numpy().tolist() == [[0, 3, 2], [2, 1, 0]]
    assert table["share"].tolist() == [2 / 3, 0]
    np.testing.assert_allclose(table[["low", "high"]], np.stack(wilson(np.array([2, 0]), np.array([3, 1])), 1))


@pytest.mark.parametrize("table", [boxes, lambda *arguments: shares(*arguments, "keys")])
def test_no_rows_give_no_layers(table):
    assert len(table(pd.DataFrame({"layer": [], "agrees": []}), "agrees", "agreeing")) == 0


def test_boxes_of_nothing_have_their_columns():
    columns = ["layer", "keys", "whisker_low", "q1", "median", "q3", "whisker_high"]
    assert boxes(pd.DataFrame({"layer": [], "rank": []}), "rank", "keys").columns.tolist() == columns
