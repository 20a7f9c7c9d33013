"""Sparse autoencoders of the residual stream: they are found where a block only adds, and their units change what the block returns."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support import refused, some_ids
from torch.nn.functional import cross_entropy

from ffkv.base.settings import Model
from ffkv.branches.composition.summarize import summarize_cases, summarize_no_agreement
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.discover.probe_texts import passages
from ffkv.model.effects.edges import edges
from ffkv.model.keys_and_values import values
from ffkv.model.step import prove
from ffkv.model.tap.change import scaled, with_output
from ffkv.model.tap.hooks import forward, known_state
from ffkv.model.tap.tap import observe
from ffkv_dictionaries import saelens, scopes
from ffkv_dictionaries.forms import Dictionary
from ffkv_dictionaries.reconstruction.measure import Sums, _losses
from tests.ffkv_dictionaries import made
from tests.ffkv_dictionaries.conftest import fitted
from tests.ffkv_dictionaries.test_layer import by_hand, noisy

WIDTH = 16
# By kind: the list of blocks, what reads h, and what writes y, in a block.
FOUND = {
    "gpt2": ("transformer.h", "ln_2", "mlp.c_proj"),
    "opt": ("model.decoder.layers", "final_layer_norm", "fc2"),
    "gemma2": ("model.layers", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "olmo2": ("model.layers", "mlp.gate_proj", "post_feedforward_layernorm"),  # no norm is before the layer
}


def identity() -> Dictionary:
    """Two units per dimension, one for each sign: it makes again whatever it reads."""
    both = torch.cat([torch.eye(WIDTH), -torch.eye(WIDTH)])
    return Dictionary(both, torch.zeros(2 * WIDTH), both.clone(), torch.zeros(WIDTH), threshold=torch.zeros(2 * WIDTH))


def autoencoder(seed: int = 0) -> Dictionary:
    """One that leaves something."""
    return replace(noisy(identity(), seed), skip=None)


def hear(model: torch.nn.Module, kind: str, number: int, ids: torch.Tensor, change=None) -> dict[str, torch.Tensor]:
    """h, y and o of a block and the logits, by plain hooks. `change`: what the block is to return, from what it returns."""
    blocks, reads, writes = FOUND[kind]
    block, heard = model.get_submodule(f"{blocks}.{number}"), {}

    def on_block(module, args, output):
        heard["o"] = known_state(output).clone()
        if change is not None:
            made = change(heard["o"])
            return (made, *output[1:]) if isinstance(output, tuple) else made

    handles = [
        block.get_submodule(reads).register_forward_pre_hook(lambda module, args: heard.update(h=args[0].clone())),
        block.get_submodule(writes).register_forward_hook(lambda module, args, output: heard.update(y=output.clone())),
        block.register_forward_hook(on_block),
    ]
    with torch.no_grad():
        heard["logits"] = model(ids).logits
    for handle in handles:
        handle.remove()
    return heard


@pytest.mark.parametrize("kind", FOUND)
def test_what_makes_the_stream_again_is_found(kind, models, loaded):
    found: LoadedModel = loaded(kind, {1: identity()}, reads="stream")
    blocks, reads, writes = FOUND[kind]
    (place,) = found.anatomy.dictionaries
    assert place.of_stream and place.unexplained <= 1e-10
    assert (place.reads, place.writes) == (f"{blocks}.1.{reads}", f"{blocks}.1.{writes}")
    assert found.anatomy.of_stream == {1} and found.anatomy.layers[1].is_dictionary
    assert "(of the residual stream behind it)" in place.called("folder")
    assert any(
        line.startswith("reads and writes the residual stream behind the layer") for line in found.anatomy.remarks
    )
    assert max(found.anatomy.errors.values()) < 1e-4


def test_what_makes_everything_again_is_of_no_place(proven):
    """It makes the output of the layer again, too, from that output."""
    with refused("two places explain about as much.* reads and writes the residual stream behind the layer: "):
        proven("gpt2", {1: identity()})


@pytest.mark.parametrize("kind", FOUND)
def test_the_stream_is_told_from_other_places(kind, models, proven):
    """Without a setting: what is fitted to the stream explains nothing else as well."""
    native = prove(Model(checkpoint=str(models(kind)[0])))
    ids = torch.cat(passages(native.model, native.tokenizer))
    o = hear(native.model, kind, 1, ids)["o"][:, 1:].flatten(0, 1)
    made = proven(kind, {1: fitted(o, o)})
    assert made.anatomy.of_stream == {1} and made.anatomy.dictionaries[0].unexplained < 0.5
    told = [line for line in made.anatomy.remarks if line.startswith("reads ")]
    assert told[0].startswith("reads and writes the residual stream behind the layer")


@pytest.mark.parametrize("kind", FOUND)
def test_sums_are_those_of_the_formula(kind, models, loaded):
    """In float64: y = Σ m v + b - h + error, with m of o = h + y, and the error what is left of o."""
    dictionaries = {number: autoencoder(number) for number in (0, 1)}
    found, ids = loaded(kind, dictionaries, reads="stream"), some_ids(2, 2, 12)
    assert found.anatomy.of_stream == {0, 1}
    states = observe(found.model, found.anatomy.layers, ids, "xmbuyo")
    for number, own in enumerate(states):
        native = hear(models(kind)[1].eval(), kind, number, ids)
        native |= {
            name: native[name].reshape(native["o"].shape) for name in "hy"
        }  # OPT writes tokens without sentences
        torch.testing.assert_close(native["h"] + native["y"], native["o"], rtol=1e-6, atol=1e-6)
        m, b = by_hand(dictionaries[number], native["o"])
        made = m @ dictionaries[number].decoder.double()
        torch.testing.assert_close(own["y"], native["y"], rtol=0, atol=0)
        torch.testing.assert_close(own["o"], native["o"], rtol=0, atol=0)
        torch.testing.assert_close(own["m"].double(), m, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(own["b"].double(), b - native["h"].double(), rtol=1e-5, atol=1e-5)
        error = native["o"].double() - made - b
        assert error.abs().max() > 0.01
        torch.testing.assert_close(own["u"].double(), error, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made + own["b"] + own["u"], native["y"].double(), rtol=1e-4, atol=1e-4)
        v, bias = values(found.model, found.anatomy.layers[number])
        torch.testing.assert_close(v, dictionaries[number].decoder)
        assert bias is None  # it depends on the token


@pytest.mark.parametrize("kind", FOUND)
def test_a_unit_that_is_off_leaves_the_stream(kind, models, loaded):
    """As a plain hook on the block's output that subtracts m v."""
    found, ids = loaded(kind, {0: autoencoder()}, reads="stream"), some_ids(4, 2, 12)
    layer, dictionary = found.anatomy.layers[0], autoencoder()
    m = observe(found.model, [layer], ids, "m")[0]["m"]
    unit = int(m.sum((0, 1)).argmax())
    with scaled(found.model, found.anatomy.layers, {(0, unit): 0.0}):
        off = forward(found.model, ids).logits
    plain = hear(models(kind)[1].eval(), kind, 0, ids, lambda o: o - m[..., unit, None] * dictionary.decoder[unit])
    whole = hear(models(kind)[1].eval(), kind, 0, ids)
    torch.testing.assert_close(off, plain["logits"], rtol=1e-5, atol=1e-5 * plain["logits"].abs().max().item())
    assert (off - whole["logits"]).abs().max() > 1e-2 * whole["logits"].abs().max()
    torch.testing.assert_close(forward(found.model, ids).logits, whole["logits"], rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "built"), [("post-norm", "plain; post-norm block"), ("parallel", "plain")])
