"""Runs a model of half precision in float32, without a float32 copy of it."""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack

from torch import nn

from ffkv.model.placement.resident import HALF, in_float32
from ffkv.model.placement.spread import parts_of


@contextlib.contextmanager
def running_in_float32(model: nn.Module) -> Iterator[None]:
    """Inside the `with` statement, a model computes in float32: each of its parts is in float32 while it runs.

    Nothing changes in a model that is in float32. A part is a block, or a module outside of the blocks. One part at a time is held
    twice: as it is, and in float32.
    """
    if not any(tensor.dtype in HALF for tensor in (*model.parameters(), *model.buffers())):
        yield
        return
    parts, modules = parts_of(model), dict(model.named_modules())
    stacks: dict[nn.Module, ExitStack] = {}

    def begin(module: nn.Module, _: object) -> None:
        stacks.setdefault(module, ExitStack()).enter_context(in_float32(module))

    def end(module: nn.Module, *_: object) -> None:
        if module in stacks:
            stacks.pop(module).close()

    with ExitStack() as afterwards:
        # Parameters and buffers that belong to no module of their own are few and small.
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name in parts.outside and tensor.dtype in HALF:
                afterwards.callback(setattr, tensor, "data", tensor.data)
                tensor.data = tensor.data.float()
        for name in (*parts.outside, *parts.blocks):
            if (module := modules.get(name)) is not None:
                # The end is called even if a hook of ffkv ends the pass in the middle of the part.
                afterwards.callback(module.register_forward_pre_hook(begin).remove)
                afterwards.callback(module.register_forward_hook(end, always_call=True).remove)
        yield
