"""Datasets that stay in their file and are read piece by piece, so that a corpus of any size takes little memory."""

import functools
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from ffkv.base.files.fault import unreadable

CACHED_PIECES = 32  # per dataset, each about 1 MiB


class Pieces:
    """A dataset of one axis that is read piece by piece; it may be larger than the memory."""

    def __init__(self, file: h5py.Group, name: str):
        self._dataset, self._path = file[name], file.file.filename
        self._size = self._dataset.chunks[0] if self._dataset.chunks else max(1, len(self._dataset))
        self._piece = functools.lru_cache(CACHED_PIECES)(self._read)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, at: int | slice | np.ndarray) -> Any:
        """Returns an entry by its number from 0, a range of entries, or any entries by their numbers (of any shape).

        Raises UserError if the file is damaged.
        """
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            first, last = start // self._size, max(start, stop - 1) // self._size
            if first == last:
                return self._piece(first)[start - first * self._size : max(start, stop) - first * self._size]
            together = np.concatenate([self._piece(number) for number in range(first, last + 1)])
            return together[start - first * self._size : stop - first * self._size]
        if isinstance(at, np.ndarray):
            entries, piece_of = np.empty(at.shape, self._dataset.dtype), at // self._size
            for number in np.unique(piece_of).tolist():
                inside = piece_of == number
                entries[inside] = self._piece(number)[at[inside] - number * self._size]
            return entries
        return self._piece(at // self._size)[at % self._size]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the whole dataset."""
        return np.asarray(self._dataset[...], dtype)

    def _read(self, number: int) -> np.ndarray:
        try:
            return self._dataset[number * self._size : (number + 1) * self._size]
        except (OSError, RuntimeError) as error:
            raise unreadable(self._path, error) from error


class Texts(Sequence[str]):
    """Texts that are kept as bytes and decoded one at a time."""

    def __init__(self, data: np.ndarray | Pieces, offsets: np.ndarray | Pieces):
        self._data, self._offsets = data, offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __repr__(self) -> str:
        return f"<{len(self):,} texts>"

    def __getitem__(self, index: Any) -> Any:
        """Text number `index`, from 0; of a slice a list of texts."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[int(self._offsets[index]) : int(self._offsets[index + 1])].tobytes().decode("utf-8")
