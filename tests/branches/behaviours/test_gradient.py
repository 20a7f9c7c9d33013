"""The gradient at each layer's output is what a finite difference says, for every kind of layer."""

import contextlib

import numpy as np
import pytest
import torch
from support import LAYER_KINDS

from ffkv.base.batching import pad
from ffkv.model.effects.gradient import Frozen, link
from ffkv.model.tap.change import with_output
from ffkv.model.tap.tap import tap

ROWS = [np.array([0, 3, 5, 7, 2]), np.array([0, 4, 9])]
LAST = torch.tensor([len(row) - 1 for row in ROWS])
PLACES = torch.arange(len(ROWS)), LAST
STEP = 3e-3


def ends(loaded, layer=None, change=None) -> torch.Tensor:
    """What the head reads at the last token of each row, also if o of a layer changes there."""
    found = []

    def add(o):
        states = o.reshape(len(ROWS), -1, o.shape[-1]).clone()
        states[PLACES] += change
        return states.reshape(o.shape)

    changed = contextlib.nullcontext() if layer is None else with_output(loaded.model, layer, add)
    with changed, tap(loaded.model, loaded.anatomy.layers[-1:], loaded.anatomy.end) as run:
        run(pad(ROWS), lambda layer, quantity, tensor: found.append(tensor[PLACES].clone()))
    return found[0]


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_gradients_are_finite_differences(kind, load_kind):
    """Central differences. Some norms compute in float32, so steps are large: 1e-3 of the largest gradient is allowed."""
    loaded = load_kind(kind)
    loaded.model.double()
    torch.manual_seed(1)
    reads = torch.randn(len(ROWS), loaded.anatomy.width, dtype=torch.float64)
    gradients, end = link(loaded, pad(ROWS)).at(LAST, lambda end: reads)
    assert torch.allclose(end.double(), ends(loaded), rtol=1e-5, atol=1e-6)
    for layer, gradient in zip(loaded.anatomy.layers, gradients, strict=True):
        direction = torch.randn_like(reads)
        after, before = (ends(loaded, layer, sign * STEP * direction) for sign in (1, -1))
        expected = ((after - before) * reads).sum(1) / (2 * STEP)
        gradient = gradient[PLACES]
        found = (gradient.double() * direction).sum(1)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(gradient.norm(dim=1).max())), layer.index


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_frozen_passes_predict_the_same_and_have_other_gradients(kind, load_kind):
    """A held pass computes what the model computes (float32 rounding), and something is held."""
    loaded = load_kind(kind)
    torch.manual_seed(1)
    reads = torch.randn(len(ROWS), loaded.anatomy.width)
    plain, end = link(loaded, pad(ROWS)).at(LAST, lambda end: reads)
    with Frozen():
        held, held_end = link(loaded, pad(ROWS)).at(LAST, lambda end: reads)
    assert torch.allclose(held_end, end, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(held[0], plain[0], rtol=1e-3)
    if loaded.anatomy.end == "o" and loaded.anatomy.layers[-1].output_kind != "norm":
        assert torch.allclose(held[-1], plain[-1])  # nothing lies between


def test_no_weight_and_no_hook_is_left(load_kind):
    loaded = load_kind("llama")
    link(loaded, pad(ROWS)).at(LAST, lambda end: torch.ones_like(end))
    assert all(parameter.grad is None for parameter in loaded.model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())
