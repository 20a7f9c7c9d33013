"""Curves of several runs, and what two runs differ by."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from ffkv.base import doors
from ffkv.base.intervals import Z_95, difference_of_intervals, mean_interval, wilson
from ffkv.run.report.curve import Curve, Units
from ffkv.run.report.registry import FIGURES, has_figure, load_figure
from ffkv_comparison import step
from ffkv_comparison.step import (
    compare_curve,
    difference_of_means,
    difference_of_medians,
    gather_curves,
    measure_differences,
)

pytestmark = pytest.mark.slow


def test_means_by_hand():
    found = difference_of_means(np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0]))
    assert found == (4 / 3, *mean_interval(np.array([0.0, 1.0, 3.0])), 3)


def test_paired_shares_by_hand():
    """Bonett and Price 2012: with a pair more in each direction, 1 of 6 pairs differs upwards and 2 downwards."""
    found = difference_of_means(np.array([0.0, 1, 1, 0]), np.array([1.0, 1, 1, 0]))
    half = Z_95 * np.sqrt((1 / 6 + 2 / 6 - 1 / 36) / 6)
    assert found == pytest.approx((-1 / 4, -1 / 6 - half, -1 / 6 + half, 4))
    low, high = difference_of_means(np.ones(50), np.ones(50))[1:3]
    assert -0.1 < low < 0 < high < 0.1  # no pair differs, which does not show that none would


def test_independent_shares_by_the_worked_example_of_newcombe():
    """Newcombe (1998), table II, row (a), method 10: 56/70 - 48/80 is 0.2, from 0.0524 to 0.3339."""
    a, b = 56 / 70, 48 / 80
    found = difference_of_intervals(a, *wilson(56, 70), b, *wilson(48, 80))
    assert found == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)  # as printed


def test_paired_medians_are_drawn_together():
    """y = x - 3 for each pair: the difference is 3 in every resample. Drawn apart it is not."""
    x = np.random.default_rng(0).normal(size=50)
    paired = difference_of_medians(x, x - 3, True, np.random.default_rng(1))
    assert paired[:3] == pytest.approx((3, 3, 3), abs=1e-12) and paired.pairs == 50
    apart = difference_of_medians(x, x - 3, False, np.random.default_rng(1))
    assert apart.low < 2.9 < 3.1 < apart.high and apart.pairs == 0


def test_resamples_are_drawn_in_blocks(monkeypatch):
    """Hundreds of resamples of a million prefixes at a time would take gigabytes. The numbers are the same."""
    x, y = np.random.default_rng(0).normal(size=(2, 50))

    def both():
        return [difference_of_medians(x, y, paired, np.random.default_rng(1)) for paired in (True, False)]

    whole = both()
    monkeypatch.setattr(step, "RESAMPLED_BYTES", 3 * 8 * 50)  # three resamples
    assert both() == whole


class Deep:
    """A run whose numbers are its layer plus 10 times its unit."""

    def __init__(self, layers: int):
        self.anatomy = type("Anatomy", (), {"layers": [None] * layers})

    def numbers(self) -> pd.DataFrame:
        rows = [(layer, unit, layer + 10 * unit) for layer in range(len(self.anatomy.layers)) for unit in range(4)]
        return pd.DataFrame(rows, columns=["layer", "unit", "value"]).astype({"value": float})

    def points(self) -> pd.DataFrame:
        means = self.numbers().groupby("layer")["value"].mean()
        return pd.DataFrame({"x": means.index, "value": means.to_numpy(), "low": np.nan, "high": np.nan})


def test_models_of_other_depths_are_compared_at_the_same_depth():
    curve = Curve("number", Deep.points, units=Units("prefixes", Deep.numbers))
    found = compare_curve(curve, Deep(6), Deep(3), True, np.random.default_rng(0))
    assert found["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["difference"].tolist() == [0, 1, 1, 2, 2, 3]  # minus layers 0, 0, 1, 1, 2, 2 of the other one
    assert (found["pairs"] == 4).all() and (found["paired_by"] == "prefixes").all()
    apart = compare_curve(curve, Deep(6), Deep(3), False, np.random.default_rng(0))
    assert apart["difference"].tolist() == found["difference"].tolist() and (apart["pairs"] == 0).all()


def test_two_runs_that_are_the_same_differ_by_nothing(pair):
    curves, differences = gather_curves(pair), measure_differences(pair)
    own, other = (
        curves[curves["run"] == name].drop(columns="run").reset_index(drop=True) for name in ("tiny", "again")
    )
    pd.testing.assert_frame_equal(own, other)
    there = {name for name in FIGURES if has_figure(pair.runs[0], name)}
    assert set(curves["figure"]) == {name for name in there if load_figure(name).curves}
    assert (differences["difference"].dropna() == 0).all() and len(differences.dropna(subset="difference")) > 50
    paired = differences[differences["pairs"] > 0]
    assert (paired["low"].fillna(0) <= 0).all() and (paired["high"].fillna(0) >= 0).all()
    by = paired.groupby("figure")["paired_by"].unique().str[0].to_dict()
    assert by.items() >= {"figure_4": "memories", "figure_9": "prefixes", "interventions": "memories"}.items()


def test_a_figure_of_a_package_of_others_that_fails_is_left_out_and_told(pair, monkeypatch, capsys):
    """All others are compared with the same numbers."""
    whole = gather_curves(pair)
    monkeypatch.setattr(doors, "brought_by", lambda door, name: "theirs 1" * (name == "refinement"))
    monkeypatch.setattr(step, "brought_by", doors.brought_by)
    load = step.load_figure
    broken = replace(load("figure_9"), curves=[Curve("theirs", lambda run: 1 / 0)])
    monkeypatch.setattr(step, "load_figure", lambda name: broken if name == "figure_9" else load(name))
    curves = gather_curves(pair)
    pd.testing.assert_frame_equal(curves, whole[whole["figure"] != "figure_9"].reset_index(drop=True))
    told = capsys.readouterr().err
    assert "The page lacks the curves of figure_9 of 'refinement'." in told and "ZeroDivisionError" in told


def test_every_curve_summarizes_its_units(pair):
    """The points of a figure are the means or medians of the numbers that runs are paired by."""
    run, checked = pair.runs[0], 0
    for name in FIGURES:
        for curve in load_figure(name).curves:
            if curve.units is not None:
                numbers = curve.units.numbers(run).groupby("layer")["value"]
                expected = numbers.median() if curve.units.median else numbers.mean()
                points = curve.points(run).set_index("x")["value"]
                found = points.reindex(expected.index).fillna(0)  # a case that no prefix has may have no row
                np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=curve.label)  # CSV has ten digits
                checked += 1
    assert checked >= 12
