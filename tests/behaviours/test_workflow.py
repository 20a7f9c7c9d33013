"""A behaviour as a part of a whole run: rules, files, report."""

import shutil
import subprocess

import pytest
import yaml
from explorer.conftest import Visitor
from forks import with_forks
from support import OFFLINE, ROOT, snakemake

import ffkv
from ffkv.apps.explorer.shelf import open_shelf

pytestmark = pytest.mark.workflow
PROMPTS = str(ROOT / "configs/prompts/documentation.jsonl")
SMALL = {"candidates": 3, "controls": 4, "directions": 1, "effect_prompts": 8, "sets": [1, 5], "random_sets": 1}
GRAPH = {"graph_prompts": 3, "graph_resamples": 2, "graph_maximum": 30}


def test_a_run_with_a_behaviour(tiny, tmp_path):
    """The run `tiny` gets a behaviour: only its jobs, the settings and the report are made."""
    shutil.copytree(tiny / "results/tiny", tmp_path / "results/tiny", copy_function=shutil.copy2)
    (tmp_path / "results/tiny/settings.json").unlink()
    settings = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    # The model of 100 steps has hardly learnt it, but effects can be measured all the same.
    settings["behaviours"] = {"number": {"prompts": PROMPTS, "minimum_accuracy": 0, **SMALL, **GRAPH}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    made = snakemake(tmp_path, tmp_path / "config.yaml", "--rerun-triggers", "mtime")
    assert made.returncode == 0, made.stderr[-3000:]
    assert "rule triggers" not in made.stderr and "behaviours_measure" in made.stderr
    run = ffkv.open(tmp_path / "results/tiny")
    summary = run.table("behaviours").iloc[0]
    assert summary["behaviour"] == "number" and summary["prompts"] == summary["lines"] == 40
    effects = run.table("behaviour_memories")
    assert effects["effect"].notna().all() and set(effects["reach"]) == {"direct", "total"}
    for place in {*zip(effects["layer"], effects["memory"])}:
        assert run.memory(*map(int, place)).behaviours["reach"].tolist() == ["direct", "total"]
    page = Visitor(open_shelf([tmp_path / "results/tiny"])).get(f"/r/tiny/m/{place[0]}/{place[1]}")
    assert "The memory is a candidate of these behaviours" in page and "number" in page
    graph = ffkv.behaviour_graph(run, "number")
    assert len(graph.sets) == 1 + 1 + 2 + 2 and "<svg" in graph.to_svg()
    command = ["ffkv", "check", tmp_path / "results/tiny"]
    checked = subprocess.run(command, env=with_forks(OFFLINE), capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    page = (tmp_path / "reports/tiny/index.html").read_text()
    for text in ("Memories of number", "Graph of number", "behaviour_layers", "behaviour_sets", "carry"):
        assert text in page
    again = snakemake(tmp_path, tmp_path / "config.yaml", "--rerun-triggers", "mtime")
    assert "Nothing to be done" in again.stderr


def test_a_file_of_prompts_that_is_not_there(tiny, tmp_path):
    """It is told before any job runs."""
    (tmp_path / "results").symlink_to(tiny / "results")
    settings = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    settings["behaviours"] = {"number": {"prompts": "none.jsonl"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    planned = snakemake(tmp_path, tmp_path / "config.yaml", "--rerun-triggers", "mtime")
    assert planned.returncode and "There is no file of prompts none.jsonl" in planned.stderr
    assert "rule behaviours_encode" not in planned.stderr
