"""Which memories are switched off or scaled."""

import math
from collections.abc import Sequence

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Anatomy
from ffkv.run.results.memory_name import check_memory, memory_name, parse_memory_name


def read_changes(off: Sequence[str], scale: Sequence[str], anatomy: Anatomy) -> dict[tuple[int, int], float]:
    """Returns the factor of each memory (its layer and its number) that is changed, in the order of their names.

    `off` and `scale`: see `TraceOptions`.

    Raises:
        UserError: a name or a factor is malformed, there is no such memory, or a memory is changed twice.
    """
    factors: dict[tuple[int, int], float] = {}
    for name, factor in [*((name, 0.0) for name in off), *map(_named_factor, scale)]:
        place = parse_memory_name(name)
        check_memory(*place, [layer.memories for layer in anatomy.layers])
        if place in factors:
            raise UserError(f"{memory_name(*place)} is changed twice. Name each memory once.")
        if not math.isfinite(factor):
            raise UserError(f"The factor of {memory_name(*place)} is {factor}. Write a finite number.")
        factors[place] = factor
    return factors


def _named_factor(text: str) -> tuple[str, float]:
    try:
        name, factor = text.rsplit(":", 1)
        return name, float(factor)
    except ValueError:
        message = f"{text!r} is not a memory with a factor. Write L3.17:2 to double the coefficient of L3.17."
        raise UserError(message) from None
