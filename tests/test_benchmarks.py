"""The benchmarks measure what they say: medians over rounds, targets of both kinds, the same work at every size."""

import contextlib
import importlib
import itertools
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import forks_of
from support import OFFLINE, ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import inputs, measure
from benchmarks.__main__ import PAGE, RESULTS, machine, table
from benchmarks.cases import NAMES, comparisons_of, oracle, peers, streaming, workflow
from benchmarks.inputs import Shape
from benchmarks.measure import Comparison, Contender, Measurement, Unmeasured, cpu_ratio, run_contender

FIELDS = {"case", "shape", "measured", "target", "unit", "met", "spread", "contenders", "note", "target_is"}
TINY = {"shape": Shape(2, 16, 32, 500), "sentences": 60, "length": 12, "values": 100, "prefixes": 40, "documents": 3}
TINY |= {"requests": 8, "rows": 20}
# Whole runs, commands, a model of one size; they have tests of their own.
SLOW = ("workflow", "oracle", "smollm2", "gpu", "behaviours")


def make_comparison(**changes) -> Comparison:
    contenders = {
        "ours": Contender("ours", {"seconds": [2, 6, 4]}),
        "theirs": Contender("theirs", {"seconds": [4] * 3}),
    }
    fields = {"target": 1.0, "unit": "times"} | changes
    return Comparison("case", "shape", contenders, cpu_ratio("ours", "theirs"), **fields)


@pytest.fixture
def order(monkeypatch) -> list[str]:
    """Replaces processes: contenders take the seconds of their arguments. Lists which ran, in order."""
    order: list[str] = []

    def run(contender: Contender, scratch) -> Measurement:
        seconds = contender.arguments["seconds"][order.count(contender.function)]
        order.append(contender.function)
        return Measurement(seconds, seconds, seconds + 1, 10**6, {"digest": "same", "tokens": 7.0})

    monkeypatch.setattr(measure, "run_contender", run)
    return order


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def in_this_process(monkeypatch):
    """Lets contenders run in the process of the tests, whose threads and memory stay as they are, and their commands in forks."""
    for module in (inputs, peers):
        monkeypatch.setattr(module, "configure", lambda threads: None)
        monkeypatch.setattr(module, "torch_with", lambda threads: torch)

    def peak_of(options: list[str], environment: dict[str, str], real=streaming.peak_of) -> int:
        with monkeypatch.context() as patch:
            if "HF_ENDPOINT" not in environment:  # the forks ask no hub
                patch.setattr("sys.executable", str(forks_of(OFFLINE) / "python-code"))
            return real(options, environment)

    monkeypatch.setattr(streaming, "peak_of", peak_of)
    with torch.no_grad():
        yield


def tiny(contender: Contender) -> dict:
    """The arguments of a contender at a tiny size."""
    return {name: TINY.get(name, value) for name, value in contender.arguments.items()}


def work_of(contender: Contender, scratch):
    """The work of a contender at a tiny size."""
    module, function = contender.function.split(":")
    return getattr(importlib.import_module(module), function)(scratch, **tiny(contender))


def test_the_median_of_the_rounds_decides(order, tmp_path):
    [line] = measure.measure([make_comparison()], tmp_path, lambda text: None)
    assert (line["measured"], line["spread"], line["met"]) == (1.0, [0.5, 1.5], True)
    expected = {"cpu": 4, "wall": 4, "process": 5, "peak": 10**6, "tokens": 7.0, "digest": "same"}
    assert line["contenders"]["ours"] == expected
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert set(line) == FIELDS


@pytest.mark.parametrize(("target", "at_most", "met"), [(0.9, True, False), (0.9, False, True), (None, True, None)])
def test_targets_of_both_kinds(order, tmp_path, target, at_most, met):
    [line] = measure.measure([make_comparison(target=target, at_most=at_most)], tmp_path, lambda text: None)
    assert line["met"] is met


