"""Weights of a spread model, which are elsewhere until their module runs.

Hooks of accelerate bring the weights of a module in front of each call, and take them away after it. In between, its
parameters are empty tensors on torch's meta device. Whoever reads a weight makes its module resident first.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

HALF = (torch.bfloat16, torch.float16)
_holders: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # of modules that are resident: how many want it


@contextlib.contextmanager
def resident(module: nn.Module) -> Iterator[None]:
    """Inside the `with` statement, the weights of a module are on the device that it runs on, and stay there."""
    hold(module)
    try:
        yield
    finally:
        release(module)


@contextlib.contextmanager
def in_float32(module: nn.Module) -> Iterator[None]:
    """Inside the `with` statement, a module is resident with its half-precision tensors in float32.

    Afterwards they have their own precision again, to the bit.
    """
    with resident(module):
        tensors = [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.dtype in HALF]
        original = [tensor.data for tensor in tensors]
        for tensor in tensors:
            tensor.data = tensor.data.float()
        try:
            yield
        finally:
            for tensor, data in zip(tensors, original, strict=True):
                tensor.data = data


def hold(module: nn.Module) -> None:
    """Makes a module resident until `release` has been called as often as `hold`."""
    for part in module.modules():
        if (hook := _hook(part)) is None or not (hook.offload or part in _holders):
            continue
        if part not in _holders:
            hook.pre_forward(part)
            hook.offload = False  # a call of the part now neither brings nor takes anything
        _holders[part] = _holders.get(part, 0) + 1


def release(module: nn.Module) -> None:
    """Ends what `hold` began."""
    for part in module.modules():
        if part not in _holders:
            continue
        _holders[part] -= 1
        if not _holders[part]:
            del _holders[part]
            hook = _hook(part)
            hook.offload = True
            hook.post_forward(part, None)


def stored_tensor(model: nn.Module, name: str) -> Tensor:
    """Returns a parameter or buffer of a model by its name, wherever it lies."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    tensor = getattr(module, attribute)
    return _hook(module).weights_map[attribute] if tensor.is_meta else tensor


def device_of(module: nn.Module) -> torch.device:
    """Returns the device that a module with weights runs on."""
    for part in module.modules():
        if (hook := _hook(part)) is not None and hook.execution_device is not None:
            return torch.device(hook.execution_device)
    return next(module.parameters()).device


def replace_forward(module: nn.Module, forward: Any) -> None:
    """Gives a module another `forward`. Hooks of accelerate stay around it."""
    setattr(module, "forward" if _hook(module) is None else "_old_forward", forward)


def _hook(module: nn.Module) -> Any:
    """Returns the hook of accelerate that aligns a module's devices; None if it has none."""
    return getattr(module, "_hf_hook", None)
