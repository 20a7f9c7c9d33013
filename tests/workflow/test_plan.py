"""The plan beside a run that was really made."""

import json

import pytest
import yaml
from click.testing import CliRunner
from plan_parts import MACHINE
from support import ROOT

from ffkv.plan import machine
from ffkv.plan.commands import plan

pytestmark = pytest.mark.workflow
BESIDE = ("logs", "benchmarks")


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """A machine that was measured before."""
    monkeypatch.setattr(machine, "measure", lambda *arguments: MACHINE)


def written(folder) -> dict[str, int]:
    """Bytes below a folder, of each file but what Snakemake keeps for itself."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".") and not set(BESIDE) & set(path.parts)
    }


def test_a_plan_says_what_a_run_writes(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where nothing is done yet
    planned = CliRunner().invoke(plan, ["--configfile", str(ROOT / "configs/tiny.yaml"), "--json"])
    assert planned.exit_code == 0, planned.output
    found = json.loads(planned.stdout)
    run = found["runs"]["tiny"]
    anatomy = json.loads((tiny / "results/tiny/model/anatomy.json").read_text())
    assert run["shape"]["parameters"] == anatomy["parameters"]
    made = written(tiny / "results/tiny") | written(tiny / "reports/tiny")
    assert 0.9 * sum(made.values()) < found["total"]["written"] < 1.3 * sum(made.values())
    rules = {rule["rule"]: rule for rule in run["rules"]}
    for rule, path in {
        "merge_triggers": "triggers.h5",
        "merge_prefixes": "prefixes.h5",
        "corpus (train)": "corpus/train.h5",
    }.items():
        assert rules[rule]["written"] == pytest.approx(made[path], rel=0.1), rule
    assert all(rule["memory"] > 0 and rule["seconds"] > 0 for rule in run["rules"] if rule["rule"] != "write_settings")


def test_a_finished_run_has_nothing_left_to_do(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny)
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    planned = CliRunner().invoke(plan, ["--configfile", str(tmp_path / "tiny.yaml"), "--json"])
    found = json.loads(planned.stdout)
    assert all(rule["done"] for rule in found["runs"]["tiny"]["rules"])
    assert found["total"]["seconds"] == found["total"]["written"] == 0
    assert found["runs"]["tiny"]["text"]["train"]["source"] == "read from its file"
