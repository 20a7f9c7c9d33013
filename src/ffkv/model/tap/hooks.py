"""Hooks that are always removed, and the shapes that modules return."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def before(*pairs: tuple[nn.Module, Callable[[nn.Module, tuple, dict], Any]]) -> Iterator[None]:
    """While the block runs, each function is called as f(module, args, kwargs) before its module works."""
    handles = [module.register_forward_pre_hook(function, with_kwargs=True) for module, function in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def after(*pairs: tuple[nn.Module, Callable[[nn.Module, tuple, dict, Any], Any]]) -> Iterator[None]:
    """While the block runs, each function is called as f(module, args, kwargs, output) after its module has worked."""
    handles = [module.register_forward_hook(function, with_kwargs=True) for module, function in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hidden(output: Any) -> Tensor | None:
    """The hidden state in what a module returns: the tensor itself, or the first in a tuple or mapping; None: none."""
    if torch.is_tensor(output):
        return output
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((found for part in parts if (found := hidden(part)) is not None), None)


def with_hidden(output: Any, state: Tensor) -> Any:
    """What a module returned, with another tensor in the place of its hidden state."""
    if torch.is_tensor(output):
        return state
    if isinstance(output, Mapping):
        name = next(name for name, part in output.items() if hidden(part) is not None)
        return type(output)(**{**output, name: with_hidden(output[name], state)})
    at = next(number for number, part in enumerate(output) if hidden(part) is not None)
    return type(output)([*output[:at], with_hidden(output[at], state), *output[at + 1 :]])


def given(args: tuple, kwargs: dict) -> Tensor | None:
    """The first floating-point tensor among a module's arguments: its hidden state."""
    tensors = (value for value in (*args, *kwargs.values()) if torch.is_tensor(value) and value.is_floating_point())
    return next(tensors, None)


def forward(model: nn.Module, ids: Tensor) -> Any:
    """One pass over `ids` [sentence, token] without gradients and without a cache."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, relative to the largest absolute expected value. NaN where either is not finite."""
    found, expected = found.double(), expected.double()
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
