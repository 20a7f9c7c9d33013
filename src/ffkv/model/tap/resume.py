"""Runs the model again from the output of one of its layers: the blocks before it do not run."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer
from ffkv.model.tap.hooks import (
    after,
    before,
    counting_repeats,
    hidden_input,
    in_own_repeat,
    known_state,
    replace_hidden_argument,
    replace_hidden_state,
)


@contextlib.contextmanager
def noting_returns(model: nn.Module, layers: Sequence[Layer]) -> Iterator[dict[str, Any]]:
    """Inside the `with` statement, a pass notes what blocks of some layers return, by name, without hidden states."""
    returns: dict[str, Any] = {}

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        returns[name] = replace_hidden_state(output, torch.empty(0))

    with after(
        *[(model.get_submodule(name), partial(note, name)) for name in dict.fromkeys(layer.block for layer in layers)]
    ):
        yield returns


@contextlib.contextmanager
def with_output(model: nn.Module, layer: Layer, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the `with` statement, o of a layer becomes `change(o)`. All that comes after works on it.

    If the block runs several times, o changes in the layer's own repeat only. `change` gets o as the model has it [...,
    d], and returns a tensor of its shape.
    """
    repeats, counting = counting_repeats(model, [layer.block])

    def of_input(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        o = hidden_input(args, kwargs)
        changed = change(o)
        if layer.post_norm:
            return replace_hidden_argument(args, kwargs, changed)
        o.copy_(changed)  # in place: a block that goes on behind o adds what it makes of o to o itself
        return args, kwargs

    def of_output(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        return replace_hidden_state(output, change(known_state(output)))

    when, name, hook = (before, layer.sum_module, of_input) if layer.sum_module else (after, layer.block, of_output)
    with before(*counting), when((model.get_submodule(name), partial(in_own_repeat, layer, repeats, hook))):
        yield


@contextlib.contextmanager
def resumed(
    model: nn.Module, layers: Sequence[Layer], layer: Layer, states: Tensor, returns: Mapping[str, Any]
) -> Iterator[None]:
    """Inside the `with` statement, forward passes begin with o of a layer. The blocks up to the layer do not run.

    Only the block of a layer that continues after o runs, too: a norm at its end reads o. The later blocks must read
    nothing but o of the layer: whoever calls must try this. `layers`: all of the model. `states`: o of the layer
    [sentence, token, d]. `returns`: what the blocks return, from `noting_returns`.
    """
    skipped = {(each.block, each.repeat) for each in layers[: layer.index + (not layer.sum_module)]}
    blocks = {block for block, _ in skipped}
    repeats, counting = counting_repeats(model, blocks)
    with contextlib.ExitStack() as stack:
        stack.enter_context(before(*counting))
        for name in blocks:
            block = model.get_submodule(name)
            stack.enter_context(
                _instead_of(block, partial(_pass_on, block.forward, name, skipped, repeats, returns[name]))
            )
        stack.enter_context(with_output(model, layer, lambda o: states.to(o.device, o.dtype).reshape(o.shape)))
        yield


def _pass_on(
    own: Callable,
    name: str,
    skipped: set[tuple[str, int]],
    repeats: Counter[str],
    returned: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Stands for the forward function of a block: where it is skipped, it returns its input in the form of its output."""
    if (name, repeats[name] - 1) not in skipped:
        return own(*args, **kwargs)
    return replace_hidden_state(returned, hidden_input(args, kwargs))


@contextlib.contextmanager
def _instead_of(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the `with` statement, a module has another forward function. Its hooks still run."""
    own = module.__dict__.get("forward")  # a function of accelerate, which fetches the weights that lie elsewhere
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own
