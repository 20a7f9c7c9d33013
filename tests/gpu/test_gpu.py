"""A GPU gives the numbers of the CPU, but for rounding.

Without a GPU, a pretended card takes the ways of a GPU, and the tests that need a real one skip.
"""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from support import FULL, LAYER_KINDS, OFFLINE, random_checkpoint, random_sentences, snakemake

import ffkv
from benchmarks.pretended_card import DEVICE, PretendedCard, as_device
from ffkv.base.settings import Section
from ffkv.base.steps import Work
from ffkv.branches.behaviours.branch import BRANCH
from ffkv.branches.behaviours.tables import GRAPHS
from ffkv.branches.branch import Branch
from ffkv.branches.composition.measure import measure_composition
from ffkv.branches.concepts.branch import BRANCH as CONCEPTS
from ffkv.branches.given import Given
from ffkv.branches.intervention.measure import measure_interventions
from ffkv.branches.keys.removal import measure_precision, remove_tokens
from ffkv.branches.refinement.measure import measure_refinement
from ffkv.branches.routing.branch import BRANCH as ROUTING
from ffkv.branches.settings import (
    Batches,
    Behaviour,
    Concept,
    Corpus,
    Intervention,
    Keys,
    Model,
    Prefixes,
    Routing,
    Translation,
    Triggers,
    Values,
)
from ffkv.branches.translation.fit import fit_maps
from ffkv.branches.translation.maps import write_maps
from ffkv.branches.translation.measure import measure_translation
from ffkv.branches.translation.states import read_states
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.placement import parts_of
from ffkv.run.ask import call
from tests.branches.behaviours.conftest import write_prompts

GPU = "cuda"
REAL = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not REAL, reason="there is no GPU here")

# Sums of some hundred products in float32, in another order: 1e-5. Two norms and a softmax behind each other let it grow.
RELATIVE = 2e-3
CHANGED = 0.02  # share of tokens and ranks that may change: those with nearly equal logits
ROUNDING = ["error_median", "error_largest"]  # of float32 itself
SHARES = {"stability"}  # of draws, in each of which nearly equal numbers can change places
FEW = Keys(per_layer=4, removal_triggers=3)
FEW_EFFECTS = Intervention(memories=2, examples=2, controls=5, directions=2, similar=2, top_k_prefixes=4, tokens=3)


def write_inputs(folder: Path, checkpoint: Path) -> Path:
    """Model, corpora and prompts, which no device has changed."""
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("\n".join(random_sentences(0, 60, words=40)))
    corpus = Corpus(dataset="files", train=[str(folder / "text.txt")], splitter="line", validation_share=0.3)
    (folder / "model").mkdir()
    ffkv.prove(Model(checkpoint=str(checkpoint), device="cpu")).write(folder / "model", folder / "values.h5")
    for split in ("train", "validation"):
        ffkv.encode_corpus(folder / "model", split, corpus, folder / f"{split}.h5")
    generator = np.random.default_rng(0)
    words = generator.permuted(np.tile(np.arange(40), (12, 1)), axis=1)[:, :8]
    rows = [
        {
            "clean_prefix": " ".join(f"w{word}" for word in row[:4]),
            "patch_prefix": " ".join(f"w{word}" for word in [*row[:3], row[4]]),
            "clean_answer": f" w{row[5]}",
            "patch_answer": f" w{row[6]}",
        }
        for row in words
    ]
    write_prompts(folder / "prompts.jsonl", rows)
    texts = random_sentences(1, 40, words=40)
    labels = [{"text": text, "label": label} for text, label in zip(texts, ["even", "odd"] * 20, strict=True)]
    write_prompts(folder / "labels.jsonl", labels)
    return folder


