"""Traces against brute force: sums, probabilities, and what the tables say of the model."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import LAYER_KINDS

import ffkv
from ffkv.base.files import tables
from ffkv.branches.refinement.measure import classify
from ffkv.branches.translation.maps import Maps, write_maps
from ffkv.model.anatomy import HeadModule
from ffkv.model.discover.prove import observe
from ffkv.model.head.head import Head, ModuleChain
from ffkv.model.head.head_file import load_head
from ffkv.model.tap.hooks import forward
from ffkv.model.values_file import read_values
from ffkv.run.results import indexes
from ffkv.run.trace.coefficients import head_of, value_logits
from ffkv.run.trace.result import as_text, plain_token
from ffkv.run.trace.trace import LayerParts, _top, logit_changes

# Experts that all see all tokens, experts that pass tokens on, biases of banks, a last block that continues after o.
OTHERS = ("llama4_text", "longcat_flash", "jetmoe", "gemma4_text")
PROMPT = "w5 w6 w7 w8 w9 w10"
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}  # float32, in sums of some dozen terms


def ids_of(trace) -> torch.Tensor:
    return torch.tensor([trace.tokens["token_id"].tolist()])


def own_probabilities(model, ids, position=-1) -> np.ndarray:
    return forward(model, ids).logits[0, position].double().softmax(-1).numpy()


@pytest.mark.parametrize("kind", LAYER_KINDS + OTHERS)
def test_the_parts_add_up(traced, kind):
    run = traced(kind)
    trace = ffkv.trace(run, PROMPT, memories=3, device="cpu")
    assert trace.deviation < 1e-4  # the tolerance of the proof for float32
    assert trace.deviation == max(trace.logits_deviation, trace.sums["memories"].max(), trace.sums["residual"].max())
    for layer in trace.layers.itertuples():
        listed = trace.contributions.query("layer == @layer.layer")
        rest = trace.remainders.query("layer == @layer.layer")
        assert listed["share"].sum() + rest["share"].sum() == pytest.approx(1, abs=1e-4)
        assert len(listed) == layer.listed and 3 <= layer.listed <= 6
        assert rest["memories"].tolist() == [layer.nonzero - layer.listed, 0]


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "gemma2"])
def test_the_parts_add_up_in_low_precision(traced, loaded, kind):
    """With the tolerance of the proof for bfloat16, whose digits end at 2^-8."""
    run = traced(kind, dtype="bfloat16")
    trace = ffkv.trace(run, PROMPT, scale=["L0.2:0.5"], device="cpu")
    assert 1e-4 < trace.deviation < 5e-2 and 1e-4 < trace.changed.deviation < 5e-2
    own = own_probabilities(loaded(run).model, ids_of(trace))
    np.testing.assert_allclose(trace.final["probability"], own[trace.final["token_id"].tolist()], rtol=0.1, atol=0.02)
    assert trace.effect["after"].between(0, 1).all() and trace.divergence >= 0


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_all_contributions_are_those_of_the_stored_values(traced, loaded, kind):
    """With all memories listed, coefficients times the values of values.h5 make the FF output that a tap reads."""
    run = traced(kind)
    position = 3
    trace = ffkv.trace(run, PROMPT, position=position, memories=1000, device="cpu")
    states = observe(loaded(run).model, run.anatomy.layers, ids_of(trace))
    assert (trace.remainders.query("part == 'other memories'")["memories"] == 0).all()
    for layer in run.anatomy.layers:
        v = read_values(run.folder / "values.h5").of_layer(layer.index).value
        listed = trace.contributions.query("layer == @layer.index")
        factor = states[layer.index].get("s", torch.ones(1, len(trace.tokens), 1))[0, position].item()
        assert trace.layers["factor"][layer.index] == pytest.approx(factor, rel=1e-5)
        m = np.zeros(layer.memories, np.float32)
        m[listed["memory"]] = listed["coefficient"]
        np.testing.assert_allclose(m, states[layer.index]["m"][0, position], **ROUNDING)
        sizes = factor * np.abs(m) * np.linalg.norm(v, axis=1)
        np.testing.assert_allclose(listed["size"], sizes[listed["memory"]], **ROUNDING)
        assert listed["size"].is_monotonic_decreasing
        y = states[layer.index]["y"][0, position].numpy()
        shares = factor * (m[:, None] * v) @ y / (y @ y)
        np.testing.assert_allclose(listed["share"], shares[listed["memory"]], rtol=1e-3, atol=1e-4)
        assert trace.layers["listed_share"][layer.index] == pytest.approx(1)
        assert trace.layers["active"][layer.index] == (m > 0).sum()


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_predictions_are_those_of_the_head_and_the_final_one_is_the_models_own(traced, loaded, kind):
    run = traced(kind)
    trace = ffkv.trace(run, PROMPT, position=4, top=5, device="cpu")
    head = load_head(run.folder / "model", "cpu")
    states = observe(loaded(run).model, run.anatomy.layers, ids_of(trace))
    tops = {}
    for layer, state in enumerate(states):
        vectors = {"residual": state["o"] - state["y"], "ffn": state["y"], "output": state["o"]}
        for point, vector in vectors.items():
            p = head.logits(vector[0], layer).double().softmax(-1)
            found = trace.predictions.query("layer == @layer and point == @point")
            assert found[["position", "rank"]].to_numpy().tolist() == [[t, r] for t in range(len(p)) for r in range(5)]
            np.testing.assert_allclose(found["probability"].to_numpy().reshape(-1, 5), p.topk(5).values, **ROUNDING)
            np.testing.assert_allclose(
                p.gather(1, torch.tensor(found["token_id"].to_numpy().reshape(-1, 5))), p.topk(5).values, **ROUNDING
            )
            tops[layer, point] = found.query("position == 4 and rank == 0")["token_id"].to_numpy()
        case = classify(*(tops[layer, point] for point in ("residual", "ffn", "output")))
        assert trace.layers["case"][layer] == case[0]
        lengths = [vector[0, 4].norm().item() for vector in vectors.values()]
        found = trace.layers.loc[layer, ["norm_residual", "norm_ffn", "norm_output"]].tolist()
        np.testing.assert_allclose(found, lengths, rtol=1e-5)
    own = own_probabilities(loaded(run).model, ids_of(trace), 4)
    np.testing.assert_allclose(trace.final["probability"], own[trace.final["token_id"]], **ROUNDING)
    assert trace.final["rank"].tolist() == [0, 1, 2, 3, 4]
    assert (trace.token_id, trace.token) == (own.argmax(), run.vocabulary[own.argmax()])


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_the_logit_of_a_contribution_is_what_the_head_loses_without_it(traced, loaded, kind):
    run = traced(kind)
    token = 7
    trace = ffkv.trace(run, PROMPT, token_id=token, memories=2, device="cpu")
    head, last = load_head(run.folder / "model", "cpu"), run.anatomy.layers[-1]
    end = observe(loaded(run).model, run.anatomy.layers, ids_of(trace))[-1]["o"][0, -1]
    assert not last.readout_block
    values = read_values(run.folder / "values.h5")
    whole = head.logits(end[None], last.index)[0, token]
    for row in trace.contributions.itertuples():
        v = torch.from_numpy(values.of_layer(row.layer).value[row.memory])
        without = end - trace.layers["factor"][row.layer] * row.coefficient * v
        expected = whole - head.logits(without[None], last.index)[0, token]
        assert row.logit == pytest.approx(expected.item(), rel=1e-3, abs=1e-4)
        stored = indexes.values_by_memory(run.files).query("layer == @row.layer and memory == @row.memory").iloc[0]
        end_of = {1: "top_token", -1: "bottom_token"}[np.sign(row.coefficient)]
        assert row.pushes == run.vocabulary[stored[end_of]]
        if row.coefficient > 0:
            assert row.top_probability == pytest.approx(stored["top_probability"])
        else:
            assert np.isnan(row.top_probability)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_memory_pushes_towards_the_token_whose_logit_its_contribution_raises_most(traced, kind):
    """The whole table, from values alone: the highest logit of m v, as the head without a bias reads it. 0 pushes nothing."""
    run = traced(kind)
    trace = ffkv.trace(run, PROMPT, memories=8, off="L0.3", device="cpu")
    head = head_of(run, "cpu")
    for shown in (trace, trace.changed):
        for row in shown.contributions.itertuples():
            ((_, _, logits),) = value_logits(run, head, row.layer, [row.memory])
            logits = logits[0] * row.coefficient
            expected = run.vocabulary[logits.argmax()] if row.coefficient else ""
            assert row.pushes == expected, row
    assert (trace.contributions["coefficient"] < 0).any() and (trace.contributions["coefficient"] > 0).any()
    off = trace.changed.contributions.query("name == 'L0.3'").iloc[0]
    assert off["coefficient"] == 0 and off["pushes"] == "" and np.isnan(off["top_probability"])
    for shown, text in ((trace.changed, as_text(trace, layers=True)), (trace, as_text(trace, True, True))):
        lines = {line.split()[1]: line for line in text.splitlines() if line.split()[1:2]}
        for row in shown.contributions.itertuples():
            assert not row.pushes or lines[row.name].endswith(plain_token(row.pushes))
    assert "pushes towards" in trace._repr_html_() and "promotes" not in trace._repr_html_()


def test_with_a_linear_head_the_logit_of_a_contribution_is_its_product_with_the_tokens_embedding():
    """m_i (e_w · v_i), and the logits of the parts add up to that of the FF output."""
    generator = torch.Generator().manual_seed(0)
    embedding, end, vectors = (torch.randn(*shape, generator=generator) for shape in ((11, 4), (4,), (5, 4)))
    only = SimpleNamespace(vocabulary=11, layers=[None], read_as=None)
    head = Head(ModuleChain([HeadModule("lm", "Linear", 0.0)], {"lm.weight": embedding}), only, "cpu")
    nothing = torch.zeros(0)
    parts = [LayerParts(nothing, nothing, nothing, vectors, 0, 0.0, 0.0)]
    (changes,) = logit_changes(SimpleNamespace(head=head, anatomy=SimpleNamespace(read_as=None)), end, parts, 3)
    np.testing.assert_allclose(changes, vectors @ embedding[3], rtol=1e-4, atol=1e-5)


def test_the_listed_memories_are_those_of_largest_size_and_of_largest_effect(traced):
    run = traced("gpt2")
    everything = ffkv.trace(run, PROMPT, memories=1000, device="cpu").contributions
    trace = ffkv.trace(run, PROMPT, memories=2, device="cpu")
    for number in range(3):
        listed, own = (table[table["layer"] == number] for table in (trace.contributions, everything))
        largest = set(own.nlargest(2, "size")["name"])
        assert largest <= set(listed["name"]) and len(listed) <= 4
        # What is listed beside them moves the logit more than memories that are not listed do.
        extra = listed[~listed["name"].isin(largest)]["logit"].abs()
        left = own[~own["name"].isin(listed["name"])]["logit"].abs()
        assert extra.empty or extra.max() >= left.median()


@pytest.mark.parametrize(
    ("logits", "ids"),
    [
        ([0.0, 2.0, 1.0, 2.0], {0: [1], 1: [3], 2: [2]}),
        ([5.0] * 300, {0: [0], 1: range(1, 300), 2: range(1, 300)}),
        ([0.0] * 200 + [1.0] * 5, {0: [200], 1: range(201, 205), 2: range(201, 205)}),
    ],
)
def test_of_equal_logits_the_lowest_id_is_the_prediction_and_no_token_comes_twice(logits, ids):
    (found,), (probability,) = _top(torch.tensor([logits]), 3)
    assert len(set(found)) == 3
    assert all(found[rank] in allowed for rank, allowed in ids.items())
    np.testing.assert_allclose(probability, np.exp(logits)[found] / np.exp(logits).sum(), rtol=1e-5)


def test_edges_connect_the_strongest_memories_and_their_parts_add_up(traced):
    """float32: relative to the largest part."""
    run = traced("llama")
    trace = ffkv.trace(run, PROMPT, edges=12, device="cpu")
    listed = {*trace.strongest(12)["name"]}
    assert {*trace.edges["source"], *trace.edges["target"]} <= listed == {*trace.parts["target"]}
    assert len(trace.edges)
    assert all(row.source.startswith("L0.") and row.target.startswith("L1.") for row in trace.edges.itertuples())
    assert trace.parts["deviation"].max() < 1e-5
    assert trace.edge_notes == ""
    row = trace.edges.loc[trace.edges["total_m"].abs().idxmax()]
    off = ffkv.trace(run, PROMPT, off=row["source"], memories=1000, device="cpu")
    before, after = (each.contributions.set_index("name")["coefficient"] for each in (off, off.changed))
    assert row["total_m"] == pytest.approx(before[row["target"]] - after[row["target"]], abs=1e-5)
    assert off.edges is None
    assert ffkv.trace(run, PROMPT, off=row["source"], edges=12, device="cpu").changed.edges is None
    text = as_text(trace)
    assert "Strongest edges" in text
    assert f"relative deviation of {trace.parts['deviation'].max():.1e}." in text


@pytest.mark.parametrize("kind", ["gpt2", "opt-post-norm"])
def test_translated_predictions_are_those_of_the_head_behind_the_maps(traced, loaded, tmp_path, kind):
    """By hand, of random maps in one file per group: states with the offset, changes of them without it."""
    run = traced(kind)
    folder, width, layers = tmp_path / "run", run.anatomy.width, len(run.anatomy.layers)
    shutil.copytree(run.folder, folder)
    parts = {"values": run.settings.values.model_copy(update={"readout": "both"}), "layer_groups": layers}
    (folder / "settings.json").write_text(run.settings.model_copy(update=parts).model_dump_json())
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(layers, 2, width, width)).astype(np.float32)
    offset = generator.normal(size=(layers, 2, width)).astype(np.float32)
    by_memory = tables.read(folder / "values/by_memory/0.parquet")
    for layer in range(layers):
        at = slice(layer, layer + 1)
        maps = Maps(
            layer=np.array([layer], np.int32), weight=weight[at], offset=offset[at], attributes=run.anatomy.identity
        )
        write_maps(folder / f"translation/maps/{layer}.h5", maps)
        own = by_memory[by_memory["layer"] == layer].assign(
            reading="translated", top_token=7, bottom_token=8, head_top_token=0, head_agrees=False
        )
        tables.write(own, folder / f"translation/by_memory/{layer}.parquet")
    by_head = ffkv.trace(run, PROMPT, top=5, device="cpu")
    trace = ffkv.trace(ffkv.open(folder).translated, PROMPT, top=5, device="cpu")
    assert (trace.reading, by_head.reading) == ("translated", "head") and "translated" in repr(trace)
    assert ", translated; logit" in as_text(trace, layers=True) and "translated" not in as_text(by_head)
    head = load_head(folder / "model", "cpu")
    for layer, state in enumerate(observe(loaded(run).model, run.anatomy.layers, ids_of(trace))):
        w, b = (torch.from_numpy(array[layer, 0]) for array in (weight, offset))
        vectors = {
            "residual": (state["o"] - state["y"])[0] @ w + b,
            "ffn": state["y"][0] @ w,
            "output": state["o"][0] @ w + b,
        }
        for point, vector in vectors.items():
            p = head.logits(vector, run.anatomy.read_as).double().softmax(-1)
            found = trace.predictions.query(f"layer == {layer} and point == '{point}'")
            ids = torch.tensor(found["token_id"].to_numpy().reshape(-1, 5))
            np.testing.assert_allclose(p.gather(1, ids), p.topk(5).values, **ROUNDING)
            np.testing.assert_allclose(found["probability"].to_numpy().reshape(-1, 5), p.topk(5).values, **ROUNDING)
    pushes = np.where(trace.contributions["coefficient"] > 0, *(run.vocabulary[token] for token in (7, 8)))
    assert trace.contributions["pushes"].tolist() == pushes.tolist()
    same = ["layer", "memory", "coefficient", "size", "share", "logit"]  # these are of the model itself
    np.testing.assert_array_equal(trace.contributions[same], by_head.contributions[same])
    np.testing.assert_array_equal(trace.final["probability"], by_head.final["probability"])
