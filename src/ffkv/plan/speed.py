"""How fast this machine multiplies matrices of a type. Processors without instructions for 16 bits are a hundred times slower."""

import functools
import time

import torch

ROWS, SIZE, ROUNDS = 64, 512, 3


@functools.cache
def measure_speed(dtype: str) -> float:
    """Floating-point operations per second of a product of two matrices on the CPU, with the threads of this process.

    Args:
        dtype: name of the type, such as "bfloat16".
    """
    left, right = (torch.ones(rows, SIZE, dtype=getattr(torch, dtype)) for rows in (ROWS, SIZE))
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - start)
    return 2 * ROWS * SIZE**2 / min(seconds)
