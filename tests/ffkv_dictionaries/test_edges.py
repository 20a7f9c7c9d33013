"""Edges between units of dictionaries: what a dictionary leaves is a part of its own of what a later unit reads."""

import pandas as pd
import pytest
import torch
from support import some_ids

from ffkv.model.effects.edges import PARTS, edges
from ffkv.model.tap.tap import observe
from tests.ffkv_dictionaries.conftest import fitted, of_layer
from tests.ffkv_dictionaries.test_layer import noisy


@pytest.fixture
def two_layers(models, loaded):
    model = models("gpt2")[1]
    return loaded("gpt2", {number: noisy(of_layer(model, number), number) for number in (0, 1)})


def test_error_is_a_part_of_what_a_unit_reads(two_layers):
    ids, position = some_ids(3, 1), 5
    states = observe(two_layers.model, two_layers.anatomy.layers, ids, "mu")
    first, second = (own["m"][0, position].topk(3).indices.tolist() for own in states)
    places = [
        pd.DataFrame([(layer, memory, position) for memory in chosen], columns=["layer", "memory", "position"])
        for layer, chosen in ((0, first), (1, second))
    ]
    found = edges(two_layers, ids, *places)
    assert found.notes == []
    assert found.parts["deviation"].max() < 1e-5
    assert list(found.parts.columns[3:9]) == list(PARTS)
    # By hand: the norm in front of layer 1 divides by the deviation of what it reads, which is held.
    block, heard = two_layers.model.transformer.h[1], {}
    handle = block.ln_2.register_forward_pre_hook(lambda module, args: heard.update(h=args[0][0, position].double()))
    two_layers.model(ids)
    handle.remove()
    deviation = (heard["h"].var(unbiased=False) + block.ln_2.eps).sqrt()
    error = states[0]["u"][0, position].double()
    normed = block.ln_2.weight.double() * (error - error.mean()) / deviation
    keys = block.mlp.c_proj.encoder.weight[second].double()
    for told, expected in zip(found.parts["error"], (keys @ normed).tolist(), strict=True):
        assert told == pytest.approx(expected, rel=1e-4)
        assert abs(told) > 1e-2
    # Edges are those of any other layer: `total` without attention in between is `direct`.
    assert found.edges["total"].abs().max() > 0.01
    torch.testing.assert_close(
        torch.tensor(found.edges["total"] - found.edges["attention"]), torch.tensor(found.edges["direct"]), rtol=1e-3, atol=1e-4
    )  # fmt: skip


def test_errors_of_a_dictionary_before_a_norm_add_up(models, loaded):
    """Gemma's layer is followed by a norm: what the dictionary leaves goes through it, too."""
    torch.manual_seed(0)
    model, ids = models("gemma2")[1], some_ids(3, 1)
    block, heard = model.model.layers[0], {}
    handle = block.mlp.down_proj.register_forward_hook(lambda module, args, output: heard.update(y=output))
    reads = block.mlp.gate_proj.register_forward_pre_hook(lambda module, args: heard.update(x=args[0]))
    with torch.no_grad():
        model(some_ids(8, 12, 12))
    handle.remove(), reads.remove()
    dictionary = fitted(heard["x"].flatten(0, 1), heard["y"].flatten(0, 1))
    found = loaded("gemma2", {0: dictionary}, reads="normed", writes="before")
    targets = pd.DataFrame([(1, memory, 5) for memory in range(6)], columns=["layer", "memory", "position"])
    sources = pd.DataFrame([(0, memory, 5) for memory in range(6)], columns=["layer", "memory", "position"])
    parts = edges(found, ids, sources, targets).parts
    assert parts["deviation"].max() < 1e-5
    assert parts["error"].abs().min() > 1e-3
