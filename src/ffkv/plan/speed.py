"""How fast this machine multiplies matrices of a type. Processors without instructions for 16 bits are a hundred times slower."""

import functools

import torch
from torch.utils.benchmark import Timer

ROWS, SIZE, ROUNDS = 64, 512, 3


@functools.cache
def measure_speed(dtype: str) -> float:
    """Floating-point operations per second of a product of two matrices on one core.

    Args:
        dtype: name of the type, such as "bfloat16".
    """
    left, right = (torch.ones(rows, SIZE, dtype=getattr(torch, dtype)) for rows in (ROWS, SIZE))
    timer = Timer("left @ right", globals={"left": left, "right": right})
    return 2 * ROWS * SIZE**2 / timer.timeit(ROUNDS).median