def tables_of(folder: Path, inputs: Path, work: Work) -> dict[str, pd.DataFrame | np.ndarray]:
    """Every table and array that the steps make on a device."""
    folder.mkdir()
    model, values, train, validation = (inputs / name for name in ("model", "values.h5", "train.h5", "validation.h5"))
    found = ffkv.find_triggers(model, train, Triggers(per_key=4), Batches(tokens=64), work=work)
    triggers, projections, sampled = (folder / name for name in ("triggers.h5", "projections.h5", "prefixes.h5"))
    ffkv.write_triggers(triggers, found)
    files = {"model": model, "values": values, "triggers": triggers, "train": train, "validation": validation}
    projected, by_memory = project_values(Given(work, **files), Values(top_tokens=5))
    write_projections(projections, projected)
    states = Prefixes(count=20, extra_states=["x", "factor"])
    ffkv.sample_prefixes(model, validation, sampled, states, Batches(tokens=64), 0, work)
    files |= {"projections": projections, "prefixes": sampled}
    given = Given(work, **files)
    made: dict[str, pd.DataFrame | np.ndarray] = {
        "values": by_memory,
        "removal": remove_tokens(given, FEW),
        "precision": measure_precision(given, FEW).drop(columns=ROUNDING),
        "composition": measure_composition(given),
        "refinement": measure_refinement(given),
    }
    effects = measure_interventions(given, FEW_EFFECTS)
    made |= {f"effects {name}": table for name, table in effects._asdict().items()}
    made |= {f"triggers {name}": np.sort(getattr(found, name)) for name in ("coefficient", "mean", "maximum")}
    made |= behaviour_tables(folder, inputs, files, work)
    made |= translation_tables(folder, files, work)
    few = Concept(labels=str(inputs / "labels.jsonl"), sizes=[1, 2], shuffles=19, draws=20)
    made |= step_tables(CONCEPTS, Given(work, "it", **files), concepts=few)
    made |= step_tables(ROUTING, Given(work, **files), routing=Routing(tokens=200))
    with h5py.File(sampled) as file:
        names: list[str] = []
        file.visit(names.append)
        made |= {f"prefixes {name}": file[name][...] for name in names if isinstance(file[name], h5py.Dataset)}
    return made


def step_tables(branch: Branch, given: Given, **settings: Section) -> dict[str, pd.DataFrame]:
    """The tables of a branch's step `measure`."""
    step = branch.steps["measure"]
    made = call(branch, step, given, {**settings, "seed": 0})
    named = made if isinstance(made, dict) else {each.name: own for each, own in zip(step.writes, made, strict=True)}
    return {f"{branch.name} {name}": table for name, table in named.items()}


def behaviour_tables(folder: Path, inputs: Path, files: dict[str, Path], work: Work) -> dict[str, pd.DataFrame]:
    its = Behaviour(
        prompts=str(inputs / "prompts.jsonl"),
        minimum_accuracy=0,
        controls=5,
        directions=2,
        candidates=3,
        effect_prompts=6,
        sets=[1, 2, 5],
        random_sets=2,
        side_effect_prefixes=5,
        bootstraps=10,
        flips=200,
        graph_prompts=4,
    )

    def take(step: str) -> Any:
        return call(BRANCH, BRANCH.steps[step], Given(work, "it", **files), {"behaviours": its, "seed": 0})

    files = files | {"encode": take("encode")}
    files["read"] = [take("read")]
    chosen = dict(zip(("memories", "answers", "stability"), take("choose")))
    files |= chosen
    measured = take("measure")
    named = dict(zip(("effects", "sets", "parts", "side effects", "writers"), measured, strict=True))
    named |= {"answers": chosen["answers"], "experts": take("experts")}
    graph = take("graph")
    named |= {table.name: found for table, found in zip(GRAPHS, graph, strict=True)}
    return {f"behaviour {name}": table for name, table in named.items()}


def translation_tables(folder: Path, files: dict[str, Path], work: Work) -> dict[str, pd.DataFrame]:
    settings = Translation(prefixes=150, fit="divergence")
    states, maps = folder / "translation.h5", folder / "maps.h5"
    read_states(Given(work, **files), settings)(states)
    fitted, judged = fit_maps(Given(work, **files, states=[states]), settings)
    write_maps(maps, fitted)
    _, by_memory, by_prefix = measure_translation(Given(work, **files, maps=maps))
    return {"translation": judged, "translation by memory": by_memory, "translation by prefix": by_prefix}


def differences(expected: pd.DataFrame | np.ndarray, found: pd.DataFrame | np.ndarray) -> dict[str, float]:
    """By column, how far a device is off: relative to the largest number, or as a share of other entries."""
    if isinstance(expected, np.ndarray):
        expected, found = (pd.DataFrame({"all": each.ravel()}) for each in (expected, found))
    assert [*expected.columns] == [*found.columns] and len(expected) == len(found)
    off = {}
    for name in expected.columns:
        a, b = expected[name].to_numpy(), found[name].to_numpy()
        if a.dtype.kind == "f":
            assert (np.isnan(a) == np.isnan(b)).all(), name
            scale = np.nanmax(np.abs(a), initial=1e-6)
            allowed = CHANGED if name in SHARES else RELATIVE
            off[name] = float(np.nanmax(np.abs(a - b), initial=0) / scale) / allowed
        else:
            off[name] = float((a != b).mean()) / CHANGED if len(a) else 0.0
    return off


