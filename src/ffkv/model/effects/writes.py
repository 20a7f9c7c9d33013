"""What is written into the residual stream: by the embedding, by attention, by memories. And runs in which some of it is patched.

What the head reads is the sum of all writes. The memories of a layer write y. What else is added between o of the layer before
and o of this one is called attention: other blocks, and the biases of attention, are in it.
"""

import contextlib
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.reads import by_sums_alone, paths_into
from ffkv.model.effects.rerun import TOLERANCE
from ffkv.model.tap.change import with_input, with_output
from ffkv.model.tap.tap import flat, observe, tap


class Writes(NamedTuple):
    """What is written at each token of a prompt, float32.

    Writers are in the order in which they write: the embedding, then attention and memories of each layer.
    """

    parts: Tensor  # [writer, token, d]
    end: Tensor  # what the head reads, their sum [token, d]


def read_writes(loaded: LoadedModel, ids: Tensor) -> Writes:
    """Runs the model on ids [1, token], and reads what is written. See `why_not_apart` for the models of which it can be told."""
    parts: list[Tensor] = []

    def note(state: Tensor) -> Tensor:
        parts.append(flat(state).float().to(loaded.device, copy=True))
        return state

    with with_input(loaded.model, loaded.anatomy.layers[0], note):
        seen = observe(loaded.model, loaded.anatomy.layers, ids, "yo")
    before = parts[0]
    for states in seen:
        y, o = (flat(states[quantity]).to(loaded.device) for quantity in "yo")
        parts += [o - before - y, y]
        before = o
    return Writes(torch.stack(parts), before)


def patch_writes(loaded: LoadedModel, ids: Tensor, to: Tensor, patched: Tensor) -> Tensor:
    """Runs copies of a prompt, in each of which some writers write something else at the last tokens.

    All other writers write what they make of that.

    Args:
        ids: the tokens of the prompt [1, token].
        to: what they write then at the last tokens [writer, token, d].
        patched: which writers do so in each copy [copy, writer].
    Returns:
        What the head reads at the last token of each copy, float32 [copy, d].
    """
    layers, shape, tokens = loaded.anatomy.layers, (len(patched), ids.shape[1]), to.shape[1]
    before, seen = torch.empty(0), dict[str, Tensor]()

    def toward(writer: int, own: Tensor) -> Tensor:
        """By what a write changes [copy, token, d]: by 0 in the copies in which it is not patched."""
        return torch.where(patched[:, writer, None, None].to(own.device), to[writer].to(own) - own, 0)

    def change(state: Tensor, layer: Layer | None = None) -> Tensor:
        nonlocal before
        states = state.reshape(*shape, state.shape[-1]).clone()
        own = states[:, -tokens:]
        if layer is None:
            own += toward(0, own)
        else:
            y, writer = seen["y"][:, -tokens:].to(own.device), 1 + 2 * layer.index
            own += toward(writer, own - before.to(own.device) - y) + toward(writer + 1, y)
        before = own
        return states.reshape(state.shape)

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        seen[quantity] = tensor.float().clone()

    with contextlib.ExitStack() as stack:
        stack.enter_context(with_input(loaded.model, layers[0], change))
        for layer in layers:
            stack.enter_context(with_output(loaded.model, layer, partial(change, layer=layer)))
        run = stack.enter_context(tap(loaded.model, layers, "yo"))
        run(ids.expand(shape), receive)
    return seen["o"][:, -1].to(loaded.device)


def why_not_apart(loaded: LoadedModel, ids: Tensor) -> str:
    """Says why the writes of a model cannot be told apart; "" if what the head reads is their sum, as they are. `ids`: [1, token]."""
    layers, ends = loaded.anatomy.layers, list[Tensor]()
    if loaded.anatomy.end != "o":
        return "other blocks follow the last layer"

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is layers[-1]:
            ends.append(tensor)

    with by_sums_alone(loaded.model, layers) as zeros, tap(loaded.model, layers, "o") as run:
        run(ids, receive, gradients=True)
    # A path of another number than 1, or of none, is no sum.
    apart = bool(((paths_into(flat(ends[0]), zeros) - 1).abs() < TOLERANCE).all())
    return (
        "" if apart else "what blocks write is not only added, but also multiplied, or normed, before the head reads it"
    )
