"""Concepts of a whole run: rules, files, report, Python, command."""

import csv
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from support import ROOT, snakemake

import ffkv
from ffkv.cli import ffkv as command
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor, text_of

pytestmark = pytest.mark.workflow
SMALL = {"texts": 80, "sizes": [1, 4], "shuffles": 19, "draws": 20}


def test_a_run_with_concepts(tiny, tmp_path, monkeypatch):
    """The run `tiny` gets two concepts: only their jobs, the settings and the report are made."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny / "results/tiny", tmp_path / "results/tiny", copy_function=shutil.copy2)
    (tmp_path / "results/tiny/settings.json").unlink()
    with (tmp_path / "calls.csv").open("w", newline="") as file:
        rows = [(f"the name {n} {what}", what) for n in range(40) for what in ("list", "call")]
        csv.writer(file).writerows([("text", "label"), *rows])
    settings = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    settings["concepts"] = {"calls": {"labels": "calls.csv", **SMALL}, "code": {"rules": "code", **SMALL}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    made = snakemake(tmp_path, tmp_path / "config.yaml", "--rerun-triggers", "mtime")
    assert made.returncode == 0, made.stderr[-3000:]
    assert "rule triggers" not in made.stderr and "concepts_measure" in made.stderr
    run = ffkv.open(tmp_path / "results/tiny")
    tasks = run.table("concept_tasks").set_index("task")
    assert tasks.loc["calls", "train"] == tasks.loc["calls", "test"] == 40 and "code/bracket" in tasks.index
    assert tasks.loc["calls", "auc"] > 0.9  # the last token tells the label
    assert 0 < tasks.loc["code/bracket", "examples"] < 1 and np.isnan(tasks.loc["calls", "examples"])
    asked = ffkv.concepts(run, "calls.csv", device="cpu", **SMALL)
    for name, table in asked.items():
        if "q" not in table:  # which depends on the other tasks
            own = run.table(name)
            own = own[own["task"] == "calls"] if "task" in own else None
            if own is not None:
                pd.testing.assert_frame_equal(
                    table, own.reset_index(drop=True), check_dtype=False, rtol=1e-3, atol=1e-5
                )
    options = [
        f"--{name}={each}" for name, value in SMALL.items() for each in (value if isinstance(value, list) else [value])
    ]
    told = CliRunner().invoke(command, ["probe", str(run.folder), "calls.csv", "--output", "probed", *options])
    assert told.exit_code == 0 and "AUC of one memory, many, the residual" in told.stdout, told.output
    pd.testing.assert_frame_equal(pd.read_csv("probed/concept_layers.csv"), asked["concept_layers"], check_dtype=False)
    page = (tmp_path / "reports/tiny/index.html").read_text()
    assert "How well memories separate the labels of texts" in page and "code/bracket" in page
    assert "How many concepts a memory separates" in page and run.table("concept_mixture")["any"].max() > 0
    (found, *_) = run.memories(concept="calls", sort="concept_auc").itertuples()
    assert run.memory(found.name).concepts["auc"].max() >= found.concept_auc > 0.9
    visitor = Visitor(open_shelf([run.folder]))
    assert ">calls</option>" in visitor.get("/r/tiny/memories")
    assert f">{found.name}<" in visitor.get("/r/tiny/memories?concept=calls")
    assert "Separates" in text_of(visitor.get(f"/r/tiny/m/{found.layer}/{found.memory}"))
    (tmp_path / "calls.csv").write_text("text,label\na,1\n")
    refused = snakemake(tmp_path, tmp_path / "config.yaml", "--forcerun", "concepts_measure")
    assert refused.returncode and "has one label alone" in refused.stderr
