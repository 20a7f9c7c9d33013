"""Memories switched off or scaled, against models whose weights were changed and against hooks written by hand."""

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch
from support import LAYER_KINDS, prove_into, random_checkpoint

import ffkv
from ffkv.base.errors import UserError
from ffkv.model import placement
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import load
from ffkv.model.discover.prove import observe
from ffkv.model.experts import layout_of
from ffkv.model.head.head_file import load_head
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from ffkv.run.trace import result
from ffkv.run.trace.coefficients import coefficients
from ffkv.run.trace.prompt import read_changes
from ffkv.run.trace.states import residual_deviations, run_prompt

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


def expect_states(run, trace, states, factors=None) -> None:
    """The tables of a trace are those of `states`, which a tap read. `trace`: with all memories listed.

    factors: of memories whose coefficient in `states` is the one before the factor.
    """
    head, at = load_head(run.folder / "model", "cpu"), trace.position
    for layer, state in enumerate(states):
        m = state["m"][0, at].clone()
        for (number, memory), factor in (factors or {}).items():
            if number == layer:
                m[memory] *= factor
        own = trace.contributions.query("layer == @layer")
        found = torch.zeros_like(m)
        found[own["memory"].tolist()] = torch.tensor(own["coefficient"].to_numpy(np.float32))
        np.testing.assert_allclose(found, m, **ROUNDING)
        vectors = {"residual": state["o"] - state["y"], "ffn": state["y"], "output": state["o"]}
        for point, vector in vectors.items():
            assert trace.layers[f"norm_{point}"][layer] == pytest.approx(vector[0, at].norm().item(), rel=1e-4)
            p = head.logits(vector[0], layer).double().softmax(-1).max(-1).values
            top = trace.predictions.query("layer == @layer and point == @point and rank == 0")
            np.testing.assert_allclose(top["probability"], p, **ROUNDING)
    assert trace.deviation < 1e-4  # the tolerance of the proof for float32


@pytest.mark.parametrize("kind", LAYER_KINDS + OTHERS)
def test_the_states_after_a_change_are_those_of_the_model_with_its_values_changed(traced, loaded, kind):
    """A memory of each layer at once: the states of a later layer depend on the changes in the earlier ones."""
    run = traced(kind)
    plain = ffkv.trace(run, PROMPT, device="cpu")
    places = chosen_memories(run, plain)
    names = [f"L{layer}.{memory}" for layer, memory in places]
    trace = ffkv.trace(run, PROMPT, off=names, everywhere=True, memories=1000, device="cpu")
    model, ids = loaded(run).model, torch.tensor([plain.tokens["token_id"].tolist()])
    with contextlib.ExitStack() as stack:
        for layer, memory in places:
            stack.enter_context(weights_scaled(model, run.anatomy.layers[layer], memory, 0.0))
        states = observe(model, run.anatomy.layers, ids)
        logits = forward(model, ids).logits[0, -1].double()
    expect_states(run, trace.changed, states, dict.fromkeys(places, 0.0))
    after = logits.softmax(-1)[trace.changed.final["token_id"].tolist()]
    np.testing.assert_allclose(trace.changed.final["probability"], after, **ROUNDING)
    assert (trace.changed.changes, trace.changed.changed, trace.changed.effect) == (trace.changes, None, None)
    assert (trace.changed.token_id, trace.changed.position) == (trace.token_id, trace.position)
    assert (trace.layers["norm_output"] != trace.changed.layers["norm_output"]).all()


def chosen_memories(run, trace) -> list[tuple[int, int]]:
    """The memory with the largest contribution in each layer."""
    return [(row.layer, row.memory) for row in trace.contributions.groupby("layer").head(1).itertuples()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "factor"), [("llama", 0.0), ("gpt2", 2.5), ("mixtral", 2.5), ("gemma2", 2.5)])
def test_a_memory_that_is_changed_everywhere_is_the_model_with_its_value_changed(traced, loaded, kind, factor):
    """One after the other. The test above has every kind of layer."""
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
    changes = ["L1.3:-2", "L0.5:0.5"]
    trace = ffkv.trace(run, PROMPT, scale=changes, position=position, memories=1000, device="cpu")
    model, ids = loaded(run).model, torch.tensor([trace.tokens["token_id"].tolist()])

    def by_hand(memory, factor):
        def hook(module, args):
            state = args[0].clone()
            if len(rows := state.reshape(-1, state.shape[-1])) > 1:  # else a tap asks for the bias
                rows[trace.position, memory] *= factor
            return (state,)

        return hook

    modules = [model.get_submodule(layer.second_matrices[0].module) for layer in run.anatomy.layers]
    handles = [modules[1].register_forward_pre_hook(by_hand(3, -2))]
    handles.append(modules[0].register_forward_pre_hook(by_hand(5, 0.5)))
    after = forward(model, ids).logits[0, trace.position].double().softmax(-1)
    states = observe(model, run.anatomy.layers, ids)
    for handle in handles:
        handle.remove()
    expect_states(run, trace.changed, states)
    np.testing.assert_allclose(trace.effect["after"], after[trace.effect["token_id"].tolist()], **ROUNDING)
    assert not trace.everywhere


