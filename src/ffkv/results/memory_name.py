"""How a memory is written: `L3.17` is memory 17 of layer 3. Both count from 0."""

import re
from collections.abc import Sequence

from ffkv.errors import UserError

NAME = re.compile(r"L?(\d{1,18})[./D](\d{1,18})", re.ASCII)


def memory_name(layer: int, memory: int) -> str:
    """Writes a memory: "L3.17"."""
    return f"L{layer}.{memory}"


def parse_memory_name(name: str) -> tuple[int, int]:
    """Reads a memory's name: "L3.17", "3.17", "3/17", or "L3D17" as LM-Debugger writes it.

    Returns:
        The layer and the memory, both from 0.
    Raises:
        UserError: the name has another form.
    """
    match = NAME.fullmatch(name.strip())
    if not match:
        raise UserError(f"{name!r} is not a memory. Write memory 17 of layer 3 as L3.17, 3.17 or 3/17.")
    return int(match[1]), int(match[2])


def check_memory(layer: int, memory: int, memories: Sequence[int]) -> None:
    """Refuses a memory that the model does not have. `memories`: number of memories per layer [layer].

    Raises:
        UserError: there is no such layer or memory; says which exist.
    """
    if not 0 <= layer < len(memories):
        raise UserError(f"There is no layer {layer}. The model has layers 0 to {len(memories) - 1}.")
    if not 0 <= memory < memories[layer]:
        raise UserError(
            f"There is no memory {memory} in layer {layer}. The layer has memories 0 to {memories[layer] - 1}."
        )
