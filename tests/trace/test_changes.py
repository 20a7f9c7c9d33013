"""Memories switched off or scaled, against models whose weights were changed and against hooks written by hand."""

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch
from support import LAYER_KINDS, prove_into, random_checkpoint

import ffkv
from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import load
from ffkv.model.discover.prove import observe
from ffkv.model.experts.layouts import layout_of
from ffkv.model.placement import spread
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from ffkv.run.trace import text
from ffkv.run.trace.coefficients import coefficients
from ffkv.run.trace.prompt import read_changes

# Experts that all see all tokens, experts that pass tokens on, biases of banks, a last block that continues after o.
OTHERS = ("llama4_text", "longcat_flash", "jetmoe", "gemma4_text")
PROMPT = "w5 w6 w7 w8 w9 w10"
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}  # float32: a product with a zero column adds in the same order but for zeros


@contextlib.contextmanager
def weights_scaled(model, layer: Layer, memory: int, factor: float):
    """Inside, the values of one memory are multiplied in the weights of the model."""
    for matrix in layer.second_matrices:
        if memory < matrix.memories:
            break
        memory -= matrix.memories
    module = model.get_submodule(matrix.module)
    if matrix.experts:
        units = matrix.memories // matrix.experts
        v = layout_of(module).values(memory // units)[memory % units]
    elif type(module).__name__ == "Conv1D":
        v = module.weight[memory]
    else:
        v = module.weight[:, memory]
    original = v.detach().clone()
    with torch.no_grad():
        v.copy_(factor * original)
    try:
        yield
    finally:
        with torch.no_grad():
            v.copy_(original)


def chosen_memories(run, trace) -> list[tuple[int, int]]:
    """The memory with the largest contribution in each layer."""
    return [(row.layer, row.memory) for row in trace.contributions.groupby("layer").head(1).itertuples()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "factor"),
    [(kind, 0.0) for kind in LAYER_KINDS + OTHERS] + [(kind, 2.5) for kind in ("gpt2", "mixtral", "gemma2")],
)
def test_a_memory_that_is_changed_everywhere_is_the_model_with_its_value_changed(traced, loaded, kind, factor):
    run = traced(kind)
    plain = ffkv.trace(run, PROMPT, device="cpu")
    model, ids = loaded(run).model, torch.tensor([plain.tokens["token_id"].tolist()])
    vocabulary = run.anatomy.vocabulary
    for layer, memory in chosen_memories(run, plain):
        name = f"L{layer}.{memory}"
        changed = {"off": [name]} if factor == 0 else {"scale": {name: factor}}
        trace = ffkv.trace(run, PROMPT, everywhere=True, top=vocabulary, device="cpu", **changed)
        before = forward(model, ids).logits[0, -1].double().log_softmax(-1)
        with weights_scaled(model, run.anatomy.layers[layer], memory, factor):
            after = forward(model, ids).logits[0, -1].double().log_softmax(-1)
        order = trace.effect["token_id"].to_numpy().copy()
        assert sorted(order) == list(range(vocabulary))
        np.testing.assert_allclose(trace.effect["before"], before.exp()[order], **ROUNDING)
        np.testing.assert_allclose(trace.effect["after"], after.exp()[order], **ROUNDING)
        np.testing.assert_allclose(trace.effect["change"], (after - before)[order], rtol=1e-3, atol=1e-4)
        divergence = (before.exp() * (before - after)).sum().item()
        assert trace.divergence == pytest.approx(divergence, rel=1e-3, abs=1e-6)
        assert divergence > 1e-8  # the change is one
        assert trace.changes == {name: factor} and trace.everywhere


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt-neox", "gemma2", "fairseq"])
@pytest.mark.parametrize("position", [3, -1])
def test_a_change_at_one_token_is_what_a_hook_written_by_hand_does(traced, loaded, kind, position):
    run = traced(kind)
    trace = ffkv.trace(run, PROMPT, scale=["L1.3:-2", "L0.5:0.5"], position=position, device="cpu")
    model, ids = loaded(run).model, torch.tensor([trace.tokens["token_id"].tolist()])

    def by_hand(memory, factor):
        def hook(module, args):
            state = args[0].clone()
            state.reshape(-1, state.shape[-1])[trace.position, memory] *= factor
            return (state,)

        return hook

    modules = [model.get_submodule(layer.second_matrices[0].module) for layer in run.anatomy.layers]
    handles = [modules[1].register_forward_pre_hook(by_hand(3, -2))]
    handles.append(modules[0].register_forward_pre_hook(by_hand(5, 0.5)))
    after = forward(model, ids).logits[0, trace.position].double().softmax(-1)
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(trace.effect["after"], after[trace.effect["token_id"].tolist()], **ROUNDING)
    assert not trace.everywhere


