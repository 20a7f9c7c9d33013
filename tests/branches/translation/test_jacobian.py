"""Jacobians of texts: finite differences on every kind of layer, random signs, and sums that neither shards nor kills change."""

import numpy as np
import pandas as pd
import pytest
import torch
from support import LAYER_KINDS
from torch import nn

from ffkv.base.errors import UserError
from ffkv.branches.translation.average import variants
from ffkv.branches.translation.jacobian import jacobian_of, prove_derivative
from ffkv.model.effects.edges import edges
from ffkv.model.effects.gradient import link
from ffkv.model.keys_and_values import values
from ffkv.model.tap.change import with_output
from ffkv.model.tap.tap import tap

from .conftest import made_linear

IDS = torch.tensor([0, 3, 5, 7, 2, 4])
COUNTED = slice(1, 5)  # the first position and the last one do not count
STEP = 3e-3


def ends(loaded, layer: int | None = None, change: torch.Tensor | None = None, at: int = 0) -> torch.Tensor:
    """What the head reads at each token [token, d], also if o of a layer changes at one of them."""
    found = []

    def add(o):
        states = o.reshape(1, len(IDS), -1).clone()
        states[0, at] += change
        return states.reshape(o.shape)

    changed = with_output(loaded.model, layer, add) if layer is not None else torch.no_grad()
    with changed, tap(loaded.model, loaded.anatomy.layers[-1:], loaded.anatomy.end) as run:
        run(IDS[None], lambda layer, quantity, tensor: found.append(tensor[0].clone()))
    return found[0]


def differences(loaded, layer, coordinate: int) -> torch.Tensor:
    """How the end moves with a coordinate of o of a layer: by position of o, position of the end, and coordinate of the end."""
    unit = torch.zeros(loaded.anatomy.width, dtype=torch.float64)
    unit[coordinate] = STEP
    found = [
        (ends(loaded, layer, unit, at) - ends(loaded, layer, -unit, at)) / (2 * STEP) for at in range(len(IDS))[COUNTED]
    ]
    return torch.stack(found)[:, COUNTED]


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_a_jacobian_is_finite_differences_summed_over_later_positions(kind, load_kind):
    """Central differences. Some norms compute in float32, so steps are large: 1e-3 of the largest entry is allowed."""
    loaded = load_kind(kind)
    loaded.model.double()
    found, states, end = jacobian_of(loaded, IDS, COUNTED, copies=64)
    coordinates = torch.Generator().manual_seed(1)
    for layer in loaded.anatomy.layers:
        column = int(torch.randint(loaded.anatomy.width, (1,), generator=coordinates))
        expected = differences(loaded, layer, column).sum((0, 1)) / 4
        largest = max(np.abs(found[layer.index]).max(), float(expected.abs().max()))
        np.testing.assert_allclose(found[layer.index][:, column], expected, atol=1e-3 * largest)
    np.testing.assert_allclose(end, ends(loaded)[COUNTED].mean(0), rtol=1e-5, atol=1e-6)
    if loaded.anatomy.end == "o":
        np.testing.assert_allclose(states[-1], end, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[-1], np.eye(len(end)), atol=1e-6)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_models_move_as_their_derivatives_say(kind, load_kind):
    prove_derivative(load_kind(kind), IDS, COUNTED)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_a_part_without_a_gradient_is_found(kind, load_kind):
    """The second layer computes as before, and hands back no gradient."""
    loaded = load_kind(kind)
    block = loaded.model.get_submodule(loaded.anatomy.layers[1].block)
    block.register_forward_pre_hook(
        lambda module, args: (args[0].detach() + 0.5 * (args[0] - args[0].detach()), *args[1:])
    )
    with pytest.raises(UserError, match="is not how it moves"):
        prove_derivative(loaded, IDS, COUNTED)


def test_the_mean_over_all_signs_is_the_same_position_alone(load_kind):
    """With the same signs for each coordinate, and every one of the sixteen patterns, the mean is exact (float32 rounding)."""
    loaded = load_kind("llama")
    patterns = [[1 if number >> bit & 1 else -1 for bit in range(4)] for number in range(16)]
    width = loaded.anatomy.width
    means = [jacobian_of(loaded, IDS, COUNTED, 8, np.tile(pattern, (width, 1)))[0] for pattern in patterns]
    alone = [
        jacobian_of(loaded, IDS, slice(at, at + 1), 8)[0] for at in range(1, 5)
    ]  # V of one position: only itself counts
    np.testing.assert_allclose(np.mean(means, 0), np.mean(alone, 0), atol=1e-5 * np.abs(means).max())


def test_how_many_copies_are_read_changes_rounding_alone(load_kind):
    loaded = load_kind("gpt2")
    one, other = (jacobian_of(loaded, IDS, COUNTED, copies)[0] for copies in (2, 64))
    np.testing.assert_allclose(one, other, atol=1e-6 * np.abs(one).max())


