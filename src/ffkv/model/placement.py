"""Where the weights of a model lie: GPUs first, then the CPU's memory, then the disk.

Only whole blocks are spread, so that no layer is on two devices. What is outside of the blocks (the embeddings, the
last norm, the output embedding) is on the first device. A block whose weights are in the CPU's memory or on the disk
runs on the first device, too, which has room for one such block.

Hooks of accelerate bring the weights of a module in front of each call, and take them away after it. In between, its
parameters are empty tensors on torch's meta device. Whoever reads a weight makes its module resident first. A model of
half precision runs in float32 without a float32 copy of it: one part at a time is in float32.
"""

import contextlib
import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.base.fault import free_memory
from ffkv.base.settings.section import memory_bytes

HALF = (torch.bfloat16, torch.float16)
# Of modules that are resident: how many want it.
_holders: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
WEIGHTS_SHARE = 0.8  # of free memory that weights may take: the rest is for states, batches and the library
CPU, DISK = "cpu", "disk"
Device = int | str  # the number of a GPU, "cpu" or "disk"


class Placement(NamedTuple):
    """Where a model lies."""

    device: str  # the torch device that reads the ids
    # the device of each part of the model, by its name; {"": device} if all is on one device
    device_map: dict[str, Device]
    # where weights are stored that are on the disk in no other form; "" if none are on the disk
    offload_folder: str = ""

    @property
    def is_spread(self) -> bool:
        """Whether the model is on several devices, or on the disk."""
        return "" not in self.device_map


ON_CPU = Placement(CPU, {"": CPU})


class Parts(NamedTuple):
    """The parts of a model, with their sizes in bytes."""

    outside: dict[str, int]  # what is not in a block, by name
    blocks: dict[str, int]  # the items of the outermost module lists, by name, in order


def place(make_form: Callable[[], nn.Module], device: str, spreads: bool, max_memory: Mapping[str, str]) -> Placement:
    """Decides where a model lies. Raises UserError if this machine does not have a GPU that `max_memory` names.

    `make_form`: makes the model on torch's meta device, in the type that it will have. `device`: the torch device of a model that
    is not spread, see `room_on`. `spreads`: whether it is spread if it does not fit. `max_memory`: the setting
    `model.max_memory`. If it is not empty, the model is spread over what it allows.
    """
    one = Placement(device, {"": device})
    if not max_memory and not spreads:
        return one
    room = room_on(device, spreads, max_memory)
    first = next(iter(room))
    parts = parts_of(make_form())
    fits = sum(parts.outside.values()) + sum(parts.blocks.values()) <= room[first]
    if fits and not max_memory:
        return one
    device_map = spread(parts, room)
    if set(device_map.values()) == {first}:
        return one if not max_memory else Placement(_name(first), {"": _name(first)})
    logging.getLogger("accelerate").setLevel(logging.ERROR)  # it warns of weights that are elsewhere
    folder = tempfile.mkdtemp(prefix="ffkv-offload-") if DISK in device_map.values() else ""
    return Placement(_name(first), device_map, folder)


def room_on(device: str, spreads: bool, max_memory: Mapping[str, str]) -> dict[Device, float]:
    """Returns how many bytes of weights each device takes, the first device first.

    `device`: a torch device: "cuda" means all GPUs of the job, "cuda:1" this one, "cpu" none. `spreads`: whether the other
    GPUs of the job follow this one. A device that `max_memory` does not name takes a share of what is free.
    """
    count = torch.cuda.device_count() if device.startswith("cuda") else 0
    named_gpus = [int(device[5:])] if device[5:] else []
    others = range(count) if spreads or not named_gpus else ()
    gpus = [*named_gpus, *(gpu for gpu in others if gpu not in named_gpus)]
    if device != CPU and (missing := [name for name in max_memory if name != CPU and int(name) >= count]):
        raise UserError(f"model.max_memory names the GPU {missing[0]}, but torch finds {count} GPUs on this machine.")
    room: dict[Device, float] = {}
    for gpu in gpus:
        named = max_memory.get(str(gpu))
        room[gpu] = memory_bytes(named) if named else WEIGHTS_SHARE * torch.cuda.mem_get_info(gpu)[0]
    # A GPU that is given no memory is not used.
    room = {gpu: size for gpu, size in room.items() if size}
    room[CPU] = memory_bytes(max_memory[CPU]) if CPU in max_memory else WEIGHTS_SHARE * free_memory()
    return {**room, DISK: float("inf")}


