"""The rule of the workflow: it runs once somebody said something, and again when somebody says more."""

import shutil

import pytest
from support import ROOT, snakemake
from workflow.dry_run import planned

import ffkv
from ffkv.run.results.check import check_run
from ffkv_annotation.records import Record, append_record
from ffkv_annotation.settings import Sheets
from ffkv_annotation.sheets import read_secret, read_sheet
from ffkv_annotation.step import make_sheets

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def ran(folder, *arguments: str) -> set[str]:
    """Runs the workflow, and returns the rules that it ran; with `-n`, that it would run."""
    done = snakemake(folder, ROOT / "configs/tiny.yaml", *arguments)
    assert done.returncode == 0, done.stderr[-5000:]
    return set(planned(done.stdout + done.stderr)) - {"all"}


def say(folder, sheet, item, annotator) -> None:
    append_record(folder, Record(annotator=annotator, sheet=sheet.name, item=item, identity=sheet.identity, kind="key"))


def test_annotations_reach_the_report_and_repeat_nothing_else(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "copy", symlinks=True)
    run = ffkv.open(folder / "results/tiny")
    annotations = run.files.annotations
    make_sheets(run, annotations, Sheets(annotators=["anna", "bert"], per_layer=2, changes=3))
    assert ran(folder, "-n") == set()  # sheets alone change nothing
    sheet, origins = read_sheet(annotations, "keys"), read_secret(annotations, "keys").origins
    keys = [item for item in sheet.orders["anna"] if origins[item].sample == "trigger"]  # figure 2 shows no control
    say(annotations, sheet, keys[0], "person:anna")
    assert ran(folder) == {"annotate_agreement", "report"}
    assert "anna, a person" in (folder / "reports/tiny/index.html").read_text()
    assert check_run(folder / "results/tiny")[1] == []
    assert {*ffkv.open(folder / "results/tiny").table("annotators")["annotator"]} >= {"tests", "person:anna"}
    assert ran(folder, "-n") == set()
    say(annotations, sheet, sheet.orders["bert"][1], "person:bert")
    assert ran(folder, "-n") == {"annotate_agreement", "report"}
