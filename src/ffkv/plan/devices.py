"""What a job that runs the model needs of a GPU, and where a model lies that does not fit."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from ffkv.base.settings import Settings
from ffkv.base.settings.section import memory_bytes
from ffkv.base.system.memory import free_memory
from ffkv.base.terminal import in_bytes
from ffkv.model.placement.spread import CPU, DISK, WEIGHTS_SHARE, Device, arrange, parts_of
from ffkv.plan.shape import Shape

CONTEXT = 5e8  # bytes that the driver and torch's own code take on a GPU


class DevicePlan(NamedTuple):
    """Memory of GPUs.

    Attributes:
        weights: bytes of the weights in their type.
        working: bytes of one job beside them: its batches, and the triggers of each key.
        blocks: number of blocks by device, such as "GPU 0" or "the CPU"; empty if no GPU is known.
    """

    weights: float
    working: float
    blocks: dict[str, int]

    def __str__(self) -> str:
        """One line for a person."""
        whole, weights = in_bytes(self.weights + self.working), in_bytes(self.weights)
        need = f"{whole} per job that runs the model ({weights} of weights)"
        where = ", ".join(f"{count} on {device}" for device, count in self.blocks.items())
        return f"{need}; blocks: {where}" if where else need


def plan_devices(form: nn.Module, settings: Settings, shape: Shape, gpus: Sequence[float]) -> DevicePlan:
    """What a job that runs the model needs of GPUs: the model `form` is on torch's meta device.

    `gpus` are the bytes of each GPU that a job has. `model.max_memory` comes before them.
    """
    itemsize = getattr(torch, shape.dtype).itemsize
    signs, named = 1 + (shape.signed and settings.triggers.negative), settings.model.max_memory
    working = CONTEXT + shape.batch_bytes(settings) + 8 * signs * settings.triggers.per_key * sum(shape.memories)
    given = {number: WEIGHTS_SHARE * size for number, size in enumerate(gpus)}
    given |= {int(name): memory_bytes(size) for name, size in named.items() if name != CPU}
    room: dict[Device, float] = {number: size for number, size in sorted(given.items()) if size}
    blocks: Counter[str] = Counter()
    if room and settings.model.device != CPU:
        room[CPU] = memory_bytes(named[CPU]) if CPU in named else WEIGHTS_SHARE * free_memory()
        parts = parts_of(form)
        places = arrange(parts, {**room, DISK: float("inf")}, bool(named))
        names = {**{gpu: f"GPU {gpu}" for gpu in room}, CPU: "the CPU", DISK: "the disk"}
        blocks.update(names[places[block]] for block in parts.blocks)
    return DevicePlan(float(shape.parameters * itemsize), working, dict(blocks))


def gpu_sizes() -> list[float]:
    """Bytes of each GPU of this machine."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [float(torch.cuda.get_device_properties(number).total_memory) for number in range(count)]


def warn_of_slow_devices(plan: DevicePlan, run: str) -> list[str]:
    """A warning if blocks do not fit on the GPUs; none if they do, or if no GPU is known."""
    slow = [f"{count} of its blocks are on {where}" for where, count in plan.blocks.items() if where[:3] != "GPU"]
    if not slow:
        return []
    remedy = "Give a job more GPUs, or larger ones."
    return [f"The GPUs do not hold the model of {run}: {' and '.join(slow)}, which is slow. {remedy}"]