def test_of_linear_blocks_the_jacobian_is_the_product_of_one_plus_w(load_kind):
    loaded = load_kind("gpt2")
    loaded.model.double()
    layers, d = len(loaded.anatomy.layers), loaded.anatomy.width
    w = np.random.default_rng(0).normal(size=(layers, d, d)) / np.sqrt(d)
    made_linear(loaded, w)
    found = jacobian_of(loaded, IDS, COUNTED, 16)[0]
    expected = np.eye(d)
    for layer in reversed(range(layers)):
        np.testing.assert_allclose(found[layer].T, expected, atol=1e-6 * np.abs(found).max())  # o J^T, float32 sums
        expected = (np.eye(d) + w[layer]) @ expected


def test_a_word_that_a_later_layer_turns_back_is_read_through_the_lens_alone(load_kind):
    """Values of layer 0 hold words behind a rotation, which layer 1 takes back. The norm of the head keeps directions."""
    loaded = load_kind("gpt2")
    layers, d = len(loaded.anatomy.layers), loaded.anatomy.width
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(d, d)))[0]
    w = np.zeros((layers, d, d))
    w[1] = rotation - np.eye(d)
    made_linear(loaded, w)
    words = generator.normal(size=(40, d))
    words -= words.mean(1, keepdims=True)  # no norm takes anything from them
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    values = words @ rotation.T
    j = jacobian_of(loaded, IDS, COUNTED, 16)[0]
    unembed = words.T  # the head reads the word whose direction is nearest
    by_lens, by_head, rotated = (
        ((v @ unembed).argmax(1) == np.arange(40)).mean()
        for v in (values @ j[0].T, values, values @ variants(j[0], 0, 0)["rotated"].T)
    )
    assert by_lens == 1 and by_head < 0.3 and rotated < 0.3


def test_on_its_prompts_a_behaviour_is_screened_by_the_same_numbers(load_kind):
    """(u_answer - u_wrong) J v is the mean of g v over the prompts: J of the last position of each prompt, g of one backward pass."""
    loaded = load_kind("llama")
    rows = [torch.tensor(ids) for ids in ([0, 3, 5, 7], [0, 4, 9], [0, 2, 6, 8, 1])]
    u = torch.randn(loaded.anatomy.width, generator=torch.Generator().manual_seed(0))  # of a head without a norm
    means = np.mean([jacobian_of(loaded, ids, slice(len(ids) - 1, len(ids)), 16)[0] for ids in rows], 0)
    screened = []
    for ids in rows:
        last = len(ids) - 1
        gradients, _ = link(loaded, ids[None]).at(torch.tensor([last]), lambda end: u.expand_as(end))
        screened.append(torch.stack([gradient[0, last] for gradient in gradients]))
    found = torch.stack(screened).mean(0).numpy()
    np.testing.assert_allclose(u.numpy() @ means, found, atol=1e-5 * np.abs(found).max())


def test_direct_and_the_paths_through_all_later_memories_are_the_same_number(load_kind):
    """u J c = u c + the sum over later memories of how much of their coefficients is gone without c, times u v.

    True to the last digit where memories alone pass on what they read, in proportion: no attention, no norm, no bend.
    """
    loaded = load_kind("gpt2")
    for block in loaded.model.transformer.h:
        block.ln_2, block.mlp.act = nn.Identity(), nn.Identity()
        nn.init.zeros_(block.attn.c_proj.weight)
    loaded.model.transformer.ln_f = nn.Identity()
    position, layers, u = 2, loaded.anatomy.layers, torch.randn(loaded.anatomy.width).double().numpy()
    j = jacobian_of(loaded, IDS, slice(position, position + 1), 16)[0]
    v = [values(loaded.model, layer)[0].double().numpy() for layer in layers]
    sources = pd.DataFrame({"layer": 0, "memory": [1, 7, 40], "position": position})
    later = [(layer.index, memory, position) for layer in layers[1:] for memory in range(layer.memories)]
    targets = pd.DataFrame(later, columns=["layer", "memory", "position"])
    found = edges(loaded, IDS[None], sources, targets).edges
    m = []
    with tap(loaded.model, layers[:1], "m") as run:
        run(IDS[None], lambda layer, quantity, tensor: m.append(tensor[0, position].double().numpy()))
    writes = found["total_m"] * (np.concatenate(v[1:]) @ u)[found["target"]]
    paths = writes.groupby(found["source"]).sum().to_numpy()
    contributions = m[0][sources["memory"], None] * v[0][sources["memory"]]
    assert np.abs(paths).max() > 0.1 * np.abs(contributions @ u).max()
    np.testing.assert_allclose(contributions @ u + paths, contributions @ j[0].T @ u, rtol=1e-4, atol=1e-6)
