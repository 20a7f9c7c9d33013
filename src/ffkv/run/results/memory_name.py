"""How a memory is written: `L3.17` is memory 17 of layer 3; and an expert: `L3.e5`. All count from 0."""

import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer

NAME = re.compile(r"L?(\d{1,18})[./D](\d{1,18})", re.ASCII)
EXPERT = re.compile(r"L?(\d{1,18})[./]e(\d{1,18})", re.ASCII)
RANGE = re.compile(r"L?(?P<layer>\d{1,18})([./D](?P<first>\d{1,18})(-(?P<last>\d{1,18}))?)?", re.ASCII)


def memory_name(layer: int, memory: int) -> str:
    """Writes a memory: "L3.17"."""
    return f"L{layer}.{memory}"


def parse_memory_name(name: str) -> tuple[int, int]:
    """Reads a memory's name: "L3.17", "3.17", "3/17", or "L3D17" as LM-Debugger writes it.

    Returns the layer and the memory, both from 0. Raises UserError if the name has another form.
    """
    match = NAME.fullmatch(name.strip())
    if not match:
        raise UserError(f"{name!r} is not a memory. Write memory 17 of layer 3 as L3.17, 3.17 or 3/17.")
    return int(match[1]), int(match[2])


def expert_name(layer: int, expert: int) -> str:
    """Writes an expert: "L3.e5"."""
    return f"L{layer}.e{expert}"


def find_expert(name: str, layers: Sequence[Layer]) -> tuple[int, int]:
    """Reads an expert's name: "L3.e5", "3.e5" or "3/e5". Returns the layer and the expert, both from 0.

    `layers`: those of the model. Raises UserError if the name has another form, or the model has no such expert.
    """
    match = EXPERT.fullmatch(name.strip()) if isinstance(name, str) else None
    if not match:
        raise UserError(f"{name!r} is not an expert. Write expert 5 of layer 3 as L3.e5.")
    layer, expert = int(match[1]), int(match[2])
    check_memory(layer, 0, [each.memories for each in layers])
    if expert >= (count := len(layers[layer].experts)):
        there = f"experts 0 to {count - 1}" if count else "no experts that a router chooses"
        raise UserError(f"There is no expert {expert} in layer {layer}. The layer has {there}.")
    return layer, expert


def whole_number(name: str, given: Any) -> int:
    """Returns the whole number that an argument is. `name`: how the caller names it. Raises UserError if it is none."""
    try:
        return operator.index(given)
    except TypeError as error:
        raise UserError(f"{name} is {given!r}. Write a whole number, such as 3.") from error


def check_memory(layer: int, memory: int, memories: Sequence[int]) -> None:
    """Refuses a memory that the model does not have: a UserError says which exist. `memories`: their number per layer [layer]."""
    if not 0 <= layer < len(memories):
        raise UserError(f"There is no layer {layer}. The model has layers 0 to {len(memories) - 1}.")
    if not 0 <= memory < memories[layer]:
        raise UserError(
            f"There is no memory {memory} in layer {layer}. The layer has memories 0 to {memories[layer] - 1}."
        )


def parse_memory_range(text: str, memories: Sequence[int]) -> tuple[int, int, int]:
    """Reads the name of one memory, as `parse_memory_name`, of some ("L3.17-40") or of all of a layer ("L3").

    Returns the layer, the first memory and the last one, all from 0. `memories`: their number per layer [layer]. Raises UserError if
    the text has another form, or there is no such layer or memory.
    """
    match = RANGE.fullmatch(text.strip())
    if not match:
        raise UserError(
            f"{text!r} names no memories. Write L3.17 for one memory, L3.17-40 for memories 17 to 40, or L3 for a"
            " layer."
        )
    layer, first, last = match["layer"], match["first"] or "0", match["last"] or match["first"]
    check_memory(int(layer), int(first), memories)
    last = memories[int(layer)] - 1 if last is None else int(last)
    check_memory(int(layer), last, memories)
    if last < int(first):
        raise UserError(f"{text!r} ends before it begins. Write the lower number first: L{layer}.{last}-{first}.")
    return int(layer), int(first), last


def as_names(memories: str | Iterable[str] | None) -> list[str]:
    """Returns the names in an argument `memories`, as `collections.choose_memories` takes them. None stands for all memories.

    Raises UserError if it holds something else, or nothing.
    """
    if memories is None:
        return []
    names = [memories] if isinstance(memories, str) or not isinstance(memories, Iterable) else [*memories]
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"memories is {memories!r}. Write one name or more, such as 'L3.17' or ['L3.17', 'L4'].")
    return names
