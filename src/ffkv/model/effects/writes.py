"""What is written into the residual stream: by the embedding, by attention, by memories. And runs in which some of it is patched.

What the head reads is the sum of all writes. The memories of a layer write y. What else is added between o of the layer before
and o of this one is called attention: other blocks, and the biases of attention, are in it.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects import reads
from ffkv.model.effects.rerun import TOLERANCE
from ffkv.model.tap.change import with_input, with_output
from ffkv.model.tap.tap import flat, observe, tap


class Writes(NamedTuple):
    """What is written at each token of a prompt, float32.

    Writers are in the order in which they write: the embedding, then attention and memories of each layer.
    """

    parts: Tensor  # [writer, token, d]
    read: Tensor  # what of its attention a layer reads: all, or nothing in a parallel block [layer, token, d]
    end: Tensor  # what the head reads, the sum of `parts` [token, d]


def norms_before(loaded: LoadedModel, ids: Tensor) -> list[nn.Module] | str:
    """Returns the norm before each layer; or says why the writes of a model cannot be told apart. `ids`: some tokens [1, token]."""
    layers, ends = loaded.anatomy.layers, list[Tensor]()
    if loaded.anatomy.end != "o":
        return "other blocks follow the last layer"

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is layers[-1]:
            ends.append(flat(tensor))  # here, because commands compute no gradients elsewhere

    with reads.by_sums_alone(loaded.model, layers) as zeros, tap(loaded.model, layers, "o") as run:
        run(ids, receive, gradients=True)
    found = reads.observe(loaded, ids, layers, np.arange(ids.shape[1])).reads.values()
    paths = torch.cat([reads.paths_into(ends[0], zeros), *(each.paths for each in found)])
    if not bool(((paths - 1).abs() < TOLERANCE).all()):  # also NaN: there is no path
        return "what blocks write is not only added, but also multiplied, or normed, before it is read"
    norms = [each.norm for each in found if each.norm is not None and each.plain]
    return norms if len(norms) == len(layers) else "no norm that works token by token is right before each layer"


def read_writes(loaded: LoadedModel, norms: Sequence[nn.Module], ids: Tensor) -> Writes:
    """Runs the model on ids [1, token], and reads what is written. `norms`: see `norms_before`."""
    layers, parts, heard = loaded.anatomy.layers, list[Tensor](), list[Tensor]()

    def note(into: list[Tensor], state: Tensor) -> Tensor:
        into.append(flat(state).float().to(loaded.device, copy=True))
        return state

    with contextlib.ExitStack() as stack:
        stack.enter_context(with_input(loaded.model, layers[0], partial(note, parts)))
        for layer, norm in zip(layers, norms, strict=True):
            stack.enter_context(with_input(loaded.model, layer, partial(note, heard), norm))
        seen = observe(loaded.model, layers, ids, "yo")
    before, read = parts[0], list[Tensor]()
    for states, h in zip(seen, heard, strict=True):
        y, o = (flat(states[quantity]).to(loaded.device) for quantity in "yo")
        parts += [o - before - y, y]
        read.append(h - before)
        before = o
    return Writes(torch.stack(parts), torch.stack(read), before)


def patch_writes(
    loaded: LoadedModel, norms: Sequence[nn.Module], ids: Tensor, to: Writes, tokens: int, patched: Tensor
) -> Tensor:
    """Runs copies of a prompt, in each of which some writers write something else at the last tokens.

    All that comes after works on it, and the memories of a layer on what its attention writes, if they read that.

    Args:
        norms: see `norms_before`.
        ids: the tokens of the prompt [1, token].
        to: what they write then, at the last tokens of another prompt.
        tokens: number of these tokens.
        patched: which writers do so in each copy [copy, writer].
    Returns:
        What the head reads at the last token of each copy, float32 [copy, d].
    """
    layers, shape = loaded.anatomy.layers, (len(patched), ids.shape[1])
    before, seen = torch.empty(0), dict[str, Tensor]()

    def toward(writer: int, wanted: Tensor, own: Tensor) -> Tensor:
        """By what a write changes [copy, token, d]: by 0 in the copies in which it is not patched."""
        return torch.where(patched[:, writer, None, None].to(own.device), wanted[-tokens:].to(own) - own, 0)

    def changed(of: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
        states = state.reshape(*shape, state.shape[-1]).clone()
        states[:, -tokens:] += of(states[:, -tokens:])
        return states.reshape(state.shape)

    def at_embedding(own: Tensor) -> Tensor:
        nonlocal before
        change = toward(0, to.parts[0], own)
        before = own + change
        return change

    def at_norm(number: int, own: Tensor) -> Tensor:
        return toward(1 + 2 * number, to.read[number], own - before.to(own.device))

    def at_output(number: int, own: Tensor) -> Tensor:
        nonlocal before
        y, (attention, memories) = seen["y"][:, -tokens:].to(own.device), to.parts[1 + 2 * number : 3 + 2 * number]
        change = toward(1 + 2 * number, attention, own - before.to(own.device) - y) + toward(
            2 + 2 * number, memories, y
        )
        before = own + change
        return change

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        seen[quantity] = tensor.float().clone()

    with contextlib.ExitStack() as stack:
        stack.enter_context(with_input(loaded.model, layers[0], partial(changed, at_embedding)))
        for number, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            stack.enter_context(with_input(loaded.model, layer, partial(changed, partial(at_norm, number)), norm))
            stack.enter_context(with_output(loaded.model, layer, partial(changed, partial(at_output, number))))
        run = stack.enter_context(tap(loaded.model, layers, "yo"))
        run(ids.expand(shape), receive)
    return seen["o"][:, -1].to(loaded.device)
