"""The claims of the report in several runs, and which memories share a number."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.intervals import difference_of_intervals
from ffkv.base.settings import Comparison
from ffkv.run.report.claims import CLAIMS
from ffkv_comparison.comparison_file import Compared, Measured
from ffkv_comparison.drawings import _over_axis
from ffkv_comparison.page import claims_table, render
from ffkv_comparison.step import compare_claims, gather_costs
from ffkv_comparison.tables import CLAIMS as OF_RUNS
from ffkv_comparison.tables import TABLES

NAN = float("nan")


def by_hand(runs, claims) -> Measured:
    """A comparison of which only the claims are known: `claims` has rows of the table without the names of the runs."""
    frames = {table.name: table.frame([]) for table in TABLES}
    frames["runs"] = pd.DataFrame({"run": runs, "label": runs, "layers": 2, "memories": 4})
    frames["claims"] = OF_RUNS.frame(claims)
    return Measured(name="by hand", settings=Comparison(runs=runs), memories="no", **frames)


ROWS = [
    ("a", "shallow_fall", -0.25, -0.3, -0.2, "holds", NAN, NAN, NAN),
    ("a", "values_cause", -0.5, -0.75, -0.25, "cannot say", NAN, NAN, NAN),
    ("b", "shallow_fall", 0.25, 0.2, 0.3, "does not hold", 0.5, 0.4, 0.6),
    ("b", "values_cause", -0.25, -0.5, 0.0, "cannot say", 0.25, -0.1, 0.6),
]


def test_each_run_has_a_column_and_each_other_run_its_difference():
    measured = by_hand(["a", "b"], ROWS)
    assert "Of 2 claims, 1 has another verdict in b than in a, and 1 has surely another number." in render(measured)
    table = claims_table(measured)
    assert [str(header).replace("<bdi>", "").replace("</bdi>", "") for header in table.headers] == [
        "claim",
        "a",
        "b",
        "b less a",
    ]
    words = {claim.name: claim.words for claim in CLAIMS}
    rows = {row[0]: [str(cell).replace("\u00a0", " ") for cell in row[1:]] for row in table.rows}
    assert rows[words["shallow_fall"]] == [
        '−25 points<br><span class="note">−30 to −20 points</span> <b class="holds">holds</b>',
        '+25 points<br><span class="note">+20 to +30 points</span> <b class="does-not-hold">does not hold</b>',
        '+50 points<br><span class="note">+40 to +60 points</span>',
    ]
    assert "nats" in rows[words["values_cause"]][0] and "points" not in "".join(rows[words["values_cause"]])


def test_the_page_begins_with_the_claims():
    page = render(by_hand(["a", "b"], ROWS))
    assert (
        page.index('id="claims"') < page.index("<nav ") < page.index('id="summary"')
        and page.count('class="does-not-hold"') == 1
    )
    assert 'id="claims"' not in render(by_hand(["a", "b"], []))  # of an earlier edition


@pytest.mark.slow
def test_claims_are_those_of_the_reports(pair):
    found = compare_claims(pair)
    for run in pair.runs:
        own = found[found["run"] == run.name].set_index("claim")
        expected = ffkv.verdicts(run).set_index("claim")
        names = ["value", "low", "high", "verdict"]
        pd.testing.assert_frame_equal(own[names], expected[names], check_dtype=False)
    first, again = (found[found["run"] == name].reset_index() for name in ("tiny", "again"))
    assert first["difference"].isna().all()
    known = again["low"].notna()
    assert known.any() and (again.loc[known, "difference"] == 0).all()
    for row in again[known].itertuples():  # Newcombe, of two equal estimates
        ends = difference_of_intervals(row.value, row.low, row.high, row.value, row.low, row.high)
        assert (row.difference_low, row.difference_high) == pytest.approx(ends[1:])
        assert -row.difference_low == pytest.approx(np.hypot(row.value - row.low, row.high - row.value))


def compared(*weights_and_hashes, **options) -> Compared:
    names = [f"run-{place}" for place in range(len(weights_and_hashes))]
    runs = [
        SimpleNamespace(
            name=name,
            anatomy=SimpleNamespace(
                dictionary="", width=4, layer_offset=[0, 8], weights=weights, model_hash=hashed, layers=[0]
            ),
        )
        for name, (weights, hashed) in zip(names, weights_and_hashes, strict=True)
    ]
    return Compared("twice", Comparison(runs=names, **options), runs)


def test_memories_of_random_weights_share_no_number_with_another_model():
    trained, untrained, other = ("checkpoint", "a"), ("random", "b"), ("checkpoint", "c")
    assert compared(trained, other).memories == "by_number"
    assert compared(trained, untrained).memories == "by_correlation"
    assert compared(untrained, untrained).memories == "by_number"  # one model, on two corpora
    assert compared(untrained, ("random", "d")).memories == "by_correlation"
    assert compared(trained, untrained, memories="no").memories == "no"
    with pytest.raises(UserError, match=r"the weights of run-1 are random.*Set it to by_correlation or no"):
        compared(trained, untrained, memories="by_number").memories  # noqa: B018


def test_no_two_runs_have_the_same_label():
    one, other = ("checkpoint", "a"), ("checkpoint", "b")
    assert compared(one, other, axis="tokens", values=[10, 20]).labels == ["tokens 10", "tokens 20"]
    close = compared(one, other, axis="tokens", values=[1_000_000, 1_000_001])  # both are 1e+06
    assert close.labels == ["tokens 1e+06 (run-0)", "tokens 1e+06 (run-1)"]


@pytest.mark.parametrize("values", [[0, 20, 400], [1, 20, 400], [0, 1, 2]])
def test_the_first_and_the_last_place_of_an_axis_are_equally_far_from_its_ends(values):
    """A logarithmic axis with the ends of a linear one would cut the last point, which is on its end."""
    axes = Figure().subplots()
    axes.plot(values, [0, 1, 2])
    axes.set_ylim(0, axes.get_ylim()[1])  # the ends of the linear axis are asked for
    measured = SimpleNamespace(settings=SimpleNamespace(values=values, axis="step"), runs=[1, 2, 3])
    _over_axis(measured, axes)
    low, first, last, high = axes.transScale.transform(
        [(x, 1) for x in (axes.get_xlim()[0], values[0], values[-1], axes.get_xlim()[1])]
    )[:, 0]
    assert first - low == pytest.approx(high - last, rel=1e-6) and first - low > 0.04 * (
        last - first
    )  # matplotlib's margin is 0.05


def test_costs_are_those_of_the_curves():
    """By hand: layer 1 is read through a dictionary of 8 units by one run, which leaves a quarter of its variance."""
    layers = [SimpleNamespace(memories=4), SimpleNamespace(memories=4)]
    others = [layers[0], SimpleNamespace(memories=8)]
    place = SimpleNamespace(layer=1, unexplained=0.25)
    runs = [
        SimpleNamespace(
            name="a", anatomy=SimpleNamespace(layers=layers, dictionaries=[]), settings=ffkv.settings.Settings()
        ),
        SimpleNamespace(
            name="b", anatomy=SimpleNamespace(layers=others, dictionaries=[place]), settings=ffkv.settings.Settings()
        ),
    ]
    values = {
        "median share of active memories": 0.25,
        "median effective number of memories": 3.0,
        "agreement rate": 0.125,
    }
    figures = ["figure_7", "figure_7", "figure_4"]
    curves = pd.DataFrame(
        [
            {"figure": figure, "curve": curve, "run": run.name, "x": x, "value": value}
            for run in runs
            for x in (0.0, 1.0)
            for figure, (curve, value) in zip(figures, values.items(), strict=True)
        ]
    )
    found = gather_costs(SimpleNamespace(runs=runs), curves)
    assert (found["layer"] == 1).all() and len(found) == 6
    for name, units, explained in (("a", 4, 1.0), ("b", 8, 0.75)):
        own = found[found["run"] == name].set_index("curve")
        assert (own["units"] == units).all() and (own["explained"] == explained).all()
        assert (own["active"] == units * 0.25).all()
        assert own["value"].to_dict() == values
        # A number of memories is no share of them.
        assert own["per_thousand"].dropna().to_dict() == {"median share of active memories": 250, "agreement rate": 125}
