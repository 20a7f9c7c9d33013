"""`ffkv plan` from the command line. One real trial run serves all."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import yaml
from click.testing import CliRunner
from support import random_sentences

from ffkv.base.errors import UserError
from ffkv.base.process.runtime import configure
from ffkv.plan import step
from ffkv.plan.commands import plan
from ffkv.plan.trial import try_out

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trials():
    """Trials by run: each is run once."""
    return {}


@pytest.fixture
def planned(checkpoints, tmp_path, monkeypatch, trials):
    """Plans two runs of a tiny checkpoint without weights."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in checkpoints("gpt2").iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())

    def once(run, *arguments):
        if run.shape not in trials:
            # Not in this process: its pool of threads, which other tests have started, would not survive a fork.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), configure, (1,)) as fresh:
                trials[run.shape] = fresh.submit(try_out, run, *arguments).result()
        return trials[run.shape]

    monkeypatch.setattr(step, "try_out", once)
    (tmp_path / "text.txt").write_text("\n".join(random_sentences(1, 300)))
    corpus = {"dataset": "files", "train": "text.txt", "splitter": "line"}
    config = {"model": {"checkpoint": "checkpoint"}, "corpus": corpus, "runs": {"mine": {}, "more": {}}}
    config["comparisons"] = {"both": {"runs": ["mine", "more"]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    return lambda *options: CliRunner().invoke(plan, ["--configfile", "mine.yaml", "--cores", "1", *options])


def test_a_plan_for_a_person(planned, tmp_path):
    done = planned()
    assert done.exit_code == 0, done.output
    assert "Run mine: GPT2LMHeadModel" in done.stdout
    assert "3 layers, d = 16, 192 memories, |V| = 60" in done.stdout
    assert all(rule in done.stdout for rule in ("triggers", "sampled_prefixes", "values_project", "report"))
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[-3:]] == ["Time", "Disk", "Memory"]
    assert "\nComparison both:\n" in done.stdout and "comparison_report" in done.stdout
    assert not (tmp_path / "results").exists()


def test_a_plan_for_a_program(planned):
    found = json.loads(planned("--json").stdout)
    assert found["runs"].keys() == {"mine", "more"}
    rules = {rule["rule"]: rule for rule in found["runs"]["mine"]["rules"]}
    compared = {rule["rule"]: rule for rule in found["comparisons"]["both"]}
    assert compared.keys() == {"comparison_measure", "comparison_report"}
    assert all(rule["seconds"] > 0 and rule["written"] > 0 for rule in compared.values())
    of_runs, over = (sum(rule["written"] for rule in each.values()) for each in (rules, compared))
    assert found["total"]["written"] == pytest.approx(2 * of_runs + over)
    assert found["runs"]["mine"]["text"]["train"]["source"] == "counted"
    assert found["warnings"] == [] and found["not_estimated"] == []
    measured = rules.keys() - {"write_settings"}
    assert all(rules[rule]["seconds"] > 0 and rules[rule]["memory"] > 0 for rule in measured)
    assert all(rule["written"] > 0 for name, rule in rules.items() if name != "merge_triggers")
    assert rules["merge_triggers"]["written"] == 0  # the only shard becomes the merged file


def test_the_sampled_prefixes_are_measured_as_they_are_read(planned, trials):
    """Prefixes are read inside of longer rows, never each alone: nothing but their real pass says what that takes."""
    planned()
    (trial,) = trials.values()
    small, (measured,) = trial["", "sampled_prefixes"]
    assert measured.working is not None
    assert small.stored < measured.written < 1.5 * small.stored + 50_000  # the blocks too; metadata come on top


def test_what_does_not_suffice_is_a_warning_and_exit_code_3(planned, monkeypatch):
    monkeypatch.setattr(step, "free_memory", lambda: 1000.0)
    done = planned()
    assert done.exit_code == 3
    assert "Not enough memory: 1 x triggers (mine)" in done.stderr
    assert "Disk: " in done.stdout  # the tables are printed all the same


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "nowhere.yaml"),
        ("model: {checkpoint: [", "line 1"),
        ("trigers: {}\nruns: {mine: {}}", "trigers"),
        ("- a list", "nowhere.yaml"),
    ],
)
def test_a_settings_file_that_cannot_be_read_is_named(tmp_path, content, message):
    path = tmp_path / "nowhere.yaml"
    if content is not None:
        path.write_text(content)
    refused = CliRunner().invoke(plan, ["--configfile", str(path)])
    assert isinstance(refused.exception, UserError)
    assert message in str(refused.exception)
