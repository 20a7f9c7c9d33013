"""Behaviours of whole runs: rules, files, report; and that without an effect there are no memories, on a trained model."""

import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import yaml
from forks import with_forks
from support import OFFLINE, ROOT, snakemake

import ffkv
from ffkv.base.steps import Work
from ffkv.branches.branch import FILES
from ffkv.branches.given import Given
from ffkv.branches.settings import Values
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections
from ffkv_explorer.shelf import open_shelf
from tests.branches.behaviours.conftest import make
from tests.ffkv_explorer.conftest import Visitor

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
    whole = run.table("behaviour_writers").query("writer == 'everything'")
    assert (whole["effect"] > 0).any() and {"direct", "total"} == {*whole["reach"]}
    asked = ffkv.behaviour(
        run, shutil.copy(PROMPTS, tmp_path / "number.jsonl"), device="cpu", minimum_accuracy=0, **SMALL
    )
    for name in (
        "behaviours",
        "behaviour_layers",
        "behaviour_memories",
        "behaviour_sets",
        "behaviour_writers",
    ):  # asked in memory, in one shard
        pd.testing.assert_frame_equal(asked[name], run.table(name), check_dtype=False, rtol=1e-3, atol=1e-5)
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
    for text in (
        "Memories of number",
        "Graph of number",
        "behaviour_layers",
        "behaviour_sets",
        "behaviour_writers",
        "carry",
    ):
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


SHUFFLES = 5
FEW = {"candidates": 3, "controls": 5, "directions": 0, "effect_prompts": 5, "sets": [5], "random_sets": 5}
FEW |= {"missed": 28, "side_effect_prefixes": 2, "bootstraps": 10, "flips": 2000, "minimum_accuracy": 0}


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory):
    """What a behaviour reads of the run `tiny`, whose model is trained; projections of both layers in one file."""
    run, projections = tiny / "results/tiny", tmp_path_factory.mktemp("null") / "projections.h5"
    files = {name: run / FILES[name] for name in ("model", "triggers", "prefixes", "train", "validation")}
    given = Given(Work("cpu"), **files, values=run / "values.h5")
    write_projections(projections, project_values(given, Values(top_tokens=5))[0])
    return files | {"projections": projections}


def pairs(seed: int | None = None) -> list[dict]:
    """The pairs of the documentation; with a seed half of them turned round, and half with answers in each other's place."""
    rows = [json.loads(line) for line in (ROOT / "configs/prompts/documentation.jsonl").read_text().splitlines()]
    generator = np.random.default_rng(seed)
    for row in rows if seed is not None else ():
        for one, other in (("clean_prefix", "patch_prefix"), ("clean_answer", "patch_answer")):
            if generator.random() < 0.5:
                row[one], row[other] = row[other], row[one]
    return rows


def test_shuffled_prompts_and_answers_have_no_memories(tmp_path, files):
    """Over some shuffles, since memories of one model depend on each other: their p-values are low together, or high."""
    below, significant, gains = [], [], []
    for seed in range(SHUFFLES):
        made = make(tmp_path / str(seed), files, prompts=pairs(seed), **FEW)
        for p, q in (("p_value", "q_value"), ("screen_p", "screen_q")):
            below.append([(made.memories[p] <= level).mean() for level in (0.05, 0.25, 0.5)])
            significant.append((made.memories[q] < 0.05).any())
        sets = made.sets.merge(made.answers[["prompt", "difference"]], on="prompt").query("size == 5")
        lost = (sets["difference"] - sets["patched"]).groupby(sets["choice"]).mean()
        gains.append(lost["screen"] - lost["random"])
    # Shares of 2 x 5 tests of dependent memories: p-values may be larger than uniform ones, not smaller.
    assert (np.mean(below, 0) <= (0.1, 0.35, 0.6)).all()
    # For each of both tests, one shuffle in twenty has significant memories: more than two of five with a chance of 0.1 %.
    assert (np.reshape(significant, (SHUFFLES, 2)).sum(0) <= 2).all()
    # Sets that the screen chose cost no more than random ones, within three standard errors over the shuffles.
    assert abs(np.mean(gains)) < 3 * np.std(gains, ddof=1) / np.sqrt(SHUFFLES)


def test_the_pairs_as_they_are_have_memories(tmp_path, files):
    """Else the test above could not fail."""
    made = make(tmp_path / "whole", files, prompts=pairs(), **FEW)
    assert (made.memories["p_value"] <= 0.05).mean() > 0.2
    assert (made.memories["q_value"] < 0.05).any()
