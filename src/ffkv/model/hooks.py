"""Hooks that are always removed, and the shapes that modules return."""

import contextlib
from collections.abc import Callable, Iterator
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


def hidden(output: Any) -> Tensor:
    """The hidden state in what a module returns: the tensor itself, or the first of a tuple."""
    return output if torch.is_tensor(output) else output[0]


def given(args: tuple, kwargs: dict) -> Tensor:
    """The first floating-point tensor among a module's arguments: its hidden state."""
    return next(value for value in (*args, *kwargs.values()) if torch.is_tensor(value) and value.is_floating_point())


def forward(model: nn.Module, ids: Tensor) -> Any:
    """One pass over `ids` [sentence, token] without gradients and without a cache."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, relative to the largest absolute expected value. NaN where either is not finite."""
    found, expected = found.double(), expected.double()
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
