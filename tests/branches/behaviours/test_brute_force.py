"""Effects of candidates and of sets against forward passes in which coefficients are changed, for each kind of layer."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import LAYER_KINDS, OFFLINE, ROOT

from ffkv.base.errors import UserError
from ffkv.branches.behaviours import measure, subjects
from ffkv.branches.behaviours.choosing import Subjects
from ffkv.branches.behaviours.states import AtTokens, read_states, run_states
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.settings import Behaviour
from ffkv.model.effects.rerun import Running, keeps, patched_ends, rerunning
from ffkv.model.head.head_file import load_head
from ffkv.model.keys_and_values import values_in_place
from ffkv.model.tap.change import scaled, with_output
from ffkv.model.tap.hooks import forward

PROMPTS = [
    Encoded(np.array([0, 3, 5, 7, 2]), np.array([0, 3, 5, 9, 11, 4]), 6, 8, ""),
    Encoded(np.array([0, 4, 9]), np.array([0, 4, 12]), 20, 21, "", 1, 1),
]
SETTINGS = Behaviour(prompts="none", controls=3, directions=2)
# A norm after the layer computes its factor anew where coefficients change; effects hold it (docs/interventions.md).
HELD = ("gemma2", "opt-post-norm")


@pytest.fixture
def running(proven, load_kind, tmp_path):
    """A model of a kind that is changed while it runs."""

    def get(kind: str) -> Running:
        loaded = load_kind(kind)
        head = load_head(tmp_path / "stage/model" if kind == "fairseq" else proven(kind), "cpu")
        keeping = keeps(loaded)
        reruns = [rerunning(loaded, layer, 64, keeping) for layer in loaded.anatomy.layers]
        return Running(loaded, head, keeping, reruns, 64)

    return get


def subjects_of(model: Running) -> Subjects:
    """The prompts, whose memories are patched to 0."""
    mean = np.zeros(model.loaded.anatomy.layer_offset[-1])
    return Subjects(subjects.read_prompts(model, PROMPTS, mean, "zero"), np.arange(len(PROMPTS)))


def log_p(loaded, prompt: Encoded, factors: dict) -> torch.Tensor:
    """Log-probabilities of the model's own forward pass, with coefficients multiplied at the last token."""
    ids, token = torch.from_numpy(prompt.clean)[None], len(prompt.clean) - 1
    changed = scaled(loaded.model, loaded.anatomy.layers, factors, token) if factors else contextlib.nullcontext()
    with changed:
        return forward(loaded.model, ids).logits[0, -1].log_softmax(-1)


def difference(loaded, prompt: Encoded, factors: dict) -> float:
    """The logit difference of such a pass."""
    found = log_p(loaded, prompt, factors)
    return float(found[prompt.answer] - found[prompt.wrong])


def chosen_memories(loaded) -> list[tuple[int, int]]:
    """Two memories of each layer that fire on the last token of the first prompt."""
    m, _ = states_of(loaded, [PROMPTS[0].clean])
    return [(layer, int(memory)) for layer, own in enumerate(m) for memory in own[0].abs().topk(2).indices]


@pytest.mark.parametrize("kind", [kind for kind in LAYER_KINDS if kind not in HELD])
def test_effects_sets_and_side_effects_are_those_of_forward_passes(kind, running):
    """Each memory alone; memories of all layers at once, and all but them. Tolerance: logits of tiny models are below 10, in float32."""
    model = running(kind)
    loaded, places, offset = model.loaded, chosen_memories(model.loaded), model.loaded.anatomy.layer_offset
    flat, own = np.sort([offset[layer] + memory for layer, memory in places]), subjects_of(model)
    candidates = {
        layer: [
            measure.draw_controls(layer, m, norms_of(loaded, layer), loaded.anatomy.width, SETTINGS, 0)
            for at, m in places
            if at == layer
        ]
        for layer in range(len(offset) - 1)
    }
    rows = measure.measure_candidates(model, candidates, own.subjects)
    total = {(r["prompt"], r["layer"], r["memory"]): r for r in rows if r["source"] == "own" and r["reach"] == "total"}
    assert len(total) == 2 * len(places)
    for (number, *place), row in total.items():
        expected = difference(loaded, PROMPTS[number], {}) - difference(loaded, PROMPTS[number], {tuple(place): 0.0})
        assert row["effect"] == pytest.approx(expected, abs=2e-4), row
    every = [(layer, memory) for layer in range(len(offset) - 1) for memory in range(offset[layer + 1] - offset[layer])]
    off, rest = dict.fromkeys(places, 0.0), dict.fromkeys([place for place in every if place not in places], 0.0)
    sets = [measure.MemorySet("screen", 0, len(flat), flat)]
    of_prefixes = measure.measure_side_effects(sets, own)
    for row, side, prompt in zip(measure.measure_sets(sets, own), of_prefixes, PROMPTS, strict=True):
        assert row["patched"] == pytest.approx(difference(loaded, prompt, off), abs=2e-4)
        assert row["kept"] == pytest.approx(difference(loaded, prompt, rest), abs=2e-4)
        before, after = (log_p(loaded, prompt, factors) for factors in ({}, off))
        assert side["divergence"] == pytest.approx(float((before.exp() * (before - after)).sum()), abs=2e-4)
        assert side["loss"] == pytest.approx(float(before[prompt.answer] - after[prompt.answer]), abs=2e-4)