def too_far(expected: dict, found: dict) -> dict[str, dict[str, float]]:
    assert expected.keys() == found.keys()
    off = {name: differences(expected[name], found[name]) for name in expected}
    return {name: bad for name, own in off.items() if (bad := {key: x for key, x in own.items() if x > 1})}


@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize(
    "kind", [kind for kind in LAYER_KINDS if kind != "fairseq"] if REAL else ["gpt2"] if FULL else ["mixtral"]
)
def test_every_step_gives_the_numbers_of_the_cpu(tmp_path, kind, monkeypatch):
    if not REAL:  # a pretended card takes milliseconds per operation
        monkeypatch.setattr("ffkv.branches.translation.fit.STEPS", 50)
    inputs = write_inputs(tmp_path / "inputs", random_checkpoint(tmp_path / "checkpoint", kind))
    expected = tables_of(tmp_path / "cpu", inputs, Work("cpu", batch_tokens=64))
    if REAL:
        found = tables_of(tmp_path / "gpu", inputs, Work(GPU, batch_tokens=64))
    else:
        with as_device(), PretendedCard():
            found = tables_of(tmp_path / "gpu", inputs, Work(DEVICE, batch_tokens=64))
    assert not too_far(expected, found)


@needs_gpu
@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "mixtral"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_proven_on_the_gpu(tmp_path, kind, dtype):
    checkpoint = random_checkpoint(tmp_path / "checkpoint", kind)
    found = []
    for device in (GPU, "cpu"):
        (tmp_path / device / "model").mkdir(parents=True)
        proven = ffkv.prove(Model(checkpoint=str(checkpoint), device=device, dtype=dtype))
        proven.write(tmp_path / device / "model", tmp_path / device / "values.h5")
        found.append(read_anatomy(tmp_path / device / "model"))
    on_gpu, on_cpu = found
    assert on_gpu.layers == on_cpu.layers and on_gpu.read_as == on_cpu.read_as
    assert on_gpu.model_hash == on_cpu.model_hash


@needs_gpu
@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_a_model_spread_over_gpu_and_memory_gives_the_same_numbers(tmp_path, kind):
    inputs = write_inputs(tmp_path / "inputs", random_checkpoint(tmp_path / "checkpoint", kind))
    sizes = parts_of(load(inputs / "model", "cpu").model)
    largest = max(sizes.blocks.values())
    # The GPU holds one block less than all, one of which runs there; the CPU's memory holds one, and the disk the rest.
    limits = {"0": str(sum(sizes.outside.values()) + (len(sizes.blocks) - 1) * largest), "cpu": str(largest)}
    assert {"cpu", "disk"} <= {*load(inputs / "model", GPU, limits).model.hf_device_map.values()}
    expected = tables_of(tmp_path / "cpu", inputs, Work("cpu", batch_tokens=64))
    found = tables_of(tmp_path / "gpu", inputs, Work(GPU, limits, 64))
    assert not too_far(expected, found)


@needs_gpu
def test_a_run_of_the_workflow_uses_the_gpu(tmp_path):
    """A run through Snakemake, its report, and a trace of it."""
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "llama")
    (tmp_path / "text.txt").write_text("\n".join(random_sentences(0, 60, words=40)))
    settings = {
        "model": {"checkpoint": str(checkpoint)},
        "corpus": {
            "dataset": "files",
            "train": [str(tmp_path / "text.txt")],
            "splitter": "line",
            "validation_share": 0.3,
        },
        "triggers": {"per_key": 4},
        "prefixes": {"count": 20},
        "keys": {"per_layer": 4, "removal_triggers": 3},
        "intervention": json.loads(FEW_EFFECTS.model_dump_json()),
        "report": {"control": "none"},
        "runs": {"gpu": {}},
    }
    (tmp_path / "settings.yaml").write_text(json.dumps(settings))
    done = snakemake(tmp_path, tmp_path / "settings.yaml", "--cores", "8", environment=OFFLINE)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "reports/gpu/index.html").exists()
    run = ffkv.open(tmp_path / "results/gpu")
    on_gpu, on_cpu = (ffkv.trace(run, "w1 w2 w3 w4", device=device) for device in (GPU, "cpu"))
    assert not too_far({"p": on_cpu.layers}, {"p": on_gpu.layers})
