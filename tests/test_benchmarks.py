"""The benchmark measures what it says: medians over rounds, targets of both kinds, only equal results."""

import importlib
import json
import pkgutil
import sys
from dataclasses import replace

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import measure as measuring
from benchmarks import works
from benchmarks.__main__ import table
from benchmarks.measure import Arm, Row, Sample, Unmeasured, cpu_ratio, measure

FIELDS = {"work", "shape", "measured", "target", "unit", "met", "spread", "arms", "note", "target_is"}


def rows_of(**changes) -> Row:
    arms = {"ours": Arm("ours", {"seconds": [2, 6, 4]}), "theirs": Arm("theirs", {"seconds": [4, 4, 4]})}
    return Row("work", "shape", arms, cpu_ratio("ours", "theirs"), **{"target": 1.0, "unit": "times"} | changes)


@pytest.fixture
def played(monkeypatch):
    """Arms that take the seconds that they are told to."""
    turns = {"ours": 0, "theirs": 0}
    order = []

    def play(arm: Arm, scratch) -> Sample:
        order.append(arm.function)
        seconds = arm.arguments["seconds"][turns[arm.function]]
        turns[arm.function] += 1
        return Sample(seconds, seconds, seconds + 1, 10**6, arm.arguments.get("digest", "same"), {"state": 7.0})

    monkeypatch.setattr(measuring, "run_arm", play)
    return order


def test_the_median_of_the_rounds_decides(played, tmp_path):
    [line] = measure([rows_of()], tmp_path, lambda text: None)
    assert (line["measured"], line["spread"], line["met"]) == (1.0, [0.5, 1.5], True)
    assert line["arms"]["ours"] == {"cpu": 4, "wall": 4, "process": 5, "peak": 10**6, "state": 7.0, "digest": "same"}
    assert played == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert set(line) == FIELDS


@pytest.mark.parametrize(("target", "at_most", "met"), [(0.9, True, False), (0.9, False, True), (None, True, None)])
def test_targets_of_both_kinds(played, tmp_path, target, at_most, met):
    [line] = measure([rows_of(target=target, at_most=at_most)], tmp_path, lambda text: None)
    assert line["met"] is met


def test_rows_of_the_same_arms_share_their_runs(played, tmp_path):
    turned = replace(rows_of(), work="the other way round", measured=cpu_ratio("theirs", "ours"))
    lines = measure([rows_of(), turned], tmp_path, lambda text: None)
    assert [(line["work"], line["measured"]) for line in lines] == [("work", 1.0), ("the other way round", 1.0)]
    assert [line["spread"] for line in lines] == [[0.5, 1.5], [4 / 6, 2.0]]
    assert len(played) == 6


def test_unequal_results_are_not_compared(played, tmp_path):
    row = rows_of(equal=("ours", "theirs"))
    row.arms["ours"].arguments["digest"] = "other"
    with pytest.raises(RuntimeError, match="do not find the same"):
        measure([row], tmp_path, lambda text: None)


def test_an_arm_that_cannot_run_here_is_said_so(monkeypatch, tmp_path):
    def refuse(arm, scratch):
        raise Unmeasured("no such thing here")

    monkeypatch.setattr(measuring, "run_arm", refuse)
    [line] = measure([rows_of()], tmp_path, lambda text: None)
    assert (line["measured"], line["met"], line["note"]) == (None, None, "not measured: no such thing here")
    assert "| – | at most 1 | – |" in table([line | {"machine": "a machine"}])


def test_an_arm_runs_in_a_process_of_its_own(tmp_path):
    sample = measuring.run_arm(Arm("benchmarks.works.scale:padding", {"sentences": 500}), tmp_path)
    assert 0.9 < sample.extra["sorted"] <= 1 and sample.extra["unsorted"] < 0.6
    assert sample.process > sample.cpu >= 0 and sample.peak > 10**7
    with pytest.raises(RuntimeError, match=r"ended with 1[\s\S]*no_such_function"):
        measuring.run_arm(Arm("benchmarks.works.scale:no_such_function"), tmp_path)


def test_the_docs_show_what_was_measured_of_every_row():
    rows = [
        row
        for module in pkgutil.iter_modules(works.__path__)
        for row in importlib.import_module(f"benchmarks.works.{module.name}").ROWS
    ]
    lines = json.loads((ROOT / "benchmarks/results/latest.json").read_text())
    assert {(line["work"], line["shape"]) for line in lines} == {(row.work, row.shape) for row in rows}
    assert table(lines) in (ROOT / "docs/benchmarks.md").read_text()
    assert all({*FIELDS, "machine"} == set(line) for line in lines)