def test_comparisons_of_the_same_contenders_share_their_runs(order, tmp_path):
    reverse = replace(make_comparison(), case="reverse", result=cpu_ratio("theirs", "ours"))
    lines = measure.measure([make_comparison(), reverse], tmp_path, lambda text: None)
    assert [(line["case"], line["measured"]) for line in lines] == [("case", 1.0), ("reverse", 1.0)]
    assert [line["spread"] for line in lines] == [[0.5, 1.5], [4 / 6, 2.0]]
    assert len(order) == 6


def test_a_contender_that_cannot_run_here_is_named(monkeypatch, tmp_path):
    def refuse(contender, scratch):
        raise Unmeasured("no such thing here")

    monkeypatch.setattr(measure, "run_contender", refuse)
    [line] = measure.measure([make_comparison()], tmp_path, lambda text: None)
    assert (line["measured"], line["met"], line["note"]) == (None, None, "not measured: no such thing here")
    assert "| – | at most 1 | – |" in table([line | {"machine": "a machine"}])


def test_each_machine_has_a_table_of_its_own(order, tmp_path):
    line = measure.measure([make_comparison()], tmp_path, lambda text: None)[0]
    tables = table([line | {"machine": name, "case": case} for name, case in (("A", "1"), ("B", "2"), ("A", "3"))])
    parts = tables.split("\n\n")
    assert parts[::2] == ["On A.", "On B."]
    assert [re.findall(r"^\| (\d)", each, re.MULTILINE) for each in parts[1::2]] == [["1", "3"], ["2"]]


def test_the_machine_names_its_gpus(monkeypatch, tmp_path):
    for gpus in ([], ["NVIDIA H200"], ["NVIDIA A100", "NVIDIA A100"]):
        program = tmp_path / "nvidia-smi"
        program.write_text("\n".join(["#!/bin/sh", *(f"echo {gpu}" for gpu in gpus)]))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        assert ", ".join([" GiB", *gpus, "Linux"]) in machine()


@pytest.mark.slow
def test_a_contender_runs_in_a_process_of_its_own(forked_python, tmp_path):
    measurement = run_contender(Contender("benchmarks.cases.scale:padding", {"sentences": 500}), tmp_path)
    assert 0.9 < measurement.extra["real"] <= 1
    assert measurement.process > measurement.cpu >= 0 and measurement.peak > 10**7
    with pytest.raises(RuntimeError, match=r"ended with 1[\s\S]*no_such_function"):
        run_contender(Contender("benchmarks.cases.scale:no_such_function", {}, forked_python), tmp_path)
    with pytest.raises(Unmeasured, match="environment"):
        run_contender(Contender("benchmarks.cases.scale:padding", {}, tmp_path / "python"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SLOW])
def test_each_case_runs_at_a_tiny_size(name, scratch, in_this_process):
    done: dict[str, dict] = {}  # contenders that only their sizes tell apart are one here

    def run(contender: Contender) -> dict:
        what = f"{contender.function} {tiny(contender)}"
        if what not in done:
            done[what] = work_of(contender, scratch)() or {}
        return done[what]

    for contenders, comparisons in itertools.groupby(comparisons_of([name]), key=lambda each: each.contenders):
        try:
            measurements = {
                name: Measurement(1.0, 1.0, 1.0, 10**6 * number, run(contender))
                for number, (name, contender) in enumerate(contenders.items(), 1)
                if contender.python.exists() and contender.python != peers.PEERS
            }
        except Unmeasured as lacking:
            pytest.skip(str(lacking))
        if set(measurements) == set(contenders):
            assert all(comparison.result(measurements) > 0 for comparison in comparisons)


def test_triggers_by_topk_are_right(scratch, in_this_process, monkeypatch):
    """The part that TransformerLens and nnsight share, with the bare model in their place."""

    def with_bare_model(folder):
        model, peaks = peers._checkpoint(folder).transformer, []
        for block in model.h:
            block.mlp.c_proj.register_forward_pre_hook(lambda _, tensors: peaks.append(tensors[0].clone()))

        def coefficients(ids):
            peaks.clear()
            model(ids, use_cache=False)
            return list(peaks)

        return peers.by_topk(coefficients, 2 * 32)

    monkeypatch.setitem(peers.LIBRARIES, "bare", with_bare_model)
    assert peers.find(scratch, TINY["shape"], 60, "bare")() is None


