"""Rows of integers, one behind the other."""

import mmap
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

BLOCK = 2**18  # values; an array that grew with every row would be copied as a whole again and again


class Rows(Sequence[np.ndarray]):
    """Arrays of int32. A list of them would take twice the memory where rows are as short as sentences."""

    def __init__(self) -> None:
        """No rows yet."""
        self._blocks: list[np.ndarray] = []
        self._latest = array("i")
        self._ends = array("q", [0])

    def append(self, row: np.ndarray) -> None:
        """Adds a row. Raises TypeError for another type."""
        if row.dtype != np.int32:
            raise TypeError(f"a row of {row.dtype}, not of int32")
        self._latest.frombytes(row.tobytes())
        self._ends.append(self._ends[-1] + len(row))
        if len(self._latest) >= BLOCK:
            self._close_block()

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        """Returns a row, or a list of some of them."""
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        number = range(len(self))[number]
        return self.joined()[self._ends[number] : self._ends[number + 1]]

    def joined(self) -> np.ndarray:
        """Returns all rows as one int32 array. They are moved once, block by block, which takes little more memory."""
        self._close_block()
        if len(self._blocks) != 1:
            together, end = np.empty(self._ends[-1], np.int32), self._ends[-1]
            while self._blocks:
                block = self._blocks.pop()
                together[end - len(block) : end] = block
                end -= len(block)
            self._blocks = [together]
        return self._blocks[0]

    def _close_block(self) -> None:
        if self._latest:
            # Memory of its own, which the system has back as soon as the block is moved.
            block = np.frombuffer(mmap.mmap(-1, 4 * len(self._latest)), np.int32)
            block[:] = self._latest
            self._blocks.append(block)
            self._latest = array("i")
