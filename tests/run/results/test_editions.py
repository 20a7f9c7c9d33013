"""Runs of earlier editions of ffkv open. Small results of each release are in `editions`, where a README says how they were made."""

import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import draw_nothing

import ffkv
import ffkv_comparison
from ffkv.base.errors import UserError
from ffkv.base.files.columns import LAYER, count, table, word
from ffkv.base.steps import Step
from ffkv.branches.behaviours.summary_tables import SUMMARY
from ffkv.branches.branch import Branch
from ffkv.branches.intervention.tables import KEPT_MEMORIES
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Keys, Section, Settings
from ffkv.run.commands import check
from ffkv.run.export.settings import FORMATS, Export
from ffkv.run.export.step import export
from ffkv.run.results import expected
from ffkv.run.results.check import check_run
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run import Run
from ffkv_comparison.comparison_file import read_comparison
from ffkv_comparison.page import write_page
from ffkv_explorer.application import PAGES
from ffkv_explorer.page_annotate import ITEM
from ffkv_explorer.shelf import open_shelf
from ffkv_publishing.crate import write_crate
from tests.ffkv_explorer.conftest import Visitor, text_of

third = pytest.mark.parametrize("kept", ["third"], indirect=True)  # what only this edition lacks
EDITIONS = sorted(folder.name for folder in Path(__file__).with_name("editions").iterdir())