def test_a_model_that_keeps_no_keys_and_values_reads_whole_prompts(running, monkeypatch):
    """Passes behind kept keys and values predict otherwise here: it is noticed, and the numbers are those of whole passes."""
    model = running("llama")
    sets = [measure.MemorySet("screen", 0, 2, np.array([1, 30]))]
    expected = measure.measure_sets(sets, subjects_of(model))

    def nonsense(*given):
        ends, keep = patched_ends(*given), given[5]
        return ends + 1 if keep else ends

    monkeypatch.setattr(subjects, "patched_ends", nonsense)
    found = measure.measure_sets(sets, subjects_of(model))
    for own, other in zip(found, expected, strict=True):
        assert own["patched"] == pytest.approx(other["patched"], abs=1e-4)
    monkeypatch.setattr(subjects, "patched_ends", lambda *given: patched_ends(*given) + 1)
    with pytest.raises(UserError, match="cannot be changed while it runs"):
        measure.measure_sets(sets, subjects_of(model))


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_contrasts_are_differences_of_contributions(kind, running):
    """s m v of each memory from a tap, clean minus patch: its length with its sign, and m alone."""
    model = running(kind)
    loaded, offset = model.loaded, model.loaded.anatomy.layer_offset
    (m, s), (patch_m, patch_s) = (
        states_of(loaded, [getattr(each, name) for each in PROMPTS]) for name in ("clean", "patch")
    )
    found = read_states(loaded, model.head, PROMPTS, np.zeros(offset[-1], np.float32), "patch", 64, {})
    assert np.allclose(found.coefficient, torch.cat(m, 1) - torch.cat(patch_m, 1), atol=1e-5)
    norms = np.concatenate([norms_of(loaded, layer) for layer in range(len(offset) - 1)])
    differences = torch.cat([s[n] * m[n] - patch_s[n] * patch_m[n] for n in range(len(m))], 1)
    assert np.allclose(found.contribution, differences.numpy() * norms, atol=1e-4)
    for number, prompt in enumerate(PROMPTS):
        assert found.difference[number] == pytest.approx(difference(loaded, prompt, {}), abs=1e-4)
        other = prompt._replace(clean=prompt.patch)
        assert found.patch_difference[number] == pytest.approx(difference(loaded, other, {}), abs=1e-4)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_screen_is_a_small_patch(kind, running):
    """A patch by 1 % changes the logit difference by 1 % of the screen, up to what is not linear: 5 % of the largest."""
    model = running(kind)
    loaded, offset = model.loaded, model.loaded.anatomy.layer_offset
    mean = np.zeros(offset[-1], np.float32)
    states = read_states(loaded, model.head, PROMPTS, mean, "zero", 64, {})
    largest = np.abs(states.screen).max()
    layers = loaded.anatomy.layers
    for layer, memory in chosen_memories(loaded):
        place = offset[layer] + memory
        for number, prompt in enumerate(PROMPTS):
            v = values_in_place(loaded.model, layers[layer])[0][memory]
            m, s = states_of(loaded, [prompt.clean])
            assert states.change[number, place] == pytest.approx(float(s[layer] * m[layer][0, memory].abs()), rel=1e-3)
            change = -0.01 * float(s[layer] * m[layer][0, memory]) * v
            fall = 100 * (difference(loaded, prompt, {}) - changed_difference(loaded, prompt, layers[layer], change))
            assert fall == pytest.approx(float(states.screen[number, place]), abs=0.05 * float(largest))


def test_the_screen_is_the_edge_attribution_patching_of_circuitkit(running, checkpoints, tmp_path):
    """Its score of a neuron behind the activation is by how much the difference grows. Float32 in another order: 1e-5 of the largest."""
    theirs = ROOT / ".venv-peers/circuitkit"
    if not theirs.is_dir():
        pytest.skip(f"{theirs} does not exist: make peers")
    model, prompts = running("gpt2"), [PROMPTS[0]._replace(patch=np.array([0, 3, 5, 7, 9])), PROMPTS[1]]
    pairs = [
        {"clean": each.clean.tolist(), "patch": each.patch.tolist(), "answer": each.answer, "wrong": each.wrong}
        for each in prompts
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    command = [sys.executable, str(Path(__file__).with_name("screened_by_circuitkit.py")), str(checkpoints("gpt2"))]
    command += [str(tmp_path / "pairs.json"), str(tmp_path / "scores.npy")]
    environment = {**OFFLINE, "PYTHONPATH": str(theirs)}  # it writes a log where it runs
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    mean = np.zeros(model.loaded.anatomy.layer_offset[-1], np.float32)
    own = read_states(model.loaded, model.head, prompts, mean, "patch", 64, {}).screen
    scores = np.load(tmp_path / "scores.npy").reshape(own.shape)
    assert np.abs(own).max() > 1e-3
    np.testing.assert_allclose(-scores, own, rtol=0, atol=1e-5 * np.abs(own).max())


def changed_difference(loaded, prompt: Encoded, layer, change: torch.Tensor) -> float:
    """The logit difference if o of a layer changes at the last token."""

    def add(o: torch.Tensor) -> torch.Tensor:
        states = o.reshape(1, -1, o.shape[-1]).clone()
        states[0, -1] += change
        return states.reshape(o.shape)

    with with_output(loaded.model, layer, add):
        return difference(loaded, prompt, {})


def states_of(loaded, rows) -> tuple[list[torch.Tensor], torch.Tensor]:
    """m [layer][prompt, memory] and s [layer, prompt, 1] at the last token."""
    states = AtTokens(loaded, rows, [1] * len(rows))
    run_states(loaded, states)
    return [m[:, -1] for m in states.m], states.s[:, :, -1]


def norms_of(loaded, layer: int) -> np.ndarray:
    return values_in_place(loaded.model, loaded.anatomy.layers[layer])[0].norm(dim=1).numpy()