def test_a_block_that_does_more_than_add_is_refused(kind, built, models, proven):
    """A norm follows the sum, or attention is added beside the layer."""
    why = rf"No dictionary of the residual stream fits layer 1 \({built}\): its block does not return the sum"
    with refused(rf"explains too little of what it is to add up to.* {why}"):
        proven(kind, {1: replace(identity(), decoder=-identity().decoder)})
    with refused(rf"the layers do not have such a place.* {why}"):
        proven(kind, {1: autoencoder()}, reads="stream")


def test_another_stream_is_not_explained(models, proven):
    """Units that are far from the stream: the share that is left is named, with those of other places."""
    dictionary = replace(identity(), decoder=-identity().decoder)
    with refused("explains too little.*reads and writes the residual stream behind the layer: [1-9]"):
        proven("gpt2", {1: dictionary}, reads="stream")


def test_edges_add_up(loaded):
    """A unit of the stream is a source like any other; what its own layer writes is no sum of what is before it."""
    found, ids = loaded("gpt2", {0: autoencoder()}, reads="stream"), some_ids(3, 1)
    frame = pd.DataFrame([(0, unit, 5) for unit in range(4)], columns=["layer", "memory", "position"])
    told = edges(found, ids, frame, frame.assign(layer=1))
    assert told.notes == [] and told.parts["deviation"].max() < 1e-5
    assert told.edges["total"].abs().max() > 0.01
    whole = observe(found.model, found.anatomy.layers, ids, "m")[1]["m"]
    m = observe(found.model, found.anatomy.layers, ids, "m")[0]["m"][0, 5]
    for unit in range(4):

        def without(o: torch.Tensor, unit: int = unit) -> torch.Tensor:
            made = o.clone()
            made[0, 5] -= m[unit] * autoencoder().decoder[unit]
            return made

        with with_output(found.model, found.anatomy.layers[0], without):
            off = observe(found.model, found.anatomy.layers, ids, "m")[1]["m"]
        lost = (whole - off)[0, 5, :4].tolist()
        assert told.edges.query("source == @unit")["total_m"].tolist() == pytest.approx(lost, abs=1e-4)