@pytest.mark.parametrize("kind", ["mixtral", "gpt-oss", "qwen2-moe"])
def test_an_expert_loses_a_memory_at_one_token_as_its_output_loses_the_contribution(traced, loaded, kind):
    run = traced(kind)
    model, layers = loaded(run).model, run.anatomy.layers
    ids = torch.tensor([ffkv.trace(run, PROMPT, device="cpu").tokens["token_id"].tolist()])
    matrix = next(each for each in layers[0].second_matrices if each.experts)
    first = sum(each.memories for each in layers[0].second_matrices[: layers[0].second_matrices.index(matrix)])
    m = observe(model, layers, ids, "m")[0]["m"][0, 3, first : first + matrix.memories]
    memory, units = int(m.abs().argmax()), matrix.memories // matrix.experts
    bank = model.get_submodule(matrix.module)
    v = layout_of(bank).values(memory // units)[memory % units].detach()

    def without(module, args, output):
        rows = output.clone()
        rows.view(-1, rows.shape[-1])[3] -= m[memory] * v
        return rows

    handle = bank.register_forward_hook(without)
    y, o = (observe(model, layers, ids, quantity) for quantity in "yo")
    handle.remove()
    changed = ffkv.trace(run, PROMPT, off=[f"L0.{first + memory}"], position=3, device="cpu").changed
    for layer in range(1, len(layers)):  # what comes after the change; no tap looks into the bank whose output changes
        found = changed.layers.loc[layer, ["norm_ffn", "norm_output"]].tolist()
        expected = [y[layer]["y"][0, 3].norm().item(), o[layer]["o"][0, 3].norm().item()]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert changed.layers["norm_output"][0] == pytest.approx(o[0]["o"][0, 3].norm().item(), rel=1e-4)
    assert changed.deviation < 1e-4


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
    states = run_prompt(loaded, ids, 3, {(repeated.index, 2): 0.0})
    for layer in layers:
        torch.testing.assert_close(states.m[layer.index], changed[layer.index]["m"][0, 3], rtol=0, atol=0)
    assert max(residual_deviations(loaded, states)) < 1e-4


def test_a_factor_under_which_states_overflow_is_refused(traced):
    with pytest.raises(UserError, match=r"not finite on this text with these changes.*Write smaller factors"):
        ffkv.trace(traced("gpt2"), PROMPT, scale={"L0.1": 1e39}, device="cpu")


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
    assert plain.effect is None and plain.divergence is None and plain.changed is None and plain.changes == {}
    assert [each.when for each in (plain, changed, changed.changed)] == ["", "before the changes", "after the changes"]
    for each in (changed, changed.changed):
        assert f"Layers, {each.when}" in each._repr_html_() and each.when in repr(each)
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
    monkeypatch.setattr(placement, "free_memory", lambda: 1.0)
    run = ffkv.open(traced(kind).folder)
    changes = {"off": ["L0.3"], "scale": {"L1.2": 2}, "everywhere": True}
    trace, expected = (
        ffkv.trace(run, PROMPT, device="auto", **changes),
        ffkv.trace(traced(kind), PROMPT, device="cpu", **changes),
    )
    assert any(parameter.is_meta for parameter in run.model("auto").model.parameters())
    pd.testing.assert_frame_equal(trace.effect, expected.effect, rtol=1e-5, atol=1e-6)
    for one, other in ((trace, expected), (trace.changed, expected.changed)):
        for name in ("predictions", "contributions", "remainders"):
            pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-6)
        assert one.deviation < 1e-4
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
    assert "is 0 at position" in result.as_text(ffkv.trace(run, PROMPT, off=silent[:1]))
    assert (ffkv.trace(run, PROMPT, off=silent).effect["change"] == 0).all()
    assert changed.changed.without_effect == ""  # there all coefficients that were switched off are 0
    assert ffkv.trace(run, PROMPT, off=[name for name in every if name not in silent]).without_effect == ""
