"""What `snakemake -n` tells: a page in all, with the causes; and what cannot be read."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake.jobs import Reason
from snakemake.persistence import ParamsChange
from snakemake_interface_logger_plugins.common import LogEvent
from support import random_checkpoint, settings_file, snakemake
from workflow.dry_run import planned

from ffkv.workflow.dry_run import before_jobs_are_listed, summarize

RULES = ["all", "model", "triggers", "keys_patterns", "report"]


def job(rule: str, run: str = "", benchmark: Path | None = None, **reason) -> tuple[SimpleNamespace, Reason]:
    """A job of Snakemake, and why it would start it."""
    why = Reason()
    for name, value in reason.items():
        if isinstance(value, set):
            getattr(why, name).update(value)
        else:
            setattr(why, name, value)
    wildcards = {"run": run} if run else {}
    return SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards_dict=wildcards, benchmark=benchmark), why


def told(*jobs: tuple[SimpleNamespace, Reason], rules: list[str] = RULES) -> list[str]:
    reasons = {id(each): why for each, why in jobs}
    dag = SimpleNamespace(needrun_jobs=lambda: [each for each, _ in jobs], reason=lambda each: reasons[id(each)])
    return summarize(dag, rules, "mine.yaml").splitlines()


def other(*parameters: str) -> ParamsChange:
    return ParamsChange(only_new={*parameters})


CAUSES = {
    "asked for (--force)": {"forced": True, "missing_output": {"a"}},
    "not made yet": {"missing_output": {"a"}, "updated_input_run": {"b"}},
    "cut short before": {"incomplete_output": {"a"}},
    "settings changed": {"params_changed": other("'--per-layer 3'", "'code abc'")},
    "text, prompts, weights or annotations changed": {"params_changed": other("'0123456789abcdef'")},
    "the code of ffkv changed": {"params_changed": other("code abc")},
    "the environment changed": {"software_stack_changed": True},
    "input files changed": {"updated_input": {"a"}},
    "what it reads is made anew": {"updated_input": {"a"}, "updated_input_run": {"a"}},
    "what it makes is needed by the others": {},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_has_a_line(cause):
    lines = told(job("model", "a", **CAUSES[cause]), job("report", "a", pipe=True))
    assert lines[0] == "2 jobs would run (by run: a 2):"
    if cause == [*CAUSES][-1]:
        assert f"  {cause}: all 2" in lines
    else:
        assert f"  {cause}: model" in lines


def test_a_change_of_the_rules_is_a_change_of_code():
    assert "  the code of ffkv changed: all 1" in told(job("model", "a", code_changed=True))


def test_jobs_are_named_in_the_order_of_the_rules_and_counted_by_run(tmp_path):
    (tmp_path / "a.tsv").write_text("s\th:m:s\n60.5\t0:01:00\n")
    (tmp_path / "half.tsv").write_text("s\n")
    new = {"missing_output": {"a"}}
    lines = told(
        job("report", "b", tmp_path / "none.tsv", **new),
        job("triggers", "b", tmp_path / "a.tsv", **new),
        job("triggers", "a", tmp_path / "a.tsv", **new),
        job("model", "b", tmp_path / "half.tsv", **new),
        job("all", updated_input_run={"a"}),
    )
    assert lines == [
        "5 jobs would run (by run: b 3, a 1):",
        "  all, model, triggers x 2, report",
        "Why:",
        "  not made yet: model, triggers x 2, report",
        "  what it reads is made anew: all",
        "Time: 2 of them took 2 min 1 s before, one after the other.",
        "`ffkv plan mine.yaml` estimates time, disk and memory. `snakemake -n -p` lists each job and its command.",
        "Nothing was done: this was a dry run (-n).",
    ]
    assert planned("\n".join(lines)) == {"all": 1, "model": 1, "triggers": 2, "report": 1}


def test_the_number_of_jobs_stays_beside_its_rule():
    """Wherever the line ends: a first rule of each length moves the end by one character."""
    for length in range(20):
        rules = ["all", "r" * (length + 1), *(f"rule_{number}" for number in range(9))]
        jobs = [job(rule, missing_output={"a"}) for rule in rules[1:] for _ in range(2)]
        lines = told(*jobs, rules=rules)
        assert not [line for line in lines if line.endswith((" x", "x")) or line.startswith("    2")], length


def test_many_runs_are_one_line():
    lines = told(*(job("model", f"run-{number:03}", missing_output={"a"}) for number in range(100)))
    assert lines[0].startswith("100 jobs would run (by run: run-000 1, run-001 1, ") and len(lines[0]) <= 110
    assert lines[0].endswith(" ...):")
    assert lines[1:4] == ["  model x 100", "Why:", "  not made yet: all 100"]


@pytest.fixture
def logger(monkeypatch):
    """Snakemake's own, with what passes it."""
    found = logging.getLogger("snakemake.logging")
    monkeypatch.setattr(found, "filters", [])
    monkeypatch.setattr(found, "handlers", [])
    monkeypatch.setattr(found, "propagate", False)
    found.setLevel(logging.INFO)
    passed = []
    handler = logging.Handler()
    handler.emit = lambda record: passed.append(record.getMessage())
    found.addHandler(handler)
    yield SimpleNamespace(log=found, passed=passed)


