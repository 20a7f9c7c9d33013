"""`ffkv annotate machine`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from machine.stub import completion, good_answer

from ffkv.apps.machine.commands import annotate
from ffkv.base.errors import UserError

KEY = "sk-very-secret-0123456789"
FEW = ["--memories", "L0.0", "--memories", "L1.1", "--pairs", "4", "--per-question", "8"]


@pytest.fixture
def command(results, tmp_path):
    def run(*options: str):
        words = ["machine", str(results), "--model", "llama 3/8b", "--annotations", str(tmp_path / "out"), *options]
        return CliRunner().invoke(annotate, words, catch_exceptions=True)

    return run


def folder(tmp_path):
    (found,) = (tmp_path / "out" / "machine").iterdir()
    return found


def kept(tmp_path):
    return [json.loads(line) for line in (folder(tmp_path) / "answers.jsonl").read_text().splitlines()]


def test_scores_answers_and_settings_lie_together_and_replay_changes_nothing(command, stub, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    endpoint = stub()
    first = command("--endpoint", endpoint.address, "--key-variable", "MY_KEY", *FEW)
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
    second = command("--replay", *FEW)
    assert second.exit_code == 0 and "0 requests were sent" in second.output
    assert {path.name: path.read_bytes() for path in folder(tmp_path).iterdir()} == before
    everything = b"".join([*before.values(), first.output.encode(), second.output.encode()])
    assert KEY.encode() not in everything and b"Authorization" not in everything


def test_a_dry_run_sends_and_writes_nothing(command, tmp_path):
    told = command("--dry-run", *FEW)
    assert told.exit_code == 0 and "label: 2 questions, 0 of them with a kept answer" in told.output
    assert "questions would be asked. That takes about" in told.output
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_asked_is_said(command):
    for options, words in [
        (["--parameters", "messages=[]"], "written NAME=JSON"), (["--parameters", "top_p"], "written NAME=JSON"),
        (["--parameters", "top_p=high"], "must be JSON"), (["--pairs", "1"], "at least 2"),
    ]:  # fmt: skip
        told = command("--endpoint", "http://127.0.0.1:9", *FEW, *options)
        assert told.exit_code == 2 and words in told.output.replace("\n", " ")
    for options, words in [
        ([], "Name the --endpoint"), (["--endpoint", "http://x", "--key-variable", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
    ]:  # fmt: skip
        error = command(*FEW, *options).exception
        assert isinstance(error, UserError) and words in str(error)


def test_parameters_are_sent_and_null_leaves_one_out(command, stub):
    endpoint = stub()
    options = [
        "--parameters",
        "max_tokens=null",
        "--parameters",
        "max_completion_tokens=9",
        "--parameters",
        'x={"y": 1}',
    ]
    assert command("--endpoint", endpoint.address, *FEW, *options).exit_code == 0
    assert endpoint.requests[0].keys() == {"model", "messages", "temperature", "max_completion_tokens", "x"}


def test_a_budget_stops_and_a_larger_one_goes_on(command, stub, tmp_path):
    endpoint = stub(lambda number, body: (200, {}, completion(good_answer(body), (300, 50))))
    stopped = command("--endpoint", endpoint.address, "--budget", "4000", "--answer-tokens", "100", *FEW)
    assert isinstance(stopped.exception, UserError) and "larger --budget" in str(stopped.exception)
    asked = len(endpoint.requests)
    assert asked > 0 and sum(entry["tokens"] for entry in kept(tmp_path)) <= 4000
    assert command("--endpoint", endpoint.address, "--budget", "1000000", "--answer-tokens", "100", *FEW).exit_code == 0
    requests = [json.dumps(body) for body in endpoint.requests]
    assert len(requests) > asked and len(set(requests)) == len(requests)  # nothing was asked twice


def test_a_kill_loses_at_most_one_answer(results, stub, tmp_path, command):
    """A real process, killed while it asks."""
    endpoint = stub(delay=0.05)
    words = [
        sys.executable, "-m", "ffkv", "annotate", "machine", str(results), "--endpoint", endpoint.address,
        "--model", "llama 3/8b", "--annotations", str(tmp_path / "out"), *FEW,
    ]  # fmt: skip
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    end = time.monotonic() + 60
    while len(endpoint.requests) < 6 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    asked = len(endpoint.requests)
    assert asked >= 6 and not (folder(tmp_path) / "scores.csv").exists()
    assert asked - 1 <= len(kept(tmp_path)) <= asked
    endpoint.delay = 0
    assert command("--endpoint", endpoint.address, *FEW).exit_code == 0
    different = {json.dumps(body) for body in endpoint.requests}
    assert len(endpoint.requests) - len(different) <= 1


def test_nothing_in_the_corpus_or_an_answer_is_run(command, stub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = '__import__("pathlib").Path("ran").touch() or {"texts": [1]}; $(touch ran); \x1b[2J'
    endpoint = stub(lambda number, body: (200, {}, completion(evil)))
    told = command("--endpoint", endpoint.address, "--forms", "1", *FEW)
    assert told.exit_code == 0 and "2 labels refused" in told.output and "\x1b" not in told.output
    assert not (tmp_path / "ran").exists()
