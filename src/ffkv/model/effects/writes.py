"""What is written into the residual stream: by the embedding, by attention, by memories. And runs in which some of it is patched.

What the head reads is their sum. Memories write y. Attention is all else that is added between o of two layers, biases too. If a
dictionary is read in the place of memories, its error writes, too: what it leaves of y. Units of the residual stream write all of y.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Anatomy, Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.reads import TOLERANCE, observe
from ffkv.model.keys_and_values import error_of
from ffkv.model.tap.change import with_input, with_output
from ffkv.model.tap.tap import tap

READ, EMBEDDING, ATTENTION, MEMORIES, ERROR = "read", "embedding", "attention", "memories", "error"
NOTHING = 1e-8  # of the variance: what rounding leaves, if a dictionary explains a layer entirely, has no row
Writer = tuple[int, str]  # a layer, and what writes there; -1 and the embedding


class Writes(NamedTuple):
    """What is written at each token of a prompt, float32."""

    # By each writer [token, d]; and by `READ` of each layer what it reads of its attention: all, or nothing in a parallel block.
    noted: dict[Writer, Tensor]
    end: Tensor  # what the head reads: of the copies of the prompt that ran [copy, token, d]

    @property
    def parts(self) -> Tensor:
        """What each writer writes, in the order of `writers_of` [writer, token, d]. Their sum is `end`."""
        return torch.stack([own for (_, what), own in self.noted.items() if what != READ])


def writers_of(anatomy: Anatomy) -> list[Writer]:
    """Returns all that write: the embedding, then of each layer attention, the error of its dictionary if it leaves any, and memories."""
    left = {place.layer: place.unexplained for place in anatomy.dictionaries if not place.of_stream}
    errors = {layer: [ERROR] for layer, share in left.items() if share > NOTHING}
    return [
        (-1, EMBEDDING),
        *((n, what) for n in range(len(anatomy.layers)) for what in (ATTENTION, *errors.get(n, ()), MEMORIES)),
    ]


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
    layers, writers = loaded.anatomy.layers, writers_of(loaded.anatomy)
    shape = 1 if patched is None else len(patched), ids.shape[1]
    before, seen, noted = torch.empty(0), dict[str, Tensor](), dict[Writer, Tensor]()

    def change(layer: int, what: str, own: Tensor) -> Tensor:
        """By what a write changes [copy, token, d]: by 0 in the copies in which it is not patched."""
        if to is None or patched is None:
            noted[layer, what] = own[0].float().to(loaded.device, copy=True)
            return torch.zeros_like(own)
        does = patched[:, writers.index((layer, ATTENTION if what == READ else what)), None, None]
        return torch.where(does.to(own.device), to.noted[layer, what][at].to(own) - own, 0)

    def at_norm(layer: int, h: Tensor) -> Tensor:
        return change(layer, READ, h - before.to(h.device))

    def at_output(layer: int, o: Tensor) -> Tensor:
        nonlocal before
        if layer < 0:
            by = change(layer, EMBEDDING, o)
        else:
            y, s = seen["y"][:, at].to(o.device), seen.pop("s", None)
            by = change(layer, ATTENTION, o - before.to(o.device) - y)
            if (layer, ERROR) in writers:
                error = error_of(loaded.model, layers[layer], seen["u"], s)[:, at].to(y)
                by, y = by + change(layer, ERROR, error), y - error
            by = by + change(layer, MEMORIES, y)
        before = o + by
        return by

    changed = partial(_changed, shape, at)

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        seen[quantity] = tensor.float().clone()

    with contextlib.ExitStack() as stack:
        stack.enter_context(with_input(loaded.model, layers[0], partial(changed, partial(at_output, -1))))
        for n, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            stack.enter_context(with_input(loaded.model, layer, partial(changed, partial(at_norm, n)), norm))
            stack.enter_context(with_output(loaded.model, layer, partial(changed, partial(at_output, n))))
        run = stack.enter_context(tap(loaded.model, layers, "yo" if len(writers) == 1 + 2 * len(layers) else "suyo"))
        run(ids.expand(shape), receive)
    return Writes(noted, seen["o"].to(loaded.device))


def patched_writes(
    loaded: LoadedModel, norms: Sequence[nn.Module], ids: Tensor, to: Writes, at: slice, patched: Tensor, room: int
) -> Tensor:
    """Returns what the head reads of copies of a prompt, see `run_writes` [copy, token, d]. `room`: most tokens of a pass."""
    at_once = patched.split(max(1, room // ids.shape[1]))
    return torch.cat([run_writes(loaded, norms, ids, to, at, each).end for each in at_once])


def _changed(shape: tuple[int, int], at: slice, by: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
    """Returns a state with what `by` makes of it added at some tokens. `shape`: copies and tokens."""
    states = state.reshape(*shape, state.shape[-1]).clone()
    states[:, at] += by(states[:, at])
    return states.reshape(state.shape)