@pytest.mark.parametrize(("apart", "right"), [(0.9, True), (4.0, False)])
@pytest.mark.parametrize("tied", ["sentences", "tokens"])
def test_ties_may_be_broken_otherwise(tied, apart, right):
    """Of maxima that are closer than ties are, the second may come first. Of the tokens of a sentence, ffkv takes the first one,
    whose coefficient may be less than the maximum."""
    maxima = np.linspace(3, 1, 60, dtype=np.float32)[:, None].repeat(8, 1)
    sentence = np.arange(peers.TOP)[None].repeat(8, 0)
    if tied == "sentences":
        maxima[1] = maxima[0] * (1 - apart * peers.TIED)
        sentence[3, :2] = 1, 0
    coefficient = np.take_along_axis(maxima, sentence.T, 0).T
    if tied == "tokens":
        coefficient[3, 5] *= 1 - apart * peers.TIED
    with contextlib.nullcontext() if right else pytest.raises(RuntimeError, match="1 keys have wrong triggers"):
        peers.check(coefficient, sentence, maxima)


@pytest.mark.many
@pytest.mark.parametrize("library", peers.LIBRARIES)
def test_each_peer_runs_where_make_peers_has_installed_it(library, tmp_path):
    """In the environment of the peers, as `make bench` runs it: its triggers are right. delphi leaves out what is no whole batch of 32."""
    python = Path(os.environ.get("FFKV_PEERS", ROOT / ".venv-peers")) / "bin/python"
    if not python.exists():
        pytest.skip(f"{python} does not exist: make peers")
    arguments = {"shape": TINY["shape"], "sentences": 64, "library": library, "length": 12}
    contender = Contender("benchmarks.cases.peers:find", arguments, python)
    assert run_contender(contender, tmp_path).wall > 0


@pytest.mark.parametrize("mistake", ["coefficient", "sentence", "twice"])
def test_wrong_triggers_are_refused(mistake):
    maxima = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    sentence = np.argsort(-maxima, axis=0)[: peers.TOP].T
    coefficient = np.take_along_axis(maxima, sentence.T, 0).T
    sentence, coefficient = np.where(coefficient > 0, sentence, -1), np.maximum(coefficient, 0)
    peers.check(coefficient, sentence, maxima)
    if mistake == "coefficient":
        coefficient[3, 0] += 0.1
    if mistake == "sentence":
        sentence[3, 0] = sentence[3, 1]
    if mistake == "twice":
        maxima[sentence[3, 1], 3] = coefficient[3, 1] = coefficient[3, 0]
        sentence[3, 1] = sentence[3, 0]
    with pytest.raises(RuntimeError, match="1 keys have wrong triggers"):
        peers.check(coefficient, sentence, maxima)


def test_the_authors_model_is_not_everywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(oracle, "ORACLE", tmp_path / "nothing")
    with pytest.raises(Unmeasured, match="authors"):
        oracle.ffkv(tmp_path)


def test_the_jobs_of_a_run_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "IMPORT", """print('{"tables": [1, 0], "head": [2, 0], "model": [3, 0]}')""")
    for job in ("triggers/0", "values_project/0", "keys_summarize", "write_settings"):
        path = tmp_path / f"results/demo/benchmarks/{job}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s\tcpu_time\n3.0\t1.5\n")
    assert workflow.count_jobs(tmp_path) == {"jobs": 4, "jobs_cpu": 6.0, "starts": 3 + 2 + 1 + 1}


def test_the_docs_show_the_result_of_every_comparison():
    lines, page = json.loads(RESULTS.read_text()), PAGE.read_text()
    assert {(line["case"], line["shape"]) for line in lines} == {(each.case, each.shape) for each in comparisons_of()}
    assert table(lines) in page
    assert all({*FIELDS, "machine"} == set(line) for line in lines)
    cases = page.partition("## How it is measured")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", cases, re.MULTILINE)) == sorted(NAMES)