def test_a_unit_of_the_stream_has_no_direct_edges(loaded):
    found, ids = loaded("gpt2", {1: autoencoder()}, reads="stream"), some_ids(3, 1)
    frame = pd.DataFrame([(0, unit, 5) for unit in range(4)], columns=["layer", "memory", "position"])
    told = edges(found, ids, frame, frame.assign(layer=1))
    assert told.edges["direct"].isna().all() and told.edges["total"].notna().all()
    assert "Layer 1" in told.notes[0] and "no direct edges" in told.notes[0]


def test_losses_are_those_of_plain_hooks(models, loaded):
    """What is replaced is the output of the block: by what the dictionary makes, and by 0."""
    dictionary, model = autoencoder(), models("gpt2")[1].eval()
    found = loaded("gpt2", {1: dictionary}, reads="stream")
    rows = [np.array([0, 5, 7, 9, 3]), np.array([0, 8, 2, 4, 6, 11, 13])]
    sums = {1: Sums(found.anatomy.layers[1], torch.device("cpu"))}
    losses = _losses(found, rows, 1, [found.anatomy.layers[1]], sums, step=1)

    def made(o: torch.Tensor) -> torch.Tensor:
        m, b = by_hand(dictionary, o)
        return (m @ dictionary.decoder.double() + b).float()

    def loss(change=None) -> float:
        total = 0.0
        for row in rows:
            ids = torch.from_numpy(row)[None]
            logits = hear(model, "gpt2", 1, ids, change)["logits"][0, :-1]
            total += float(cross_entropy(logits, ids[0, 1:], reduction="sum"))
        return total

    assert losses[-1, ""] == pytest.approx(loss(), rel=1e-5)
    assert losses[1, "e"] == pytest.approx(loss(made), rel=1e-5)
    assert losses[1, "y"] == pytest.approx(loss(torch.zeros_like), rel=1e-5)
    o = torch.cat([hear(model, "gpt2", 1, torch.from_numpy(row)[None])["o"][0, 1:] for row in rows])
    left = ((o - made(o)).square().sum() / (o - o.mean(0)).square().sum()).item()
    assert sums[1].row()["unexplained"] == pytest.approx(left, rel=1e-4) and left > 1e-3


def test_layers_without_agreement_are_left_out():
    """Figure 8 has the other layers alone."""
    table = pd.DataFrame({"layer": [0, 0, 1, 1], "agreeing": [0, 2, -1, -1], "agreeing_all": [1, 2, -1, -1]})
    table = table.assign(words=[3, 9, 3, 9], target_is_stop_word=[True, False, True, False])
    assert summarize_no_agreement(table)[["layer", "reading", "share"]].values.tolist() == [
        [0, "active", 0.5],
        [0, "all", 0],
    ]
    cases = summarize_cases(table, 5)
    assert cases["layer"].tolist() == [-1, 0] and cases["cases"].tolist() == [1, 1]
    assert cases["base_short_share"].tolist() == [0.5, 0.5]
    assert summarize_no_agreement(table[table["layer"] == 1]).empty


HOOKS = {"blocks.3.hook_resid_post": 3, "blocks.3.hook_resid_pre": 2, "blocks.3.hook_mlp_out": 3}


@pytest.mark.parametrize("hook", HOOKS)
def test_the_stream_before_a_block_is_that_of_the_layer_before(hook, tmp_path):
    folder = made.saelens(tmp_path / "own", metadata={"hook_name": hook}).folder
    assert [*saelens.layers(folder)] == [HOOKS[hook]]
    theirs = made.llama(tmp_path / "scope", hook_point_in=hook, hook_point_out=hook).folder
    assert [*scopes.llama_layers(theirs)] == [HOOKS[hook]]


@pytest.mark.parametrize(
    ("hook", "why"),
    [("blocks.3.hook_resid_mid", "no feed-forward layer writes"), ("blocks.0.hook_resid_pre", "the embeddings")],
)
def test_streams_that_no_layer_writes_are_refused(hook, why, tmp_path):
    folder = made.saelens(tmp_path / "own", metadata={"hook_name": hook}).folder
    with refused(f"{folder} reads {hook}, .*{why}"):
        saelens.layers(folder)
    said = json.loads((folder / "cfg.json").read_text()) | {
        "metadata": {"hook_name": hook, "hook_name_out": "blocks.3.hook_mlp_out"}
    }
    (folder / "cfg.json").write_text(json.dumps(said))  # a transcoder may read it
    assert [*saelens.layers(folder)] == [3]
