"""`ffkv plan` from the command line."""

import json

import pytest
import yaml
from click.testing import CliRunner
from plan_parts import MACHINE
from support import random_sentences

from ffkv.errors import UserError
from ffkv.plan import machine
from ffkv.plan.commands import plan


@pytest.fixture
def planned(checkpoints, tmp_path, monkeypatch):
    """Plans a run of a tiny checkpoint on a machine that was measured before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "measure", lambda *arguments: MACHINE)
    (tmp_path / "text.txt").write_text("\n".join(random_sentences(1, 300)))
    corpus = {"dataset": "files", "train": "text.txt", "splitter": "line"}
    config = {"model": {"checkpoint": str(checkpoints("gpt2"))}, "corpus": corpus, "runs": {"mine": {}, "more": {}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    return lambda *options: CliRunner().invoke(plan, ["--configfile", "mine.yaml", *options])


def test_a_plan_for_a_person(planned, tmp_path):
    done = planned()
    assert done.exit_code == 0, done.output
    assert "Run mine: GPT2LMHeadModel" in done.stdout
    assert "3 layers, d = 16, 192 memories, |V| = 60" in done.stdout
    assert all(rule in done.stdout for rule in ("triggers", "measure_values", "report"))
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[-3:]] == ["Time", "Disk", "Memory"]
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml", "text.txt"}  # nothing is written


def test_a_plan_for_a_program(planned):
    found = json.loads(planned("--json").stdout)
    assert found["runs"].keys() == {"mine", "more"}
    rules = found["runs"]["mine"]["rules"]
    assert found["total"]["written"] == pytest.approx(2 * sum(rule["written"] for rule in rules))
    assert found["runs"]["mine"]["text"]["train"]["source"] == "counted"
    assert found["warnings"] == []


def test_what_will_not_do_is_a_warning_and_exit_code_3(planned, monkeypatch):
    monkeypatch.setattr(machine, "disk_left", lambda folder: 1000.0)
    monkeypatch.setattr(machine, "memory_left", lambda: 1000.0)
    done = planned()
    assert done.exit_code == 3
    assert "The disk will not do" in done.stderr
    assert "The memory will not do: a job of triggers (mine)" in done.stderr
    assert "Disk: " in done.stdout  # the tables are there all the same


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "nowhere.yaml"),
        ("model: {checkpoint: [", "line 1"),
        ("trigers: {}\nruns: {mine: {}}", "Unknown setting 'trigers'"),
        ("- a list", "keys at its top level"),
    ],
)
def test_a_settings_file_that_cannot_be_read_is_named(tmp_path, text, message):
    path = tmp_path / "nowhere.yaml"
    if text is not None:
        path.write_text(text)
    refused = CliRunner().invoke(plan, ["--configfile", str(path)])
    assert isinstance(refused.exception, UserError)
    assert message in str(refused.exception)
