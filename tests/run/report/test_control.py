"""A control run in the figures of a run."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.registry import BRANCHES
from ffkv.run.report.curve import GREY, draw_control, lines
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.section import about_text, draw_exhibits, open_control, summary, told
from ffkv.run.report.step import write_report
from ffkv.run.results.run import open
from tests.run.report.conftest import ChangedRun, write_results

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory, folder):
    """A run that names a control, and the control, whose residual agrees in half of all prefixes."""
    top = tmp_path_factory.mktemp("pair")
    write_results(top / "demo", report={"control": "demo-random"})
    shutil.copytree(folder, top / "demo-random")
    path = top / "demo-random/refinement/figure_9_residual_agreement.csv"
    tables.write(tables.read(path).assign(share=0.5), path)
    return open(top / "demo"), open(top / "demo-random")


def grey_lines(axes):
    return [line.get_xydata().T for line in axes.lines if line.get_color() == GREY]


def test_every_figure_of_the_paper_has_lines_for_a_control():
    assert all(load_figure(f"figure_{number}").curves for number in range(2, 12))


def test_every_figure_shows_its_control(subtests, pair):
    run, control = pair
    figures = {name: load_figure(name) for name in FIGURES}
    for name, figure in figures.items():
        if not figure.curves:  # it has no lines for another run
            continue
        with subtests.test(name=name):
            drawn = figure.draw(run, None)
            before = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
            assert draw_control(drawn, figure.curves, control)
            found = [line for axes in drawn.axes for line in grey_lines(axes)]
            expected = sorted(lines(figure.curves, control), key=lambda line: line[0].panel)
            assert len(found) == len(expected) > 0
            for (x, y), (_, its_x, its_y) in zip(found, expected, strict=True):
                np.testing.assert_allclose(x, its_x)
                np.testing.assert_allclose(y, its_y)
            after = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
            assert sorted(after) == sorted([*before, "control: demo-random"])
    assert "control: demo-random" in draw_exhibits(run, control, only="refinement")["figure_9"].svg


def test_lines_are_those_of_the_control_and_not_of_the_run(pair):
    control = pair[1]
    figure = load_figure("figure_9")
    ((_, x, y),) = lines(figure.curves, control)
    assert x.tolist() == list(range(6)) and y.tolist() == [0.5] * 6
    edges = [y for _, _, y in lines(load_figure("figure_11").curves, control)]
    breakdown = control.table("figure_11_breakdown").pivot(index="layer", columns="case", values="share")
    np.testing.assert_allclose(edges[0], breakdown["residual"])
    np.testing.assert_allclose(edges[1], breakdown["residual"] + breakdown["agreement"])
    assert (edges[-1] <= 1).all() and len(edges) == breakdown.shape[1] - 1


def test_translated_figures_show_the_control_translated(pair):
    """Through the maps, not by their nulls, and not as the head reads it; and the answer stands beside that of the run."""
    run, control = pair
    expected = {
        "translated_agreement": [("translated_agreement", "rate", "source == 'trigger'")],
        "translated_rank": [("translated_rank", "median", "")],
        "translated_composition": [("translated_no_agreement", "share", "counted == 'active'")],
        "translated_residual": [
            ("translated_residual_agreement", "share", ""),
            ("translated_final_probability", "median", ""),
        ],
        "translation_fit": [("translation_fit", "explained_variance", ""), ("translation_fit", "divergence", "")],
    }
    assert {*expected, "key_reading"} == {*BRANCHES["translation"].figures}  # which reads keys
    for name, curves in expected.items():
        found = lines(load_figure(name).curves, control)
        both = [(reading, *curve) for curve in curves for reading in ("translated", "jacobian")]
        for (_, _, y), (reading, table, value, which) in zip(found, both, strict=True):
            own = control.table(table).query(" and ".join(filter(None, [f"reading == '{reading}'", which])))
            np.testing.assert_array_equal(y, own.sort_values("layer")[value])
    table = control.table("translation_differences")
    lower = (table["half"] == "lower") & (table["compared"] == "translated - head")
    other = ChangedRun(control, {"translation_differences": table.assign(mean=table["mean"].mask(lower, 0.123))})
    told = "the difference from the head's reading, translated (95 % interval)"
    ((own, its),) = [(own, its) for what, own, its in summary(run, other) if what == told]
    assert its.startswith("+12\u00a0points") and not own.startswith("+12\u00a0points")


def test_captions_and_summary_name_the_control(pair, undrawn, tmp_path):
    run, control = pair
    exhibits = draw_exhibits(run, control)
    assert "Grey dashes: the control run demo-random, of " in exhibits["figure_9"].caption.more
    assert "Grey dashes" not in exhibits["training"].caption.text
    shown, text = exhibits["figure_9"].caption.shows, exhibits["figure_9"].caption.more.replace("\u00a0", " ")
    assert shown == load_figure("figure_9").caption(run).shows
    assert text.endswith(
        " There: The share of prefixes whose residual predicts what the model will predict is 50 % in every layer."
    )
    rows = summary(run, control)
    assert rows[0] == ("keys with a pattern in their trigger examples", "90\u00a0%", "90\u00a0%")
    assert [(what, own) for what, own, _ in rows] == [(what, own) for what, own, _ in summary(run)]
    assert not any("(" in each for _, own, its in rows for each in (own, its) if "points" not in own)
    assert told(run, control)[-1].startswith("Demo-random: the control run demo-random, of ")
    write_report(run, tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert page.count("Grey dashes: ") >= 10 and '<th scope="col" class="number">demo-random</th>' in page


def test_an_untrained_control_is_called_so(pair):
    run, control = pair
    untrained = ChangedRun(control, anatomy=replace(control.anatomy, weights="random"))
    assert (
        told(run, untrained)[-1]
        == "Untrained: the control run demo-random, whose weights are random, on 2,050 tokens of the same text."
    )


@pytest.mark.parametrize(
    ("tokens", "weights", "said"), [(9, "random", True), (10, "random", False), (9, "checkpoint", False)]
)
def test_a_control_on_less_text_says_what_follows(tokens, weights, said):
    def read(tokens: int) -> SimpleNamespace:
        files = SimpleNamespace(corpora={"train": {"tokens": tokens}})
        return SimpleNamespace(files=files, anatomy=SimpleNamespace(weights=weights))

    expected = " In more text, more of its trigger examples would be alike and have patterns." if said else ""
    assert about_text(read(10), read(tokens)) == expected


@pytest.mark.parametrize(
    ("settings", "weights", "said"),
    [
        (
            {"report": {"control": "none"}},
            "checkpoint",
            "Not compared with an untrained model: report.control is none.",
        ),
        ({"model": {"max_memory": {"cpu": "1GB"}}}, "checkpoint", "untrained model: model.max_memory is set."),
        ({}, "checkpoint", "Not compared with an untrained model."),
        ({}, "random", "This model is untrained itself."),
    ],
)
def test_a_summary_without_a_control_says_why(run, change, settings, weights, said):
    changed = change(settings, anatomy=replace(run.anatomy, weights=weights))
    assert told(changed)[-1].endswith(said)
    assert {its for *_, its in summary(changed)} == {"–"}


def test_a_run_without_a_control_has_none(run, undrawn):
    assert open_control(run) is None
    assert "Grey dashes" not in draw_exhibits(run)["figure_9"].caption.more


def test_a_control_of_another_shape_or_none_is_refused(tmp_path):
    run = open(write_results(tmp_path / "demo", report={"control": "other"}))
    with pytest.raises(UserError, match="other is not there, with which the report compares demo"):
        open_control(run)
    write_results(tmp_path / "other", layers=3)
    with pytest.raises(UserError, match=r"report.control of demo is other, whose model has 3 layers, not 6"):
        open_control(run)
