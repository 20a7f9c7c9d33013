"""The report of a comparison, its command, and its rules."""

import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from support import ROOT, make_run, snakemake
from workflow.dry_run import planned

from ffkv.base.errors import UserError
from ffkv.base.settings import Comparison
from ffkv.run.report.page_tables import with_links
from ffkv.run.report.registry import load_figure
from ffkv_comparison.commands import comparison
from ffkv_comparison.comparison_file import read_comparison, write_comparison
from ffkv_comparison.drawings import draw_curves
from ffkv_comparison.page import describe_differences, render
from ffkv_comparison.step import compare_runs
from ffkv_comparison.tables import BEHAVIOUR_MEMORIES, BEHAVIOUR_OVERLAPS, BEHAVIOURS
from ffkv_explorer.page_run import comparison as show_comparison
from ffkv_explorer.page_run import find_comparisons
from ffkv_explorer.page_run import runs as runs_page
from ffkv_explorer.shelf import open_shelf

pytestmark = pytest.mark.slow

AXIS = Comparison(
    runs=["tiny", "again"], labels=["<first>", "second"], axis="training step", values=[0, 100], permutations=2
)


@pytest.fixture(scope="module")
def measured(folders):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folders[0].parents[1])
        return compare_runs(folders, AXIS, "twice")