def test_one_text_stands_for_all_that_snakemake_says_of_its_jobs(logger):
    checks = []
    before_jobs_are_listed(lambda: checks.append(1), lambda: "the text")
    logger.log.info("Building DAG of jobs...")
    logger.log.info("Job stats", extra={"event": LogEvent.RUN_INFO})
    logger.log.info("Job 1", extra={"event": LogEvent.JOB_INFO})
    logger.log.warning("a warning")
    logger.log.info("Job stats", extra={"event": LogEvent.RUN_INFO})
    assert logger.passed == ["the text", "a warning"] and checks == [1]


def test_where_its_own_words_are_asked_for_nothing_is_left_out(logger):
    checks = []
    before_jobs_are_listed(lambda: checks.append(1), None)
    logger.log.info("Building DAG of jobs...")
    logger.log.info("Job stats", extra={"event": LogEvent.RUN_INFO})
    assert logger.passed == ["Building DAG of jobs...", "Job stats"] and checks == [1]


@pytest.mark.workflow
def test_a_first_dry_run_is_a_page(tmp_path):
    random_checkpoint(tmp_path / "checkpoint", "gpt2")
    (tmp_path / "a.txt").write_text("w1 w2 w3.\n")
    file = settings_file(
        tmp_path, model={"checkpoint": "checkpoint"}, corpus={"dataset": "files", "train": "a.txt"}, runs={"new": {}}
    )
    dry = snakemake(tmp_path, file, "-n")
    lines = (dry.stdout + dry.stderr).splitlines()
    assert dry.returncode == 0 and len(lines) < 30, dry.stderr
    assert any(line.startswith("  not made yet: ") for line in lines)
    assert {"model", "corpus", "report"} <= planned(dry.stdout).keys()
    assert not (tmp_path / "results").exists()
    own_words = snakemake(tmp_path, file, "-n", "-p").stdout
    assert "ffkv model " in own_words and planned(own_words) == planned(dry.stdout)


WRONG = {
    "model": ({"model": {"checkpoint": "./nowhere"}}, "There is no checkpoint folder ./nowhere."),
    "corpus": ({"corpus": {"dataset": "files", "train": "none/*.txt"}}, "No corpus file matches 'none/*.txt'"),
    "prompts": ({"behaviours": {"number": {"prompts": "none.jsonl"}}}, "none.jsonl"),
}


@pytest.mark.workflow
@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_there_is_told_by_a_dry_run(tmp_path, what):
    change, sentence = WRONG[what]
    file = settings_file(tmp_path, **change)
    for more in ((), ("-p",), ("--quiet",)) if what == "corpus" else ((),):
        dry = snakemake(tmp_path, file, "-n", *more)
        (line,) = [line for line in dry.stderr.splitlines() if sentence in line]
        assert dry.returncode == 1 and line.startswith("ffkv: ")
        assert 'File "' not in dry.stdout + dry.stderr


@pytest.mark.workflow
def test_a_changed_setting_is_named_beside_the_jobs_that_it_repeats(tiny):
    config = yaml.safe_load((Path(__file__).parents[2] / "configs/tiny.yaml").read_text())
    config["runs"] = {"tiny": {**config["runs"]["tiny"], "roles": {"threshold": 0.4}}}
    path = tiny.parent / "changed-roles.yaml"
    path.write_text(json.dumps(config))
    dry = snakemake(tiny, path, "-n")
    assert dry.returncode == 0
    assert "\n  settings changed: write_settings, roles_measure x 2\n" in dry.stdout
    assert "\n  what it reads is made anew: all, report\n" in dry.stdout
    assert "results/tiny was made with other settings: roles.threshold was 0.5 and is 0.4 now." in dry.stderr
