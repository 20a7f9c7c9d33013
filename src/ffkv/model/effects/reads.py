"""What feed-forward layers read of the residual stream, and how what is written before them comes there.

One pass tells it without the name of a model's class. In this pass no gradient goes through a module that holds no other module.
So what a layer reads depends on what earlier layers write through the residual stream alone.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.placement import in_float32, resident
from ffkv.model.tap import hooks
from ffkv.model.tap.change import with_input, with_output
from ffkv.model.tap.tap import flat, tap

TOLERANCE = 1e-4  # relative: float32 rounding of another shape of batch is 1e-6, a wrong norm is off by more than 1e-2


@dataclass
class Read:
    """What one feed-forward layer reads on a prompt."""

    layer: Layer
    norm: nn.Module | None = None  # N, the norm before the layer; None: the layer reads the residual itself
    h: Tensor = field(default_factory=lambda: torch.empty(0))  # what N reads [token, d]
    x: Tensor = field(default_factory=lambda: torch.empty(0))  # what it returns, and the layer reads [token, d]
    # by what the embedding, and o of each earlier layer, are multiplied on their way into h [layer + 1, d]; NaN where something
    # else than a multiplication lies between
    paths: Tensor = field(default_factory=lambda: torch.empty(0))
    outputs: dict[str, Tensor] = field(default_factory=dict)  # of its first matrices, by name [token, .]
    routers: dict[int, "Router"] = field(default_factory=dict)  # by the number of the second matrix that is their bank

    def normed(self, states: Tensor) -> Tensor:
        """N of vectors [n, d], with their gradients."""
        if self.norm is None:
            return states
        with in_float32(self.norm):
            return flat(hooks.known_state(self.norm(states[None])))

    @property
    def plain(self) -> bool:
        """Whether all that is written before the layer comes into h, and N makes x of h token by token."""
        return bool(self.paths.isfinite().all()) and hooks.relative_error(self.normed(self.h), self.x) < TOLERANCE


class Router(NamedTuple):
    """A matrix whose rows, one per expert, give the logits that experts are chosen by."""

    module: Any  # its `weight` [expert, d], and perhaps its `bias` [expert]
    state: Tensor  # what it reads [token, d]


class Pass(NamedTuple):
    """One pass over a prompt."""

    embedding: Tensor  # what the block of the first layer reads [token, d]
    states: dict[tuple[int, str], Tensor]  # m, b, s, u and y by layer and letter, as the tap reads them [position, .]
    reads: dict[int, Read]  # what the wanted layers read, by the number of the layer


def observe(loaded: LoadedModel, ids: Tensor, wanted: Sequence[Layer], positions: np.ndarray) -> Pass:
    """Runs the model on ids [1, token] up to the last of the `wanted` layers, which are ascending, and reads them.

    `positions`: the tokens at which m, b, s, u and y of all layers on the way are kept.
    """
    model, layers = loaded.model, loaded.anatomy.layers[: wanted[-1].index + 1]
    reads, zeros = {layer.index: Read(layer) for layer in wanted}, list[Tensor]()
    embedding: list[Tensor] = []
    states: dict[tuple[int, str], Tensor] = {}

    def with_zeros(state: Tensor) -> Tensor:
        zeros.append(torch.zeros_like(state, requires_grad=True))
        return state + zeros[-1]

    def on_embedding(state: Tensor) -> Tensor:
        embedding.append(flat(state).detach().clone())
        return with_zeros(state)

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        states[layer.index, quantity] = tensor[0, positions].detach().clone()

    model.requires_grad_(False)
    repeats, counting = hooks.counting_repeats(model, [layer.block for layer in wanted])
    leaves = [module for module in model.modules() if not any(module.children())]
    with contextlib.ExitStack() as stack:
        stack.enter_context(hooks.before(*counting))
        detached = [(module, lambda *call: hooks.map_tensors(Tensor.detach, call[-1])) for module in leaves]
        stack.enter_context(hooks.after(*detached))
        stack.enter_context(with_input(model, layers[0], on_embedding))
        for layer in layers[:-1]:
            stack.enter_context(with_output(model, layer, with_zeros))
        for read in reads.values():
            for when, module, hook, *given in _hooks(model, read, loaded.anatomy.width):
                own = partial(hooks.in_own_repeat, read.layer, repeats, hook, read, *given)
                stack.enter_context(when((module, own)))
        run = stack.enter_context(tap(model, layers, "mbsuy"))
        run(ids, receive, gradients=True)
    for read in reads.values():
        both = read.layer.index in loaded.anatomy.of_stream  # what the layer writes is a part of what it reads
        read.paths = _paths(read.h.detach() if both else read.h, zeros[: read.layer.index + 1])
        read.h = read.h.detach()
        read.routers = {number: own for number, own in read.routers.items() if torch.equal(own.state, read.x)}
    return Pass(embedding[0], states, reads)


def _hooks(model: nn.Module, read: Read, width: int) -> Iterator[tuple]:
    """Yields the hooks that read one layer: `before` or `after`, a module, the hook, and what it is given behind `read`."""
    layer, heard = read.layer, list[tuple[nn.Module, Tensor, Tensor]]()
    inside = [*model.get_submodule(layer.block).modules()]
    yield from ((hooks.after, module, hear, heard) for module in inside)
    yield hooks.before, model.get_submodule(layer.second_matrices[0].first_matrices[0]), find_norm, heard
    for number, matrix in enumerate(layer.second_matrices):
        if matrix.experts:
            size = (matrix.experts, width)
            able = [module for module in inside if getattr(getattr(module, "weight", None), "shape", ()) == size]
            yield from ((hooks.after, module, _on_router, number) for module in able)
        else:
            yield from ((hooks.after, model.get_submodule(name), _on_output, name) for name in matrix.first_matrices)


def hear(read: Read, heard: list, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
    """Notes what a module made of the hidden state, until x is there."""
    state, made = hooks.hidden_argument(args, kwargs), hooks.hidden_state(output)
    if state is not None and made is not None and not read.x.numel():
        heard.append((module, flat(state), flat(made).detach()))


def find_norm(read: Read, heard: list, module: nn.Module, args: tuple, kwargs: dict) -> None:
    """Finds the norm before the layer: the first module that made x of something else."""
    x = flat(hooks.hidden_input(args, kwargs))
    read.h, read.x = x.clone(), x.detach().clone()
    for norm, state, made in heard:
        if made.shape == state.shape == x.shape and torch.equal(made, x) and not torch.equal(state, x):
            read.norm, read.h = norm, state.clone()
            break
    heard.clear()


def _on_output(read: Read, name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
    read.outputs[name] = flat(hooks.known_state(output)).detach().clone()


def _on_router(read: Read, number: int, module: Any, args: tuple, kwargs: dict, output: Any) -> None:
    """Notes a module as a possible router of a bank if it returns logits W x + b, or their probabilities."""
    state = hooks.hidden_argument(args, kwargs)
    if state is None or state.shape[-1] != module.weight.shape[1]:
        return
    with resident(module):
        bias = 0 if getattr(module, "bias", None) is None else module.bias
        logits = flat(state) @ module.weight.to(state.dtype).T + bias
    told = [flat(each) for each in (output if isinstance(output, tuple) else (output,)) if torch.is_tensor(each)]
    known = (logits, logits.softmax(-1), logits.sigmoid())
    if any(
        each.shape == logits.shape and hooks.relative_error(each, own) < TOLERANCE for each in told for own in known
    ):
        read.routers[number] = Router(module, flat(state).detach().clone())


def _paths(h: Tensor, zeros: Sequence[Tensor]) -> Tensor:
    """Returns by what each of some states is multiplied on its way into h, see `Read.paths`, float64, on the CPU."""
    paths = torch.full((len(zeros), h.shape[-1]), torch.nan, dtype=torch.float64)
    if not h.requires_grad:
        return paths
    random = torch.randn(h.shape, generator=torch.Generator().manual_seed(0)).to(h)
    along = torch.ones_like(h), random
    found = [torch.autograd.grad(h, zeros, w, retain_graph=True, allow_unused=True) for w in along]
    for number, (ones, others) in enumerate(zip(*found, strict=True)):
        if ones is not None:
            path, told = flat(ones)[0], flat(others)
            if hooks.relative_error(told, path * random.to(told)) < TOLERANCE:
                paths[number] = path.double().cpu()
    return paths
