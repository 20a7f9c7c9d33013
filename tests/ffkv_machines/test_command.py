"""`ffkv annotate machine`: what it asks and keeps, and how that becomes tables of the run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import ffkv
from ffkv import cli
from ffkv.base.doors import Command
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.keys.tables import PATTERNS
from ffkv.branches.settings import Settings
from ffkv.run.annotation_tables import MACHINE_FILES
from ffkv.run.results import indexes
from ffkv.run.results.search import patterned
from ffkv.workflow.inputs import annotation_files
from ffkv_annotation.commands import annotate
from ffkv_annotation.summaries import read_machines
from tests.ffkv_machines.stub import PRESS, completion, good_answer

KEY = "sk-very-secret-0123456789"
FEW = ["--memories", "L0.0,L1.1", "--pairs", "4", "--per-question", "8"]


@pytest.fixture
def words(results, tmp_path):
    return ["machine", str(results), "--model", "llama 3/8b", "--annotations", str(tmp_path / "out"), *FEW]


def invoke(*words):
    return CliRunner().invoke(cli.ffkv, ["annotate", *map(str, words)])


@pytest.fixture
def command(words):
    return lambda *options: invoke(*words, *options)


@pytest.fixture
def without(monkeypatch):
    """`ffkv annotate` as it is before the command was called, and as if the package was not installed."""
    monkeypatch.setattr(annotate, "commands", {name: annotate.commands[name] for name in ("sheets", "agreement")})
    monkeypatch.setattr(cli, "ADDED", {name: added for name, added in cli.ADDED.items() if name != "annotate.machine"})


def test_without_the_package_the_command_names_it(without):
    assert "\n  machine " not in invoke("-h").output
    told = invoke("machine", "results/demo")
    assert told.exit_code == 2
    assert "`ffkv annotate machine` is in the package ffkv-machines." in " ".join(told.output.split())
    assert "pip install ./packages/ffkv-machines" in told.output


@pytest.mark.parametrize("door", [True, False])
def test_a_broken_package_costs_its_subcommand_alone(without, monkeypatch, door):
    added = Command("", "no_such_package:machine", "Ask a machine.")
    if door:
        monkeypatch.setitem(cli.BROKEN, "annotate.machine", UserError("no door here"))
    else:
        monkeypatch.setitem(cli.ADDED, "annotate.machine", added)
    helped = invoke("-h")
    assert helped.exit_code == 0 and "  sheets " in helped.output
    assert f"  machine    {cli.LOST if door else added.about}" in helped.output
    with pytest.raises(
        UserError, match="no door here" if door else "'annotate.machine' cannot be used, .*no_such_package"
    ):
        cli.ffkv(["annotate", "machine", "-h"], standalone_mode=False)


def test_the_subcommand_is_imported_when_it_is_called_and_is_none_of_ffkv_itself():
    script = "import sys\nfrom ffkv.cli import main\nsys.argv = ['ffkv', 'annotate', *sys.argv[1:], '-h']\ntry: main()\nfinally: print('ffkv_machines.commands' in sys.modules)"
    told = [
        subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True).stdout.splitlines()[-1]
        for words in ([], ["machine"])
    ]
    assert told == ["False", "True"]
    assert "annotate.machine" not in cli.COMMANDS
    assert CliRunner().invoke(cli.ffkv, ["annotate.machine"]).exit_code == 2


def folder(tmp_path):
    (found,) = (tmp_path / "out" / "machine").iterdir()
    return found


def kept(tmp_path):
    return [json.loads(line) for line in (folder(tmp_path) / "answers.jsonl").read_text().splitlines()]


def test_scores_answers_and_settings_lie_together_and_replay_changes_nothing(command, stub, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    endpoint = stub()
    first = command("--endpoint", endpoint.address, "--key-variable", "MY_KEY")
    assert first.exit_code == 0, first.output
    names = {path.name for path in folder(tmp_path).iterdir() if path.suffix != ".sha256"}
    assert names == {"answers.jsonl", "labels.csv", "scores_by_memory.csv", "scores.csv", "settings.json"}
    assert folder(tmp_path).name.startswith("llama_3_8b.")
    entries = kept(tmp_path)
    assert len(entries) == len(endpoint.requests)
    assert [entry["request"] for entry in entries] == endpoint.requests
    assert {entry["endpoint"] for entry in entries} == {f"{endpoint.address}/chat/completions"}
    about = json.loads((folder(tmp_path) / "settings.json").read_text())
    assert about["model"] == "llama 3/8b" and about["parameters"] == {"temperature": 0.0, "max_tokens": 1000}
    before = {path.name: path.read_bytes() for path in folder(tmp_path).iterdir()}
    endpoint.close()
    second = command("--replay")
    assert second.exit_code == 0 and "0 requests were sent" in second.output
    assert {path.name: path.read_bytes() for path in folder(tmp_path).iterdir()} == before
    everything = b"".join([*before.values(), first.output.encode(), second.output.encode()])
    assert KEY.encode() not in everything and b"Authorization" not in everything


def test_a_dry_run_sends_and_writes_nothing(command, tmp_path):
    told = command("--dry-run")
    assert told.exit_code == 0 and "label: 2 questions, 0 of them with a kept answer" in told.output
    assert "questions would be asked. That takes about" in told.output
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_asked_is_said(command):
    for options, words in [
        (["--parameters", "messages=[]"], "written NAME=JSON"), (["--parameters", "top_p"], "is not NAME=VALUE"),
        (["--parameters", "top_p=high"], "must be JSON"), (["--pairs", "1"], "at least 2"),
    ]:  # fmt: skip
        told = command("--endpoint", "http://127.0.0.1:9", *options)
        assert told.exit_code == 2 and words in told.output.replace("\n", " ")
    for options, words in [
        ([], "Name the --endpoint"), (["--endpoint", "http://x", "--key-variable", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
    ]:  # fmt: skip
        error = command(*options).exception
        assert isinstance(error, UserError) and words in str(error)


def test_parameters_are_sent_and_null_leaves_one_out(command, stub):
    endpoint = stub()
    parameters = ("max_tokens=null", "max_completion_tokens=9", 'x={"y": 1}')
    options = [word for each in parameters for word in ("--parameters", each)]
    assert command("--endpoint", endpoint.address, *options).exit_code == 0
    assert endpoint.requests[0].keys() == {"model", "messages", "temperature", "max_completion_tokens", "x"}


def test_a_budget_stops_and_a_larger_one_goes_on(command, stub, tmp_path):
    endpoint = stub(lambda number, body: (200, {}, completion(good_answer(body), (300, 50))))
    stopped = command("--endpoint", endpoint.address, "--budget", "4000", "--answer-tokens", "100")
    assert isinstance(stopped.exception, UserError) and "larger --budget" in str(stopped.exception)
    asked = len(endpoint.requests)
    assert asked > 0 and sum(entry["tokens"] for entry in kept(tmp_path)) <= 4000
    assert command("--endpoint", endpoint.address, "--budget", "1000000", "--answer-tokens", "100").exit_code == 0
    requests = [json.dumps(body) for body in endpoint.requests]
    assert len(requests) > asked and len(set(requests)) == len(requests)  # nothing was asked twice


def test_a_kill_loses_at_most_one_answer(words, stub, tmp_path, command):
    """A real process, killed while it asks."""
    endpoint = stub(delay=0.05)
    command_line = [sys.executable, "-m", "ffkv", "annotate", *words, "--endpoint", endpoint.address]
    process = subprocess.Popen(command_line, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    end = time.monotonic() + 60
    while len(endpoint.requests) < 6 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    asked = len(endpoint.requests)
    assert asked >= 6 and not (folder(tmp_path) / "scores.csv").exists()
    assert asked - 1 <= len(kept(tmp_path)) <= asked
    endpoint.delay = 0
    assert command("--endpoint", endpoint.address).exit_code == 0
    different = {json.dumps(body) for body in endpoint.requests}
    assert len(endpoint.requests) - len(different) <= 1


def test_nothing_in_the_corpus_or_an_answer_is_run(command, stub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = '__import__("pathlib").Path("ran").touch() or {"texts": [1]}; $(touch ran); \x1b[2J'
    endpoint = stub(lambda number, body: (200, {}, completion(evil)))
    told = command("--endpoint", endpoint.address, "--forms", "1")
    assert told.exit_code == 0 and "2 labels refused" in told.output and "\x1b" not in told.output
    assert not (tmp_path / "ran").exists()


# Tables of the run


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
        assert invoke("machine", own, "--endpoint", endpoint.address, "--model", model, *FEW).exit_code == 0
    return own.parent.parent / "annotations" / "words"


def test_labels_and_scores_reach_the_memories_of_the_run(own, annotations):
    told = invoke("agreement", "--results", own, "--annotations", annotations, "--output", own / "annotation")
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
    settings = Settings(annotation={"folder": str(annotations.parent)})
    names = [Path(path).name for path in annotation_files(settings, "words")]
    assert sorted(names) == sorted(["settings.json", "labels.csv", "scores_by_memory.csv", "scores.csv"] * 2)
    assert annotation_files(settings, "another") == []


def test_without_machines_there_are_no_rows(tmp_path):
    found = read_machines(tmp_path, {})
    described = {each.name: each.names for each in MACHINE_FILES.values()}
    assert {name: list(table) for name, table in found.items()} == described
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
    words = ("--results", own, "--annotations", tmp_path / "nobody", "--output", own / "annotation")
    assert invoke("agreement", *words).exit_code == 0
    run = ffkv.open(own)
    assert not len(indexes.explanations(run.files)) and not len(run.memory("L0.0").explanations)
    assert "explanation_detection" not in patterned(run.files, "press")
