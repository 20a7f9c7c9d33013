"""Exports read by the code of the tools that they are for, where `make peers` has installed it."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support import ROOT

import ffkv
import ffkv_formats
from ffkv.run.export.settings import Export
from ffkv.run.export.step import export
from ffkv_formats.circuit_tracer_graphs import FORMAT
from tests.run.export.conftest import CHOSEN, MEMORIES

PEERS = Path(os.environ.get("FFKV_PEERS", ROOT / ".venv-peers")) / "bin/python"
MODULES = {
    "neuron-record": "neuron_explainer.activations.activations",
    "saedashboard": "sae_dashboard.neuronpedia.neuronpedia_dashboard",
    "circuit-tracer": "circuit_tracer.frontend.feature_models",
    "graph": "circuit_tracer.frontend.graph_models",
    "delphi": "delphi.latents",
    "circuitsvis": "circuitsvis.activations",
}


def read_by_peer(format_name: str, folder: Path, checkpoint: str) -> list:
    """Reads an export in the environment of the peers, in a process that starts in this folder."""
    if not PEERS.exists():
        pytest.skip(f"{PEERS} does not exist: make peers")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["HF_HUB_OFFLINE"] = "1"
    options = {"capture_output": True, "text": True, "env": environment, "cwd": folder}
    if subprocess.run([PEERS, "-c", f"import {MODULES[format_name]}"], **options).returncode:
        pytest.skip(f"{MODULES[format_name]} cannot be imported by {PEERS}")
    script = Path(__file__).with_name("read_by_peers.py")
    done = subprocess.run([PEERS, script, format_name, folder, checkpoint], **options)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def read(run):
    return lambda format_name, folder: read_by_peer(format_name, folder, run.anatomy.checkpoint)


def coefficient(run, layer, memory, column) -> float:
    return run.memory(layer, memory).statistics[column]


@pytest.mark.slow
def test_neuron_explainer(run, read, tmp_path):
    # Splits of one need four records, and an export keeps what the run has.
    wanted = Export(memories=MEMORIES, examples=4, sentences=8)
    export(run, "neuron-record", tmp_path / "export", wanted, "cpu")
    found = read("neuron-record", tmp_path / "export")
    assert sorted((layer, memory) for layer, memory, _ in found) == sorted([*CHOSEN, *CHOSEN])
    for layer, memory, largest in found:
        limits = [abs(coefficient(run, layer, memory, name)) for name in ("maximum_coefficient", "minimum_coefficient")]
        assert any(largest >= limit * 0.999 for limit in limits)


@pytest.mark.slow
def test_sae_dashboard(read, exported):
    found = read("saedashboard", exported("saedashboard"))
    assert [(layer, memory) for layer, memory, _ in found] == CHOSEN


@pytest.mark.slow
def test_circuit_tracer(run, read, exported):
    found = read("circuit-tracer", exported("circuit-tracer"))
    assert sorted(memory for memory, _ in found) == sorted(memory for _, memory in CHOSEN)
    wanted = sorted(coefficient(run, *place, "maximum_coefficient") for place in CHOSEN)
    assert sorted(largest for _, largest in found) == pytest.approx(wanted)


@pytest.mark.slow
def test_graph(run, read, tmp_path, monkeypatch):
    monkeypatch.setattr("ffkv.run.results.memory.Memory.pattern", "ends with “w1”")  # the run has no branch of keys
    found = ffkv.graph(run, "w1 w2 w3", share=0.2, device="cpu")
    errors = pd.DataFrame({"name": ["L1.error@2"], "layer": [1], "position": [2], "effect": [0.5]})
    found = replace(found, errors=errors)
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph/graph.json").write_text(FORMAT.write(found, run, None))
    nodes, links = read("graph", tmp_path / "graph")
    last = len(found.tokens) - 1
    wanted = [f"{row.layer}_{row.memory}_{row.position}" for row in found.nodes.itertuples()]
    assert nodes == [*wanted, "L1.error@2", f"{len(run.anatomy.layers) + 1}_{found.answer_id}_{last}"]
    assert links == len(found.edges)


@pytest.mark.slow
def test_delphi(run, read, exported):
    found = {(module, latent): largest for module, latent, largest in read("delphi", exported("delphi"))}
    assert {*found} <= {(f"layers.{layer}.mlp{side}", memory) for layer, memory in CHOSEN for side in ("", ".negative")}
    for layer, memory in CHOSEN:
        largest = coefficient(run, layer, memory, "maximum_coefficient")
        assert found[f"layers.{layer}.mlp", memory] >= largest * 0.998  # float16


@pytest.mark.slow
def test_circuitsvis(run, read, tmp_path):
    arguments = ffkv_formats.circuitsvis(run.memory(1, 3), 2, "cpu")
    arguments["tokens"][0][0] = run_token("</script><script>alert(1)</script>")
    content = arguments | {"activations": [own.tolist() for own in arguments["activations"]]}
    (tmp_path / "circuitsvis.json").write_text(json.dumps(content))
    assert read("circuitsvis", tmp_path)[0] > 100


def run_token(text: str) -> str:
    from ffkv_formats.notebook import harmless

    return harmless(text)
