"""Edges between memories: chains planted by hand, and every kind of layer against hooks written by hand."""

import contextlib
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
import torch
from support import LAYER_KINDS, WORDS
from torch.utils.flop_counter import FlopCounterMode

from ffkv.base.errors import UserError
from ffkv.model.effects.edges import edges
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from ffkv.model.tap.tap import tap

IDS = torch.tensor([[0, 5, 7, 9, 3, 8]])
TOKENS = IDS.shape[1]
# The norm in front of each layer, and what memories read, by hand. float32: its norms compute in float32 whatever the model does.
BLOCKS = {
    "gpt2": ("transformer.h", "ln_2"),
    "llama": ("model.layers", "post_attention_layernorm"),
    "gpt-neox": ("gpt_neox.layers", "post_attention_layernorm"),  # parallel
    "gemma2": ("model.layers", "pre_feedforward_layernorm"),  # with a norm after the layer
    "gemma4_text": ("model.layers", "pre_feedforward_layernorm"),  # goes on behind o
    "granite": ("model.layers", "post_attention_layernorm"),  # scales what it adds to the residual
    "opt": ("model.decoder.layers", "final_layer_norm"),
    "mixtral": ("model.layers", "post_attention_layernorm"),
    "qwen2-moe": ("model.layers", "post_attention_layernorm"),  # shared expert and a bank
}
IN_FLOAT32 = ("llama", "gemma2", "gemma4_text", "granite", "mixtral", "qwen2-moe")


