"""What is written into the residual stream: by the embedding, by attention, by memories. And runs in which some of it is patched.

What the head reads is their sum. Memories write y. Attention is all else that is added between o of two layers, biases too.
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
from ffkv.model.effects.reads import TOLERANCE, observe
from ffkv.model.tap.change import with_input, with_output
from ffkv.model.tap.tap import tap


class Writes(NamedTuple):
    """What is written at each token of a prompt, float32."""

    # By the embedding; then of each layer what it reads of its attention (all, or nothing in a parallel block), what attention
    # writes, and what memories write [1 + 3 layers, token, d].
    noted: Tensor
    end: Tensor  # what the head reads: of the copies of the prompt that ran [copy, token, d]

    @property
    def parts(self) -> Tensor:
        """What each writer writes: the embedding, then attention and memories of each layer [writer, token, d]. Their sum is `end`."""
        return self.noted[torch.arange(len(self.noted)) % 3 != 1]


def norms_before(loaded: LoadedModel, ids: Tensor) -> list[nn.Module] | str:
    """Returns the norm before each layer; or says why the writes of a model cannot be told apart. `ids`: some tokens [1, token]."""
    if loaded.anatomy.end != "o":
        return "more is written behind its last layer"
    found = observe(loaded, ids, loaded.anatomy.layers, np.arange(ids.shape[1])).reads.values()
    # A path of another number than 1, or of none, is no sum.
    sums = [each for each in found if each.plain and bool(((each.paths - 1).abs() < TOLERANCE).all())]
    norms = [each.norm for each in sums if each.norm is not None]
    return norms if len(norms) == len(found) else "not each layer reads a norm of the sum of all that is written before"


def run_writes(
    loaded: LoadedModel,
    norms: Sequence[nn.Module],
    ids: Tensor,
    to: Writes | None = None,
    at: slice = slice(None),
    patched: Tensor | None = None,
) -> Writes:
    """Runs the model on a prompt, and notes what is written. Or runs copies of it, in which some writers write something else.

    All that comes after works on that, and the memories of a layer on what its attention writes, if they read it.

    Args:
        norms: see `norms_before`.
        ids: the tokens of the prompt [1, token].
        to, at: what they write then, at some tokens: what is written on another prompt. Nothing is noted meanwhile.
        patched: which writers do so in each copy [copy, writer].
    """
    layers, shape = loaded.anatomy.layers, (1 if patched is None else len(patched), ids.shape[1])
    before, seen, noted = torch.empty(0), dict[str, Tensor](), list[Tensor]()

    def change(place: int, writer: int, own: Tensor) -> Tensor:
        """By what a write changes [copy, token, d]: by 0 in the copies in which it is not patched. `place`: among what is noted."""
        if to is None or patched is None:
            noted.append(own[0].float().to(loaded.device, copy=True))
            return torch.zeros_like(own)
        return torch.where(patched[:, writer, None, None].to(own.device), to.noted[place, at].to(own) - own, 0)

    def changed(of: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
        states = state.reshape(*shape, state.shape[-1]).clone()
        states[:, at] += of(states[:, at])
        return states.reshape(state.shape)

    def at_norm(layer: int, h: Tensor) -> Tensor:
        return change(1 + 3 * layer, 1 + 2 * layer, h - before.to(h.device))

    def at_output(layer: int, o: Tensor) -> Tensor:
        nonlocal before
        if layer < 0:
            by = change(0, 0, o)
        else:
            y = seen["y"][:, at].to(o.device)
            by = change(2 + 3 * layer, 1 + 2 * layer, o - before.to(o.device) - y)
            by = by + change(3 + 3 * layer, 2 + 2 * layer, y)
        before = o + by
        return by

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        seen[quantity] = tensor.float().clone()

    with contextlib.ExitStack() as stack:
        stack.enter_context(with_input(loaded.model, layers[0], partial(changed, partial(at_output, -1))))
        for n, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            stack.enter_context(with_input(loaded.model, layer, partial(changed, partial(at_norm, n)), norm))
            stack.enter_context(with_output(loaded.model, layer, partial(changed, partial(at_output, n))))
        run = stack.enter_context(tap(loaded.model, layers, "yo"))
        run(ids.expand(shape), receive)
    return Writes(torch.stack(noted) if noted else torch.empty(0), seen["o"].to(loaded.device))
