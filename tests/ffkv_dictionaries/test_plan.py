"""A plan knows the units of dictionaries from what files say of their tensors, and what a branch about them takes from a trial."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support import random_sentences, refused

from ffkv.base.settings import Dictionary as Settings
from ffkv.model.shape import Shape
from ffkv_dictionaries.choose import count_units, resize
from ffkv_dictionaries.reconstruction.branch import BRANCH
from tests.ffkv_dictionaries import made
from tests.ffkv_dictionaries.conftest import of_layer
from tests.ffkv_dictionaries.test_workflow import save_set

MADE = {
    "saelens": made.saelens,
    "skip": lambda folder: made.saelens(folder, "skip_transcoder"),
    "gemma": made.gemma,
    "gemma 2": lambda folder: made.gemma_2(folder, skip=True),
    "llama": made.llama,
    "circuit-tracer": made.circuit_tracer,
    "sparsify": made.sparsify,
}


@pytest.mark.parametrize("form", MADE)
def test_units_are_counted_from_headers(form, tmp_path):
    folder = MADE[form](tmp_path / "made").folder
    for file in folder.rglob("*.safetensors"):  # no number is read: there is none
        whole = file.read_bytes()
        start = 8 + int.from_bytes(whole[:8], "little")
        file.write_bytes(whole[:start] + bytes(len(whole) - start))
    assert count_units(Settings(path=str(folder)), 5, made.D) == {3: made.UNITS}


def test_what_does_not_fit_is_refused(tmp_path):
    folder = str(made.saelens(tmp_path / "made").folder)
    with refused("has a dictionary of layer 3, but the model has the layers 0 to 2"):
        count_units(Settings(path=folder), 3, made.D)
    with refused("no matrix that reads vectors of 7 numbers"):
        count_units(Settings(path=folder), 5, 7)
    assert count_units(Settings(largest=4), 5, 7) == {}


def test_sizes_with_units(tmp_path):
    shape = Shape("any", (8,) * 4, made.D, 100, 1000, 600, 400, "float32", 4)
    folder = made.saelens(tmp_path / "made").folder
    found = resize(shape, Settings(path=str(folder)))
    assert found.memories == (8, 8, 8, made.UNITS) and found.all_memories == 24 + made.UNITS
    more = 2 * made.UNITS * made.D
    assert (found.parameters, found.body, found.outside) == (1000 + more, 600 + more, 400)


def test_a_layer_more_takes_two_passes_more(tmp_path):
    paths = save_set(tmp_path / "set", {})
    for number in (0, 2):
        made.circuit_tracer(Path(paths), layer=number)
    run = SimpleNamespace(
        settings=SimpleNamespace(dictionary=Settings(path=paths), reconstruction=SimpleNamespace(tokens=10)),
        shape=Shape("any", (8,) * 4, made.D, 3, 0, 5, 0, "float32", 4),
    )
    amount = BRANCH.steps["measure"].amount
    assert amount(run) == (5 * 10 * (5 + 3 * made.D), 1)
    run.settings.dictionary = Settings(path=paths, layers=[2])
    assert amount(run) == (3 * 10 * (5 + 3 * made.D), 1)
    run.settings.dictionary = Settings(largest=2)
    assert amount(run) == (9 * 10 * (5 + 3 * made.D), 1)


@pytest.mark.slow
def test_a_run_with_a_dictionary_is_planned(models, tmp_path):
    checkpoint, model = models("opt")
    path = save_set(tmp_path / "set", {1: of_layer(model, 1)})
    (tmp_path / "text.txt").write_text("\n".join(random_sentences(1, 300)))
    config = {
        "model": {"checkpoint": str(checkpoint)},
        "corpus": {"dataset": "files", "train": "text.txt", "splitter": "line"},
        "report": {"control": "none"},
        "dictionary": {"path": path},
        "runs": {"mine": {}},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config))
    code = "from ffkv.plan.commands import plan; plan()"
    command = [sys.executable, "-c", code, "--configfile", "mine.yaml", "--cores", "1", "--json"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    found = json.loads(told.stdout)
    assert found["runs"]["mine"]["shape"]["all_memories"] == 48
    assert found["not_estimated"] == []
    rules = {rule["rule"]: rule for rule in found["runs"]["mine"]["rules"]}
    assert rules["reconstruction_measure"]["seconds"] > 0 and rules["reconstruction_measure"]["written"] > 0
