"""Figures and the report of a run in a notebook."""

from html import unescape

import pytest
from matplotlib.figure import Figure
from report.conftest import write_results

import ffkv
from ffkv.run.report.sections import draw_exhibits


def test_every_figure_of_the_report_is_drawn_alone(folder, undrawn, tmp_path):
    run = ffkv.open(folder)
    for name in draw_exhibits(run):
        drawn = ffkv.figure(run, name)
        assert isinstance(drawn, Figure) and drawn.axes
    drawn.savefig(tmp_path / "figure.png")


def test_a_control_run_is_in_the_figure(tmp_path):
    write_results(tmp_path / "results/other")
    run = ffkv.open(write_results(tmp_path / "results/own", report={"control": "other"}))
    labels = [text.get_text() for text in ffkv.figure(run, "figure_4").legends[0].get_texts()]
    assert "control: other" in labels


@pytest.mark.parametrize("name", ["figure_99", None, []])
def test_a_figure_that_does_not_exist_is_refused(folder, name):
    with pytest.raises(ffkv.UserError, match=r"There is no figure of demo called .*figure_2, figure_3, figure_4"):
        ffkv.figure(ffkv.open(folder), name)


def test_the_page_is_shown_in_a_frame_of_its_own(tmp_path):
    run = ffkv.open(write_results(tmp_path / "results/own"))
    with pytest.raises(ffkv.UserError, match=r"reports/own/index.html does not exist. `snakemake` writes it"):
        ffkv.report(run)
    page = tmp_path / "reports/own/index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p class=\"a\">ü & 'x'</p>")
    shown = ffkv.report(run)
    assert repr(shown) == f"<Page {page}>"
    inside = shown._repr_html_().partition('srcdoc="')[2].partition('"')[0]
    assert unescape(inside) == page.read_text()
