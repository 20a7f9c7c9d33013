"""`ffkv plan` from the command line. One list of the jobs and one real trial run serve all."""

import json
import pickle
import re
import subprocess

import pytest
import yaml
from click.testing import CliRunner
from support import ROOT, random_sentences

from ffkv.base.errors import UserError
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.plan import step, trial
from ffkv.plan.commands import plan
from ffkv.workflow.jobs import Job, ask_snakemake, read_jobs

pytestmark = pytest.mark.slow


# Makes the trial that a file asks for, in a process in which no thread was started, and writes what it found there. The report
# has no figures: to draw them takes a sixth of the trial.
TRY = """
import pickle, sys
from pathlib import Path
root, sys.executable, path = sys.argv[1:]
sys.path.insert(0, root)
import pytest
from support import draw_nothing
from ffkv.plan.trial import measure_trial
draw_nothing(pytest.MonkeyPatch())
Path(path).write_bytes(pickle.dumps(measure_trial(*pickle.loads(Path(path).read_bytes()))))
"""


@pytest.fixture(scope="module")
def trials():
    """Trials by run: each is run once."""
    return {}


@pytest.fixture(scope="module")
def jobs():
    """The jobs of both runs: Snakemake is asked once."""
    return []


@pytest.fixture
def planned(checkpoints, tmp_path, monkeypatch, forked_python, trials, jobs):
    """Plans two runs of a tiny checkpoint without weights."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in checkpoints("gpt2").iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())

    def once(run, cores):
        if run.shape not in trials:
            # Not in this process: its pool of threads, which other tests have started, would not survive a fork.
            (tmp_path / "trial").write_bytes(pickle.dumps((run._replace(jobs={}), cores)))
            subprocess.run([forked_python, "-c", TRY, ROOT, forked_python, tmp_path / "trial"], check=True)
            trials[run.shape] = pickle.loads((tmp_path / "trial").read_bytes())
        return trials[run.shape]

    monkeypatch.setattr(step, "measure_trial", once)
    monkeypatch.setattr("ffkv.workflow.jobs.ask_snakemake", lambda *asked: None if jobs else ask_snakemake(*asked))
    monkeypatch.setattr(step, "read_jobs", lambda asked: jobs or jobs.extend(read_jobs(asked)) or jobs)
    (tmp_path / "text.txt").write_text("\n".join(random_sentences(1, 300)))
    corpus = {"dataset": "files", "train": "text.txt", "splitter": "line"}
    config = {
        "model": {"checkpoint": "checkpoint"},
        "corpus": corpus,
        "runs": {"mine": {}, "more": {}},
    }  # they share a control
    config["comparisons"] = {"both": {"runs": ["mine", "more"]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    return lambda *options: CliRunner().invoke(plan, ["--configfile", "mine.yaml", "--cores", "1", *options])


def test_a_plan_for_a_person(planned, tmp_path):
    short = planned()
    assert short.exit_code == 0 and len(short.stdout.splitlines()) <= 20, short.output
    assert "Run mine: GPT2LMHeadModel" in short.stdout and "all others (--rules)" in short.stdout
    assert "mine-untrained:" not in short.stdout
    done = planned("--rules")
    assert done.exit_code == 0, done.output
    both = ([re.sub(r"\d+", "n", line) for line in each.stdout.splitlines()[-4:-2]] for each in (short, done))
    assert next(both) == next(both)  # the seconds in which text and model are read are measured each time
    assert "3 layers, d = 16, 192 memories, |V| = 60" in done.stdout
    assert all(rule in done.stdout for rule in ("triggers", "sampled_prefixes", "values_project", "report"))
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[-2:]] == ["Disk", "Memory"]
    time, controls = done.stdout.splitlines()[-4:-2]
    assert time.startswith("Time: about ")
    assert re.fullmatch(
        r".+ of it \(.+%\) for untrained models beside the runs\. `report.control: none` .+\.", controls
    )
    assert "\nNot estimated: comparison_measure, comparison_report." in done.stdout
    assert not (tmp_path / "results").exists()


def test_a_plan_for_a_program(planned):
    found = json.loads(planned("--json").stdout)
    assert found["runs"].keys() == {"mine", "more", "mine-untrained"}
    control = {rule["rule"]: rule for rule in found["runs"]["mine-untrained"]["rules"]}
    assert found["total"]["controls"] == pytest.approx(sum(rule["seconds"] for rule in control.values()))
    rules = {rule["rule"]: rule for rule in found["runs"]["mine"]["rules"]}
    assert found["total"]["written"] == pytest.approx(
        sum(rule["written"] for run in found["runs"].values() for rule in run["rules"])
    )
    assert control["triggers"]["seconds"] == pytest.approx(rules["triggers"]["seconds"])
    assert control["keys_removal"]["seconds"] < rules["keys_removal"]["seconds"] and "report" not in control
    assert found["runs"]["mine"]["text"]["train"]["source"] == "counted"
    assert (found["runs"]["mine"]["shape"]["layers"], found["runs"]["mine"]["shape"]["all_memories"]) == (3, 192)
    assert found["warnings"] == [] and found["not_estimated"] == ["comparison_measure", "comparison_report"]
    measured = rules.keys() - {"write_settings"}
    assert all(rules[rule]["seconds"] > 0 and rules[rule]["memory"] > 0 for rule in measured)
    assert all(rule["written"] > 0 for name, rule in rules.items() if name != "merge_triggers")
    assert rules["merge_triggers"]["written"] == 0  # the only shard becomes the merged file


def test_a_trial_runs_every_rule_of_the_run_and_measures_its_work(planned, trials):
    found = json.loads(planned("--json").stdout)
    ((small, costs),) = trials.values()
    assert costs.keys() == {rule["rule"] for rule in found["runs"]["mine"]["rules"]}
    (sampled,) = costs["sampled_prefixes"]
    assert 0 < sampled.working < sampled.seconds  # it has a progress bar; the rest does not grow
    assert sampled.written > 4 * small.sampled * (small.shape.all_memories + 2 * small.shape.width)  # the blocks, too
    without, with_layer = sorted(cost.written for cost in costs["composition_measure"])  # one layer group is empty
    assert without < with_layer


def test_what_does_not_suffice_is_a_warning_and_exit_code_3(planned, monkeypatch):
    monkeypatch.setattr(step, "free_memory", lambda: 1000.0)
    done = planned()
    assert done.exit_code == 3
    assert "Not enough memory: " in done.stderr and "1 x triggers (mine) " in done.stderr
    assert "Disk: " in done.stdout  # the tables are printed all the same


def test_the_first_words_come_before_anything_is_read_or_imported(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("ffkv.plan.commands.announce", said.append)
    refused = CliRunner().invoke(plan, ["--configfile", str(tmp_path / "nowhere.yaml")])
    assert isinstance(refused.exception, UserError)
    assert len(said) == 1 and "nowhere.yaml" in said[0]


def test_a_settings_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_text("trigers: {}\nruns: {mine: {}}")
    for name, message in {"nowhere.yaml": "nowhere.yaml", "mine.yaml": "trigers"}.items():
        refused = CliRunner().invoke(plan, ["--configfile", str(tmp_path / name)])
        assert isinstance(refused.exception, UserError) and message in str(refused.exception)


def test_a_job_of_the_trial_waits_for_no_threads_of_the_plan(byte_model, tmp_path, monkeypatch):
    """The plan has trained a tokenizer, so threads of it are there. A fork has none, and waited for them without end."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    tokenizer = load_tokenizer(byte_model)
    tokenizer(["The cat sat."] * 1000)
    monkeypatch.setattr(trial, "run_command", lambda command: tokenizer(["The cat sat."] * 1000))
    trial._run_job(Job("corpus", "demo", 1, "", [], [], done=False), tmp_path)