def parts_of(model: nn.Module) -> Parts:
    """Returns the parts of a model, with their sizes. A tensor that several parts share counts in the first of them."""
    outside: dict[str, int] = {}
    blocks: dict[str, int] = {}
    seen: set[int] = set()

    def visit(name: str, module: nn.Module) -> None:
        if not any(isinstance(part, nn.ModuleList) for part in module.modules()):
            outside[name] = _bytes([*module.parameters(), *module.buffers()], seen)
            return
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}".lstrip(".")
            if isinstance(module, nn.ModuleList):
                blocks[path] = _bytes([*child.parameters(), *child.buffers()], seen)
            else:
                visit(path, child)
        own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        outside.update({f"{name}.{key}".lstrip("."): _bytes([tensor], seen) for key, tensor in own})

    visit("", model)
    return Parts(outside, blocks)


def _bytes(tensors: list[torch.Tensor], seen: set[int]) -> int:
    new = {id(tensor): tensor for tensor in tensors if id(tensor) not in seen}
    seen.update(new)
    return sum(tensor.numel() * tensor.element_size() for tensor in new.values())


def spread(parts: Parts, room: Mapping[Device, float]) -> dict[str, Device]:
    """Chooses the device of each part, from the bytes of each device. The last one takes everything.

    Blocks fill the devices in their order. If the GPUs hold them all, each GPU takes about as many.
    """
    first, largest = next(iter(room)), max(parts.blocks.values(), default=0)
    outside, inside = sum(parts.outside.values()), sum(parts.blocks.values())
    left = dict(room)
    gpus = [device for device in room if isinstance(device, int)]
    even = (outside + inside) / max(len(gpus), 1) + largest
    shared: dict[Device, float] = {gpu: min(room[gpu], even) for gpu in gpus}
    if gpus and outside + inside <= sum(max(size - largest, 0) for size in shared.values()) + largest:
        left |= shared
    elif first == CPU or outside + inside > sum(room[gpu] for gpu in gpus):
        left[first] -= largest  # a block from elsewhere runs here
    left[first] -= outside
    device_map: dict[str, Device] = dict.fromkeys(parts.outside, first)
    devices = iter(room)
    device = next(devices)
    for name, size in parts.blocks.items():
        while size > left[device]:
            device = next(devices)
        left[device] -= size
        device_map[name] = device
    return device_map


def keep_blocks_whole(model: nn.Module, placement: Placement) -> None:
    """Lets a block bring all its weights before it runs, and take them away after it.

    The hooks of accelerate alone bring the weights of one matrix at a time. Code of a block that uses the weight of a
    module inside, without a call of that module, would then find nothing.
    """
    for name, device in placement.device_map.items():
        if device not in (DISK, CPU) or (device == CPU and placement.device == CPU):
            continue
        block = model.get_submodule(name)
        block.register_forward_pre_hook(lambda module, _: hold(module))
        # Called even if a hook of ffkv ends the pass in the middle of the block.
        block.register_forward_hook(lambda module, *_: release(module), always_call=True)
    if placement.offload_folder:
        weakref.finalize(model, shutil.rmtree, placement.offload_folder, ignore_errors=True)


def dispatch(model: Any, placement: Placement) -> Any:
    """Brings a model that was loaded on the CPU to its placement."""
    if not placement.is_spread:
        return model.to(placement.device)
    from accelerate import dispatch_model

    return dispatch_model(model, placement.device_map, offload_dir=placement.offload_folder or None)


def _name(device: Device) -> str:
    return f"cuda:{device}" if isinstance(device, int) else CPU


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
    return getattr(module, "_hf_hook", None)  # of accelerate, which aligns the devices


@contextlib.contextmanager
def running_in_float32(model: nn.Module) -> Iterator[None]:
    """Inside the `with` statement, a model computes in float32: each of its parts is in float32 while it runs.

    A model in float32 does not change. A part is a block, or a module outside of the blocks. One at a time is held twice.
    """
    if not any(tensor.dtype in HALF for tensor in (*model.parameters(), *model.buffers())):
        yield
        return
    parts, modules = parts_of(model), dict(model.named_modules())
    stacks: dict[nn.Module, contextlib.ExitStack] = {}

    def begin(module: nn.Module, _: object) -> None:
        stacks.setdefault(module, contextlib.ExitStack()).enter_context(in_float32(module))

    def end(module: nn.Module, *_: object) -> None:
        if module in stacks:
            stacks.pop(module).close()

    with contextlib.ExitStack() as afterwards:
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