def test_a_memory_of_an_expert_changes_at_one_token_only(traced, loaded):
    run = traced("mixtral")
    model, layers = loaded(run).model, run.anatomy.layers
    ids = torch.tensor([[0, 5, 6, 7, 8, 9]])
    plain = observe(model, layers, ids, "m")[0]["m"]
    memory = int(plain[0, 4].abs().argmax())
    with scaled(model, layers, {(0, memory): 3.0}, 4):
        changed = observe(model, layers, ids, "m")[0]["m"]
    expected = plain.clone()
    expected[0, 4, memory] *= 3
    torch.testing.assert_close(changed, expected, rtol=0, atol=0)
    torch.testing.assert_close(observe(model, layers, ids, "m")[0]["m"], plain, rtol=0, atol=0)


def test_a_layer_of_a_block_that_runs_several_times_changes_in_its_own_repeat(tmp_path):
    """HRM runs its blocks again and again: one bank of values, a layer per repeat."""
    model_folder = prove_into(tmp_path / "stage", random_checkpoint(tmp_path / "checkpoint", "hrm_text"))
    loaded = load(model_folder, "cpu")
    layers, ids = loaded.anatomy.layers, torch.tensor([[0, 5, 6, 7]])
    repeated = next(layer for layer in layers if layer.repeat == 1)
    plain = observe(loaded.model, layers, ids, "m")
    with scaled(loaded.model, layers, {(repeated.index, 2): 0.0}):
        changed = observe(loaded.model, layers, ids, "m")
    for layer in layers[: repeated.index]:
        torch.testing.assert_close(changed[layer.index]["m"], plain[layer.index]["m"], rtol=0, atol=0)
    assert (changed[repeated.index]["m"][..., 2] == 0).all() and plain[repeated.index]["m"][..., 2].any()


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "gemma2"])
def test_a_factor_of_one_changes_no_byte(traced, kind):
    run = traced(kind)
    trace = ffkv.trace(run, PROMPT, scale={"L0.1": 1, "L1.2": 1.0}, everywhere=True, device="cpu")
    assert trace.effect["after"].tolist() == trace.effect["before"].tolist()
    assert trace.divergence == 0 and (trace.effect["change"] == 0).all()


def test_the_tables_are_those_of_the_unchanged_model(traced):
    run = traced("gpt2")
    memory = ffkv.trace(run, PROMPT, device="cpu").contributions["name"][0]
    plain, changed = ffkv.trace(run, PROMPT, device="cpu"), ffkv.trace(run, PROMPT, off=[memory], device="cpu")
    assert plain.effect is None and plain.divergence is None and plain.changes == {}
    for name in ("predictions", "final", "layers", "contributions", "remainders", "sums"):
        assert getattr(plain, name).equals(getattr(changed, name))