@pytest.fixture(scope="module")
def made(folders, tmp_path_factory):
    """The folder in which Snakemake made the comparison. The runs are there already; only the comparison's rules may run."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(folders[0].parent, folder / "results")
    for name in ("tiny", "again"):
        (folder / "reports" / name).mkdir(parents=True)
        (folder / "reports" / name / "index.html").write_text("made")
    settings = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    again = {"model": {"checkpoint": "results/tiny/checkpoint"}}
    settings |= {"runs": {"tiny": {}, "again": again}, "comparisons": {"twice": AXIS.model_dump()}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    target = "reports/comparisons/twice/index.html"
    make_run(folder, folder / "config.yaml", target, "--allowed-rules", "comparison_measure", "comparison_report")
    return folder


@pytest.fixture(scope="module")
def page(made):
    return (made / "reports/comparisons/twice/index.html").read_text()


def test_the_page_shows_every_figure_and_escapes_labels(page):
    for name in ("formation", "overlaps", "kinds", "figure_2", "figure_9_axis", "kept_memories", "interventions"):
        assert f'<figure id="{name}">' in page
    assert "<first>" not in page and "&lt;first&gt;" in page
    assert (
        not re.search("https?:", re.sub(r'xmlns(:\w+)?="[^"]*"', "", page))
        and page.count("<script>") == page.count("<script") == 1
    )
    assert "100\u00a0% of values have the same top token" in page


def test_in_the_explorer_memories_lead_to_both_runs(page, measured):
    names = re.findall(r'<span class="memory">(L\d+\.\d+)</span>', page)
    stayed = measured.by_memory.query("run == 'again' and reference == 'tiny' and kind == 'stayed'")
    assert len(names) == len(stayed) > 0 and "/compare" not in page
    assert f'<a href="../compare?a=tiny&amp;b=again&amp;memory={names[0]}">{names[0]}</a>' in with_links(
        page, "tiny", "again"
    )


def test_the_page_shows_the_behaviours_of_several_runs(measured, page):
    assert "behaviours-compared" not in page  # no run has any
    row = dict.fromkeys(BEHAVIOURS.names, 0.25) | {
        "behaviour": "agreement",
        "other_settings": "",
        "positions": "all",
        "prompts": 40,
        "size": 20,
    }
    memory = {"behaviour": "agreement", "layer": 1, "memory": 3, "token": " are", "effect": 0.5, "effect_q": 0.1}
    overlap = dict.fromkeys(BEHAVIOUR_OVERLAPS.names, 1) | {
        "behaviour": "agreement",
        "run": "tiny",
        "next_run": "again",
    }
    of_runs = [{"run": name} for name in ("tiny", "again")]
    shown = render(
        replace(
            measured,
            curves=measured.curves.iloc[:0],  # they take seconds to draw, and are on `page`
            behaviours=BEHAVIOURS.frame([row | each for each in of_runs]),
            behaviour_memories=BEHAVIOUR_MEMORIES.frame([memory | each for each in of_runs]),
            behaviour_overlaps=BEHAVIOUR_OVERLAPS.frame([overlap]),
        )
    )
    for text in (
        '<figure id="behaviours">',
        "Memories of agreement: the effect in each run",
        "25\u00a0% (25\u00a0% to 25\u00a0%)",
    ):
        assert text in shown
    assert "<first>" not in shown and 'memory=L1.3">L1.3</a>' in with_links(shown, "tiny", "again")


def test_what_is_written_is_read_back(measured, tmp_path):
    write_comparison(measured, tmp_path / "tables")
    found = read_comparison(tmp_path / "tables")
    assert (found.name, found.settings, found.memories) == (measured.name, measured.settings, measured.memories)
    for name in ("runs", "curves", "differences", "by_layer", "by_memory"):
        pd.testing.assert_frame_equal(
            getattr(found, name), getattr(measured, name), check_dtype=False
        )  # of empty columns
    (tmp_path / "tables/curves.csv").write_text("other")
    with pytest.raises(UserError, match=r"curves\.csv is not what ffkv wrote"):
        read_comparison(tmp_path / "tables")
    with pytest.raises(UserError, match="holds no comparison"):
        read_comparison(tmp_path)


def test_a_comparison_of_another_version_is_refused(measured, tmp_path):
    write_comparison(measured, tmp_path / "tables")
    (tmp_path / ".tables.sha256").unlink()
    (tmp_path / "tables/matches.csv").write_text("run,layer,memory,correlation,rotated_correlation\n")
    with pytest.raises(UserError, match=r"matches.csv has no column matched_layer.*Measure the comparison again"):
        read_comparison(tmp_path / "tables")


def test_the_rules_measure_what_the_function_measures_and_the_explorer_shows_it(made, measured, page):
    found = read_comparison(made / "results/comparisons/twice/tables")
    assert found.settings == AXIS and found.curves.equals(measured.curves)
    shelf = open_shelf([made / "results" / name for name in ("again", "tiny")])
    assert [*find_comparisons(shelf)] == ["twice"] and 'href="/comparisons/twice"' in runs_page(shelf).body.decode()
    assert show_comparison(shelf, "twice").body.decode() == with_links(page, "tiny", "again")
    alone = open_shelf([made / "results/tiny"])
    assert not find_comparisons(alone) and "Comparisons" not in runs_page(alone).body.decode()
    with pytest.raises(UserError, match="No comparison of this name has a report"):
        show_comparison(alone, "twice")


def test_the_command_refuses_what_cannot_be_compared(folders, tmp_path):
    one = CliRunner().invoke(comparison, ["measure", str(folders[0]), "--output", str(tmp_path / "t")])
    assert one.exit_code and "runs is ['tiny']: must be 2 or more" in str(one.output) + str(one.exception)
    assert not (tmp_path / "t").exists()


def test_a_run_of_a_training_step_reads_the_checkpoint_of_that_step(tmp_path):
    runs = {"end": {}, "start": {"model": {"checkpoint": "results/end/checkpoint/steps/0"}}}
    settings = {"embedded": {"steps": 1, "keep_steps": [0]}, "runs": runs}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    dry = snakemake(tmp_path, tmp_path / "config.yaml", "-n", "-p", "results/start/model")
    assert planned(dry.stdout + dry.stderr) == {"train": 1, "model": 1}
    assert re.search(r"--checkpoint results/end/checkpoint/steps/0\b", dry.stdout + dry.stderr)


def test_a_figure_whose_runs_have_no_points_in_common_has_no_empty_row(measured):
    """Figure 6 of two models: its bins are quantiles of each model's own probabilities."""
    alone = replace(measured, differences=measured.differences.query("figure != 'figure_6'"))
    drawn = [draw_curves(each, "figure_6", load_figure("figure_6").curves) for each in (measured, alone)]
    assert [len(figure.axes) for figure in drawn] == [2, 1]
    assert describe_differences(alone, "figure_6").endswith("The runs have no points in common.")
    assert "Lower row" in describe_differences(measured, "figure_6")