def places(*rows: tuple[int, int, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["layer", "memory", "position"])


def some_places(loaded, layers: range, count: int = 5) -> pd.DataFrame:
    """Memories that are not 0 at random tokens of each of some layers."""
    random, states, rows = np.random.default_rng(0), {}, []
    with tap(loaded.model, loaded.anatomy.layers, "m") as run:
        run(IDS, lambda layer, quantity, m: states.update({layer.index: m[0].clone()}))
    for layer in layers:
        found = states[layer].nonzero().numpy()
        rows += [(layer, *found[place][::-1]) for place in random.integers(0, len(found), count)]
    return places(*rows)


def read_by_hand(kind: str, layer, memory: int) -> dict[str, torch.Tensor]:
    """What a memory reads, from the weights of the model's own block."""
    match kind:
        case "gpt2":
            return {"key": layer.mlp.c_fc.weight[:, memory]}
        case "gpt-neox":
            return {"key": layer.mlp.dense_h_to_4h.weight[memory]}
        case "opt":
            return {"key": layer.fc1.weight[memory]}
        case "mixtral" | "qwen2-moe":
            shared = 0 if kind == "mixtral" else layer.mlp.shared_expert.down_proj.in_features
            if memory < shared:
                layer = type("Dense", (), {"mlp": layer.mlp.shared_expert})
            else:
                units = layer.mlp.experts.down_proj.shape[-1]
                expert, unit = divmod(memory - shared, units)
                gate, up = layer.mlp.experts.gate_up_proj[expert].chunk(2)
                return {"key": up[unit], "gate": gate[unit], "router": layer.mlp.gate.weight[expert]}
    return {"key": layer.mlp.up_proj.weight[memory], "gate": layer.mlp.gate_proj.weight[memory]}


def instead(written: torch.Tensor, module, args, output) -> torch.Tensor:
    """A hook: a module returns something else."""
    return written if output.shape == written.shape else output  # a tap also asks a norm for its gain


def states_of(loaded, layer: int, off: tuple[int, int, int] | None = None) -> dict:
    """x and m of a layer, the factor of a norm after it, and y; without a memory (layer, memory, position)."""
    found, changed = {}, ({off[:2]: 0.0}, off[2]) if off else ({}, 0)
    with (
        scaled(loaded.model, loaded.anatomy.layers, *changed),
        tap(loaded.model, loaded.anatomy.layers, "xmsy", whole=True) as run,
    ):
        run(IDS, lambda at, quantity, tensor: found.update({(at.index, quantity): tensor[0].clone()}))
    return {quantity: found.get((layer, quantity)) for quantity in "xmsy"}


@contextlib.contextmanager
def less(module, token: int, change: torch.Tensor, reads: bool = False):
    """Takes a vector off what a module returns, or reads, at one token."""

    def subtract(state):
        state = state.clone()
        if state.shape[-2] == TOKENS:  # a tap also asks a norm for its gain
            state[..., token, :] -= change
        return state

    def on_output(_, args, output):
        return (subtract(output[0]), *output[1:]) if isinstance(output, tuple) else subtract(output)

    if reads:
        handle = module.register_forward_pre_hook(lambda _, args: (subtract(args[0]), *args[1:]))
    else:
        handle = module.register_forward_hook(on_output)
    yield
    handle.remove()


@pytest.mark.parametrize("kind", BLOCKS)
def test_edges_are_those_of_hooks_written_by_hand(kind, load_kind):
    """In float64, or with norms in float32: then single numbers are right to 1e-5."""
    loaded = load_kind(kind)
    loaded.model.double()
    model, count, tolerance = loaded.model, len(loaded.anatomy.layers), 1e-5 if kind in IN_FLOAT32 else 1e-10
    name, norm = BLOCKS[kind]
    blocks = model.get_submodule(name)
    sources, targets = some_places(loaded, range(count - 1)), some_places(loaded, range(1, count))
    found = edges(loaded, IDS, sources, targets)
    assert not found.notes
    pairs = {(row.source, row.target) for row in found.edges.itertuples()}
    assert pairs == {
        (i, j)
        for i, source in enumerate(sources.itertuples())
        for j, target in enumerate(targets.itertuples())
        if source.layer < target.layer and source.position <= target.position
    }

    @cache
    def states(layer: int, off: tuple[int, int, int] | None = None) -> dict:
        """Those of a layer; without a memory (layer, memory, position)."""
        return states_of(loaded, layer, off)

    @cache
    def changed(module, position: int, i: int, layer: int, reads: bool) -> dict:
        """Those of a layer if a module returns, or reads, the contribution of a source less."""
        with less(module, position, contributions[i], reads):
            return states_of(loaded, layer)

    def writer(block):
        return block.post_feedforward_layernorm if kind.startswith("gemma") else block.mlp

    @cache
    def unchanged(module) -> torch.Tensor:
        """What a module returns in the unchanged model."""
        returned = []
        handle = module.register_forward_hook(lambda module, args, output: returned.append(output))
        states_of(loaded, count - 1)
        handle.remove()
        return returned[-1]

    contributions = {}
    for (i, j), rows in found.edges.groupby(["source", "target"]):
        source, target = sources.iloc[i], targets.iloc[j]
        block, at = blocks[target["layer"]], target["position"]
        reads = read_by_hand(kind, block, target["memory"])
        assert [*rows["factor"]] == [*reads]
        off = (source["layer"], source["memory"], source["position"])
        without, after, intact = states(source["layer"], off), states(target["layer"], off), states(source["layer"])
        if kind.startswith("gemma"):  # the factor of the norm after the layer is held
            m = (intact["m"] - without["m"])[source["position"], source["memory"]]
            value = blocks[source["layer"]].mlp.down_proj.weight[:, source["memory"]]
            norm_after = blocks[source["layer"]].post_feedforward_layernorm
            contributions[i] = intact["s"][source["position"]] * m * ((kind == "gemma2") + norm_after.weight) * value
            after = changed(norm_after, source["position"], i, target["layer"], False)
        else:
            contributions[i] = (intact["y"] - without["y"])[source["position"]]
        before = states(target["layer"])
        past = after
        if target["layer"] - source["layer"] > 1:
            with contextlib.ExitStack() as stack:  # memories in between write what they did
                for module in map(writer, blocks[source["layer"] + 1 : target["layer"]]):
                    stack.callback(module.register_forward_hook(partial(instead, unchanged(module))).remove)
                given = writer(blocks[source["layer"]]), source["position"], i, target["layer"], False
                past = (
                    changed.__wrapped__(*given) if kind.startswith("gemma") else states_of(loaded, target["layer"], off)
                )
        lost = changed(block.get_submodule(norm), source["position"], i, target["layer"], True)
        for row in rows.itertuples():
            u = reads[row.factor]
            direct = (before["x"] - lost["x"])[at] @ u if at == source["position"] else torch.tensor(0.0)
            expected = {"direct": direct, "total": (before["x"] - after["x"])[at] @ u}
            expected["attention"] = (before["x"] - past["x"])[at] @ u - direct
            expected["total_m"] = (before["m"] - after["m"])[at, target["memory"]]
            for column, value in expected.items():
                assert getattr(row, column) == pytest.approx(float(value), abs=tolerance), (column, row)
            if at != source["position"]:
                assert row.held == 0
    assert found.edges["direct"].abs().max() > 100 * tolerance  # something is there to be compared


@pytest.mark.parametrize("kind", [*(kind for kind in LAYER_KINDS if kind != "opt-post-norm"), "dbrx", "falcon"])
def test_parts_add_up_to_what_the_model_computes(kind, load_kind):
    """float32: to 1e-5 of the largest part. All memories of the layers before are sources, so the parts of the first two agree."""
    loaded = load_kind(kind)
    layers = loaded.anatomy.layers
    last, at = layers[-1], TOKENS - 1
    sources = places(*[(layer.index, i, at) for layer in layers[:-1] for i in range(layer.memories)])
    targets = places(*[(last.index, j, at) for j in range(0, last.memories, 7)], *[(0, 3, 2)])
    found = edges(loaded, IDS, sources, targets, rerun=False)
    assert not found.notes
    assert found.parts["deviation"].max() < 1e-5
    assert np.allclose(found.parts["listed_sources"], found.parts["memories"], atol=1e-5)
    assert found.parts[found.parts["target"] < len(targets) - 1]["memories"].abs().min() > 0
    by_target = found.edges.groupby(["target", "factor"])["held"].sum()
    assert np.allclose(
        by_target, found.parts.set_index(["target", "factor"])["memories"].loc[by_target.index], atol=1e-5
    )
    assert found.edges["total"].isna().all()


def test_pre_activations_are_what_the_first_matrices_return(load_kind):
    loaded, seen = load_kind("llama"), {}
    mlp = loaded.model.model.layers[1].mlp
    for name in ("gate_proj", "up_proj"):
        getattr(mlp, name).register_forward_hook(lambda _, args, output, name=name: seen.update({name: output[0]}))
    forward(loaded.model, IDS)
    expected = [float(seen[name][4, 11]) for name in ("up_proj", "gate_proj")]
    found = edges(loaded, IDS, places((0, 1, 4)), places((1, 11, 4)), rerun=False).parts
    assert found["factor"].tolist() == ["key", "gate"]
    assert found["pre_activation"].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_norm_on_the_residual_stream_leaves_the_edges_by_a_new_run(load_kind):
    loaded = load_kind("opt-post-norm")
    loaded.model.double()
    sources, targets = some_places(loaded, range(1)), some_places(loaded, range(1, 2))
    found = edges(loaded, IDS, sources, targets)
    assert len(found.notes) == 1
    assert "Layer 1" in found.notes[0]
    assert "has no direct edges" in found.notes[0]
    assert found.edges[["held", "direct"]].isna().all().all()
    assert found.parts["deviation"].isna().all()
    for row in found.edges.itertuples():
        source, target = sources.iloc[row.source], targets.iloc[row.target]
        with scaled(loaded.model, loaded.anatomy.layers, {(0, source["memory"]): 0.0}, source["position"]):
            after = states_of(loaded, 1)
        lost = (states_of(loaded, 1)["m"] - after["m"])[target["position"], target["memory"]]
        assert row.total_m == pytest.approx(float(lost), abs=1e-10)


def normed(**residual: float) -> float:
    """What LN makes of the word b, if these words are in the residual stream of 17 words."""
    v = np.zeros(17)
    for word, amount in residual.items():
        v[WORDS.index(word)] = amount
    return float(((v - v.mean()) / np.sqrt(v.var() + 1e-5))[WORDS.index("b")])


@pytest.fixture
def planted(loaded_detector):
    """The detector whose memory L1.0 reads b, which L0.0 writes behind a: 4 e_b."""
    matrix = loaded_detector.model.transformer.h[1].mlp.c_fc.weight
    original = matrix.data.clone()
    matrix.data[:, 0] = torch.eye(17)[WORDS.index("b")]
    yield loaded_detector
    matrix.data = original


def ids_of(*words: str) -> torch.Tensor:
    return torch.tensor([[WORDS.index(word) for word in words]])


def test_a_planted_chain_has_the_weight_that_it_has_by_hand(planted):
    found = edges(planted, ids_of("<bos>", "a"), places((0, 0, 1), (0, 1, 1)), places((1, 0, 1)))
    chain, silent = found.edges.itertuples()
    # h = e_a + 4 e_b has the mean 5/17 and the variance 264/289.
    length = np.sqrt(264)
    assert chain.held == pytest.approx(64 / length, rel=1e-4)
    assert chain.direct == pytest.approx(63 / length + 1 / 4, rel=1e-4)  # without it N(e_a) is -1/4 at b
    assert chain.total == pytest.approx(chain.direct, rel=1e-6)  # nothing lies between
    assert chain.total_m == pytest.approx(63 / length, rel=1e-4)  # ReLU: m is 0 without it
    assert (silent.held, silent.direct, silent.total, silent.total_m) == (0, 0, 0, 0)
    assert chain.attention == pytest.approx(0, abs=1e-5)  # there is no attention
    (parts,) = found.parts.itertuples()
    assert parts.memories == pytest.approx(64 / length, rel=1e-4)
    assert parts.embedding == pytest.approx(-1 / length, rel=1e-4)
    assert (parts.attention, parts.bias, parts.constant) == pytest.approx((0, 0, 0), abs=1e-6)
    assert parts.pre_activation == pytest.approx(63 / length, rel=1e-4)


def test_a_chain_through_a_head_is_found_by_the_new_run_alone(planted):
    """Layer 1 attends to all tokens alike, and brings b from there. So it brings what L0.0 wrote behind a to d."""
    attention, b = planted.model.transformer.h[1].attn, WORDS.index("b")
    weights = attention.c_attn.weight, attention.c_proj.weight
    weights[0].data[b, 2 * 17 + b], weights[1].data[b, b] = 1, 1
    try:
        found = edges(planted, ids_of("a", "d"), places((0, 0, 0)), places((1, 0, 1)))
    finally:
        for weight in weights:
            weight.data.zero_()
    ((row, parts),) = zip(found.edges.itertuples(), found.parts.itertuples(), strict=True)
    assert (row.held, row.direct) == (0, 0)
    brought = (normed(a=1, b=4) + normed(d=1)) / 2
    without = (normed(a=1) + normed(d=1)) / 2
    assert row.total == pytest.approx(normed(d=1, b=brought) - normed(d=1, b=without), rel=1e-5)
    assert row.total_m == pytest.approx(normed(d=1, b=brought), rel=1e-5)
    assert row.attention == pytest.approx(row.total)  # nothing else lies between
    assert parts.attention == pytest.approx(parts.pre_activation - parts.embedding, rel=1e-5)
    assert parts.memories == 0


def test_direct_edges_take_two_products_and_their_sum_one(load_kind):
    """Counted are multiplications, beside the pass over the prompt: of sources by what targets read, and of m by the values."""
    loaded, ids = load_kind("llama"), torch.arange(30)[None]
    layers, width = loaded.anatomy.layers, loaded.anatomy.width
    sources = places(*[(0, number % 24, number) for number in range(30)])
    targets = places(*[(1, number % 24, number) for number in range(30)])
    with FlopCounterMode(display=False) as own, tap(loaded.model, layers, "y") as run:
        run(ids, lambda layer, quantity, tensor: None)
    with FlopCounterMode(display=False) as whole:
        edges(loaded, ids, sources, targets, rerun=False)
    of_edges = 2 * len(sources) * width * 2 * len(targets)  # a key and a gate each
    of_token = 2 * width * layers[0].memories
    tried = 16  # vectors that tell whether a second matrix is a plain one, and what a first matrix adds
    assert own.get_total_flops() > 6 * 30 * of_token  # three products of each layer, and attention
    extra = whole.get_total_flops() - own.get_total_flops()
    assert 2 * of_edges + 30 * of_token <= extra <= 2 * of_edges + (30 + tried) * of_token


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([(5, 0, 0)], "There is no memory 0 in layer 5"),
        ([(1, 24, 0)], "There is no memory 24 in layer 1"),
        ([(1, 0, 6)], "There is no position 6: the prompt has positions 0 to 5"),
        ([], "There is no target"),
    ],
)
def test_what_is_not_there_is_named(load_kind, targets, message):
    with pytest.raises(UserError, match=message):
        edges(load_kind("llama"), IDS, places((0, 0, 0)), places(*targets))


def test_a_new_run_that_changes_by_a_change_of_nothing_is_refused(load_kind):
    """A model in which copies of a prompt see each other: what they read says nothing about one prompt."""
    loaded = load_kind(next(iter(BLOCKS)))
    sources, targets = some_places(loaded, [0]), some_places(loaded, [1])
    embedding = loaded.model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda module, given, output: output * (1 + 0.1 * (len(output) - 1)))
    with pytest.raises(UserError, match="a change of nothing changes what layer 1 reads"):
        edges(loaded, IDS, sources, targets)
    assert len(edges(loaded, IDS, sources, targets, rerun=False).edges)
    handle.remove()
    assert len(edges(loaded, IDS, sources, targets).edges)