@pytest.mark.parametrize(
    ("off", "scale", "message"),
    [
        (["L9.0"], [], "There is no layer 9"),
        (["L0.999"], [], "There is no memory 999 in layer 0"),
        (["zero"], [], "'zero' is not a memory"),
        (["L0.1"], ["L0.1:2"], r"L0\.1 is changed twice"),
        (["L0.1", "0/1"], [], r"L0\.1 is changed twice"),
        ([], ["L0.1"], "'L0.1' is not a memory with a factor"),
        ([], ["L0.1:"], "'L0.1:' is not a memory with a factor"),
        ([], ["L0.1:two"], "'L0.1:two' is not a memory with a factor"),
        ([], ["L0.1:nan"], r"The factor of L0\.1 is nan"),
        ([], ["L0.1:inf"], r"The factor of L0\.1 is inf"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(traced, off, scale, message):
    with pytest.raises(UserError, match=message):
        read_changes(off, scale, traced("gpt2").files)


def test_memories_may_be_written_in_every_way_that_names_one(traced):
    files = traced("gpt2").files
    assert read_changes(["L0D1", "0/2"], ["1.3:-1.5"], files) == {(0, 1): 0.0, (0, 2): 0.0, (1, 3): -1.5}


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_a_changed_memory_is_listed_whatever_it_contributes(traced, kind):
    """Of an expert that the token is not sent to, too: its coefficient of 0 says why nothing changes."""
    run = traced(kind)
    m = ffkv.trace(run, PROMPT, memories=1000, device="cpu").contributions.query("layer == 1").set_index("memory")
    silent = sorted(set(range(run.anatomy.layers[1].memories)) - set(m.index))
    memory = silent[0] if silent else m.index[-1]  # the smallest contribution
    trace = ffkv.trace(run, PROMPT, off=[f"L1.{memory}"], memories=1, device="cpu")
    (row,) = trace.contributions[trace.contributions["name"] == f"L1.{memory}"].itertuples()
    assert (row.coefficient == 0) == bool(silent) == (trace.divergence == 0)
    left = trace.remainders.query("layer == 1 and part == 'other memories'")["memories"].item()
    assert left == trace.layers["nonzero"][1] - trace.layers["listed"][1] + bool(silent)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "gemma2"])
def test_a_trace_of_a_spread_model_is_that_of_the_model_in_memory(traced, monkeypatch, kind):
    """Its blocks are on the disk, and come for each pass, each replay and each reading of values."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(spread, "free_memory", lambda: 1.0)
    run = ffkv.open(traced(kind).folder)
    changes = {"off": ["L0.3"], "scale": {"L1.2": 2}, "everywhere": True}
    trace, expected = (
        ffkv.trace(run, PROMPT, device="auto", **changes),
        ffkv.trace(traced(kind), PROMPT, device="cpu", **changes),
    )
    assert any(parameter.is_meta for parameter in run.model("auto").model.parameters())
    for name in ("predictions", "contributions", "remainders", "effect"):
        pd.testing.assert_frame_equal(getattr(trace, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
    assert trace.deviation < 1e-4
    spread_m = coefficients(run, [0, 3], "L1.2").loc[1]
    np.testing.assert_allclose(spread_m, coefficients(traced(kind), [3], "L1.2", "cpu"), rtol=1e-4, atol=1e-6)


def test_a_factor_that_changes_nothing_is_said(traced):
    """With ReLU about half of the coefficients are 0: exactly these are named. If all changed ones are among them, nothing changes."""
    run = traced("gpt2-relu")
    every = [f"L0.{memory}" for memory in range(run.anatomy.layers[0].memories)]
    changed = ffkv.trace(run, PROMPT, off=every)
    coefficients = changed.contributions.set_index("name")["coefficient"][every]
    silent = [name for name in every if coefficients[name] == 0]
    assert 0 < len(silent) < len(every)
    assert changed.without_effect.startswith("The coefficient of L0.")
    assert all((f" {name}," in f"{changed.without_effect} ".replace(" is", ",")) == (name in silent) for name in every)
    assert "is 0 at position" in text.as_text(ffkv.trace(run, PROMPT, off=silent[:1]))
    assert (ffkv.trace(run, PROMPT, off=silent).effect["change"] == 0).all()
    assert ffkv.trace(run, PROMPT, off=[name for name in every if name not in silent]).without_effect == ""