@pytest.fixture(scope="session", params=EDITIONS)
def kept(request, tmp_path_factory) -> Path:
    """The folder of a run of an earlier edition, whose name is that of the edition. Nobody changes a file there."""
    folder = tmp_path_factory.mktemp("edition")
    with tarfile.open(Path(__file__).parent / "editions" / request.param / "results.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "results" / request.param


@pytest.fixture(scope="session")
def reported(kept) -> Path:
    """The folder of the run. Beside it are its report and that of its comparison, without drawings."""
    with pytest.MonkeyPatch.context() as patched:
        draw_nothing(patched)
        reports = kept.parent.parent / "reports"
        ffkv.write_report(ffkv.open(kept), reports / kept.name / "index.html")
        write_page(read_comparison(kept.parent / "comparisons/both/tables"), reports / "comparisons/both/index.html")
    return kept


@pytest.fixture
def run(kept, monkeypatch) -> Run:
    """The run, where it was made: its checkpoint is named from there."""
    monkeypatch.chdir(kept.parent.parent)
    return ffkv.open(kept)


@pytest.fixture
def copy(kept, tmp_path) -> Path:
    """A copy of the run and all beside it, for tests that change a file."""
    shutil.copytree(kept.parent.parent, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("reports"))
    return tmp_path / "results" / kept.name


def test_python_reads_all_of_it(run):
    tables = {Path(path).stem for path in expected_files(run.settings) if path.endswith(".csv")}
    later = {Path(path).stem for path in run.files.unmeasured}
    assert tables - later <= {*run.tables} and all(len(run.table(name).columns) for name in run.tables)
    assert len(run.layers) == len(run.anatomy.layers) and len(run.memories()) == run.anatomy.layer_offset[-1]
    assert ffkv.verdicts(run)["verdict"].notna().all()
    memory = run.memory(0, 3)
    assert len(memory.triggers) and len(memory.promotes(3)) == 3 and len(memory.statistics)
    for by in ("value", "coefficients", "triggers"):
        assert "name" in memory.similar(by, 3)
    token = memory.promotes(1)["token"].iloc[0]
    assert "L0.3" in run.memories(promotes=token)["name"].tolist()
    assert (
        len(run.translated.memories(promotes=token))
        and len(run.memories(text="the"))
        and len(run.memories(pattern="e"))
    )
    assert ffkv.collections(run)["memory"].tolist() and len(run.corpus()) and len(run.vocabulary)
    assert len(ffkv.trace(run, "This is a list").layers)


@third
def test_what_it_knows_of_behaviours_is_told_and_what_it_does_not_is_empty(run):
    (name,) = run.settings.behaviours
    (row,) = run.table("behaviours").to_dict("records")
    assert [*row] == SUMMARY.names and row["groups"] != row["groups"] and row["grouped_by"] == ""
    found = run.memories(behaviour=name)
    assert len(found) and len(run.memory(found["name"].iloc[0]).behaviours.columns) > 20
    assert len(ffkv.behaviour_graph(run, name).sets)
    assert "behaviours/behaviours.csv: several, groups, grouped_by, smallest_p" in run.unmeasured


def test_the_explorer_shows_every_page_of_it(reported, monkeypatch):
    kept = reported
    monkeypatch.chdir(kept.parent.parent)
    visitor = Visitor(open_shelf([kept, kept.with_name(f"{kept.name}-untrained")], history=False))
    (behaviour,) = ffkv.open(kept).settings.behaviours
    run = f"/r/{kept.name}"
    memory = f"{run}/m/0/3"
    pages = {
        "/": ["/"],
        "/r/{run}/": [f"{run}/"],
        "/r/{run}/claims.svg": [f"{run}/claims.svg"],
        "/r/{run}/report": [f"{run}/report"],
        "/r/{run}/figures/{name}": [f"{run}/figures/figure_4.svg"],
        "/r/{run}/memories": [f"{run}/memories", f"{run}/memories?text=the", f"{run}/memories?behaviour={behaviour}"],
        "/r/{run}/go": [f"{run}/go?q=L0.3"],
        "/r/{run}/complete": [f"{run}/complete?promotes=th"],
        "/r/{run}/m/{layer}/{index}": [memory, f"/r/{kept.name}-untrained/m/0/3"],
        "/r/{run}/m/{layer}/{index}/similar": [f"{memory}/similar"],
        "/r/{run}/collections": [f"{run}/collections"],
        "/r/{run}/behaviours": [f"{run}/behaviours"],
        "/r/{run}/trace": [f"{run}/trace", f"{run}/trace?prompt=This+is+a+list"],
        "/compare": [f"/compare?a={kept.name}&b={kept.name}-untrained&memory=L0.3"],
        "/comparisons/{name}": ["/comparisons/both"],
        "/annotate": ["/annotate"],
        "/annotate/{sheet}": ["/annotate/keys"],
        "/r/{run}/annotate/{sheet}": [f"{run}/annotate/keys"],
        "/r/{run}/annotate/{sheet}/{annotator}": [f"{run}/annotate/keys/anna"],
        ITEM: [f"{run}/annotate/keys/anna/1"],
        "/static/{name}": ["/static/explorer.css"],
    }
    # What `ffkv explore --export` writes; what is there once a person has asked a file of prompts; and experts, which the model lacks.
    others = {
        "/r/{run}/e/{name}",
        "/r/{run}/memories/{page}",
        "/r/{run}/behaviours/{key}",
        "/r/{run}/behaviours/{key}/zip",
    }
    assert {*pages} == {*PAGES} - others
    for address in (address for addresses in pages.values() for address in addresses):
        assert visitor.get(address)
    lacks = bool(ffkv.open(kept).unmeasured)
    assert ("not measured by the earlier ffkv" in text_of(visitor.get(f"{run}/"))) == lacks


@third
def test_the_report_tells_what_was_not_measured(reported):
    page = text_of((reported.parent.parent / "reports" / reported.name / "index.html").read_text())
    assert "not measured by the earlier ffkv that made the run" in page
    assert "Each prompt counts as one draw: an earlier ffkv made the run, which knew no groups of prompts." in page
    assert f"{reported.name}-untrained was not asked for it." in page and "and the same prompts" not in page
    assert not re.search(r"\bnan\b", page)


@pytest.mark.parametrize("name", FORMATS)
def test_it_is_exported(run, tmp_path, name):
    wanted = Export(memories=["L0.0-3", "@starred"])
    if name == "jacobian-lens":  # which it does not have
        with pytest.raises(UserError, match="in these readings only: head, translated"):
            export(run, name, tmp_path / "out", wanted, "cpu")
        return
    assert export(run, name, tmp_path / "out", wanted, "cpu") == []
    assert any(path.is_file() for path in (tmp_path / "out").rglob("*"))


def test_it_is_whole(kept):
    for folder in (kept, kept.with_name(f"{kept.name}-untrained")):
        assert {problem.kind for problem in check_run(folder)[1]} <= {"earlier"}


@third
def test_what_is_not_there_is_no_damage(kept):
    told = CliRunner().invoke(check, [str(kept)])
    assert told.exit_code == 0 and "all are whole" in told.output
    assert "behaviours.csv has no several, groups, grouped_by, smallest_p: an earlier ffkv made the run" in told.output
    told = [str(each.reason) for each in check_run(kept.with_name(f"{kept.name}-untrained"))[1]]
    assert told == [
        "has no texts, positions, change, identity_share: an earlier ffkv made the run, which did not measure it."
    ]


def test_its_comparison_opens_and_can_be_made_again(run, copy):
    assert read_comparison(run.folder.parent / "comparisons/both/tables").name == "both"
    shutil.copytree(copy, copy.with_name("other"))
    measured = ffkv_comparison.compare_runs([copy, copy.with_name("other")])
    assert len(measured.behaviours) == 2 and measured.behaviours["difference_low"].notna().all()


@third
def test_a_lost_table_is_missing_where_the_run_knows_all_sections(copy):
    """As of a run that this ffkv made: its tables are not told to be of a later one."""
    settings = json.loads((copy / "settings.json").read_text())
    every = json.loads(Settings.model_validate(settings).model_dump_json())
    (copy / ".settings.json.sha256").unlink()
    for added, kind in (({}, "earlier"), ({name: every[name] for name in every if name not in settings}, "missing")):
        (copy / "settings.json").write_text(json.dumps(settings | added))
        found = {each.path: each.kind for each in check_run(copy)[1]}
        assert found[copy / "behaviours/behaviour_areas.csv"] == kind


@third
def test_a_crate_holds_what_the_run_has(run, tmp_path):
    assert write_crate(run, tmp_path / "crate.zip", "CC0-1.0") == 0
    with zipfile.ZipFile(tmp_path / "crate.zip") as crate:
        names = crate.namelist()
    assert "results/third/triggers.h5" in names and "results/third/behaviours/behaviour_areas.csv" not in names


class Later(Keys):
    """A section with a setting that no run has."""

    longest: int = 7


class Toy(Section):
    """A section that no run has."""

    depth: int = 2


class LaterSettings(Settings):
    """Those of a later ffkv."""

    keys: Later = Later()
    toy: Toy = Toy()


@third
def test_settings_and_branches_that_came_later(copy, monkeypatch, undrawn, tmp_path):
    """A setting takes its default, and the run has no branch whose settings it lacks."""
    toy = table("toy/toy.csv", "A layer.", LAYER, count("toys", "toys"))
    branch = Branch("toy", "Toys.", "", {"measure": Step("toy:measure", writes=(toy,))}, "Toys", "Toys.")
    monkeypatch.setitem(BRANCHES, "toy", branch)
    monkeypatch.setattr(expected, "Settings", LaterSettings)
    run = ffkv.open(copy)
    assert run.settings.keys.longest == 7 and run.settings.toy.depth == 2
    assert branch.is_in(LaterSettings()) and not branch.is_in(run.settings) and "toy" in run.unmeasured
    ffkv.write_report(run, tmp_path / "index.html")
    assert "toy;" in text_of((tmp_path / "index.html").read_text())
    told = CliRunner().invoke(check, [str(copy)])
    assert told.exit_code == 0 and f"{copy}/toy is not there: an earlier ffkv made the run" in told.output


@third
def test_a_table_that_came_later_is_absent(copy, monkeypatch, undrawn, tmp_path):
    (copy / KEPT_MEMORIES.path).unlink()
    with pytest.raises(
        UserError,
        match=f"has no {KEPT_MEMORIES.path}: the run was not asked for it, or had not made it when you opened it",
    ):
        ffkv.open(copy).table(KEPT_MEMORIES.name)
    assert "missing" in {problem.kind for problem in check_run(copy)[1]}
    with pytest.raises(UserError, match=f"has no {KEPT_MEMORIES.path}, which the report shows"):
        ffkv.write_report(ffkv.open(copy), tmp_path / "index.html")
    monkeypatch.setitem(vars(KEPT_MEMORIES), "since", "fifth")
    run = ffkv.open(copy)
    with pytest.raises(
        UserError, match=f"has no {KEPT_MEMORIES.path}: an earlier ffkv made the run, which did not measure it"
    ):
        run.table(KEPT_MEMORIES.name)
    assert {problem.kind for problem in check_run(copy)[1]} == {"earlier"}
    ffkv.write_report(run, tmp_path / "index.html")
    page = (tmp_path / "index.html").read_text()
    assert KEPT_MEMORIES.path in page and 'id="kept_memories"' not in page


@third
def test_a_package_that_came_after_a_run_makes_it_no_earlier_one(copy, monkeypatch):
    """A table that is gone is missing, though the settings of the run have no section of the package."""
    text = expected.read_settings(copy).model_dump_json()
    (copy / "settings.json").write_text(text)
    (copy / ".settings.json.sha256").unlink()
    (copy / KEPT_MEMORIES.path).unlink()
    monkeypatch.setitem(vars(KEPT_MEMORIES), "since", "fifth")
    monkeypatch.setattr(expected, "Settings", LaterSettings)
    assert KEPT_MEMORIES.path in expected.unmeasured(copy, expected.read_settings(copy))  # a section of ffkv is new
    monkeypatch.setattr(expected, "entries", lambda door: {"toy": None} if door == "branches" else {})
    assert KEPT_MEMORIES.path not in expected.unmeasured(copy, expected.read_settings(copy))


def test_a_column_that_came_later_is_written_and_may_be_missing_when_it_is_read():
    described = table(
        "a.csv", "A layer.", LAYER, word("how", "how", "so", since="fifth"), count("many", "many", since="fifth")
    )
    whole = described.frame([{"layer": 0, "how": "so", "many": 2}])
    assert described.completed(whole) is whole
    old = whole[["layer"]]
    assert described.problem(old) == ""
    row = described.completed(old).iloc[0]
    assert [*row.index] == described.names and row["how"] == "" and row["many"] != row["many"]
    with pytest.raises(ValueError, match="has the columns"):
        described.check(old)
