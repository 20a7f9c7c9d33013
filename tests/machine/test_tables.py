"""What machines said about memories becomes tables of the run."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from machine.stub import PRESS

import ffkv
from ffkv.apps.annotation.ratings import read_machines
from ffkv.apps.machine.commands import annotate
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.keys.tables import PATTERNS
from ffkv.run.annotation_tables import MACHINE_FILES
from ffkv.run.results import indexes
from ffkv.run.results.search import patterned
from ffkv.workflow.inputs import annotation_files

FEW = ["--memories", "L0.0,L1.1", "--pairs", "4", "--per-question", "8"]


@pytest.fixture
def own(results, tmp_path) -> Path:
    """A run of one's own, whose keys the tests found no pattern in."""
    folder = shutil.copytree(results, tmp_path / "results" / "words")
    tables.write(PATTERNS.frame([]), folder / "keys/patterns/0.parquet")
    return folder


@pytest.fixture
def annotations(own, stub) -> Path:
    """The folder with what two machines said."""
    endpoint = stub()
    for model in ("zeta/1", "alpha"):
        words = ["machine", str(own), "--endpoint", endpoint.address, "--model", model, *FEW]
        assert CliRunner().invoke(annotate, words, catch_exceptions=False).exit_code == 0
    return own.parent.parent / "annotations" / "words"


def test_labels_and_scores_reach_the_memories_of_the_run(own, annotations):
    words = ["agreement", "--results", str(own), "--annotations", str(annotations), "--output", str(own / "annotation")]
    told = CliRunner().invoke(annotate, words, catch_exceptions=False)
    assert told.exit_code == 0 and "about the tests alone" in told.output  # nobody judged a sheet
    run = ffkv.open(own)
    found = run.memory("L0.0").explanations
    assert found["annotator"].tolist() == ["machine:alpha", "machine:zeta/1"]
    assert found["label"].tolist() == [PRESS] * 2 and (found["detection"] == 1).all()
    kept = tables.read(next((annotations / "machine").glob("alpha.*/scores_by_memory.csv")))
    row = kept.query("layer == 0 and memory == 0 and score == 'detection' and label == 'other'").iloc[0]
    assert found["detection_of_other"].tolist() == [row["value"]] * 2
    assert patterned(run.files, PRESS.upper())["explanation_detection"].tolist() == [1.0]
    by_layer = run.table("machine_scores_by_layer")
    assert {*by_layer["annotator"]} == {"machine:alpha", "machine:zeta/1"}
    assert by_layer["asked"].sum() > 0 and {*by_layer["label"]} == {"own", "other", "own - other", "none"}


def test_the_workflow_takes_the_tables_as_its_inputs(own, annotations):
    settings = {"annotation": {"folder": str(annotations.parent)}}
    names = [Path(path).name for path in annotation_files(settings, "words")]
    assert sorted(names) == sorted(["settings.json", "labels.csv", "scores_by_memory.csv", "scores.csv"] * 2)
    assert annotation_files(settings, "another") == []


def test_without_machines_there_are_no_rows(tmp_path):
    found = read_machines(tmp_path, {})
    assert {name: list(table) for name, table in found.items()} == {
        each.name: each.names for each in MACHINE_FILES.values()
    }
    assert all(len(table) == 0 for table in found.values())


def test_a_label_that_looks_like_a_number_stays_a_text(annotations):
    (path,) = (annotations / "machine").glob("alpha.*/labels.csv")
    tables.write(tables.read(path).assign(label="1945", refusal=""), path)
    labels = read_machines(annotations, {})["machine_labels"]
    assert labels.query("annotator == 'machine:alpha'")["label"].tolist() == ["1945", "1945"]


def test_labels_of_another_run_and_damaged_settings_are_refused(own, annotations):
    with pytest.raises(UserError, match="another corpus"):
        read_machines(annotations, {"corpus_hash": "f" * 16})
    (path,) = (annotations / "machine").glob("alpha.*/settings.json")
    path.write_text("{}")
    with pytest.raises(UserError, match="--replay"):
        read_machines(annotations, {})


def test_a_run_that_only_people_judged_has_no_explanations(own, tmp_path):
    (tmp_path / "nobody").mkdir()
    words = ["agreement", "--results", str(own), "--annotations", str(tmp_path / "nobody")]
    assert CliRunner().invoke(annotate, [*words, "--output", str(own / "annotation")]).exit_code == 0
    run = ffkv.open(own)
    assert not len(indexes.explanations(run.files)) and not len(run.memory("L0.0").explanations)
    assert "explanation_detection" not in patterned(run.files, "press")
