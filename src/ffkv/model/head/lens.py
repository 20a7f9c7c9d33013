"""Lenses: what reads vectors of the residual stream as logits of the next token.

A lens has two methods, and each is told the layer that a vector is of. `state` reads a hidden state, such as the residual r or the
block output o. `change` reads what is added to a state, such as a value v or the FF output y.

| lens | `state` | `change` |
|---|---|---|
| `Head`: the logit lens | head(h) | head(v) |
| `MappedLens`: behind a map of each layer, as in the tuned lens | head(h W + b) | head(v W) |

What reads states or values takes a lens, and never asks which one it is. A further lens is a class with these two methods, and a
line in `READINGS` (`ffkv.run.results.readings`), which says how finished runs can be read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ffkv.model.head.head import Head

CHUNK_BYTES = 2**26  # of logits that are computed at a time: bounds the memory whatever the vocabulary
CACHED_BYTES = 2**22  # of logits that the CPU hands on at a time: what is computed from them stays in its cache


class Lens(ABC):
    """Reads vectors of the residual stream of a layer as logits."""

    vocabulary: int  # the number of logits

    @abstractmethod
    def state(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits [n, vocabulary] in float32 of states [n, d] of a layer; None: of outputs of the last block."""

    @abstractmethod
    def change(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits [n, vocabulary] in float32 of changes of states [n, d] of a layer, such as values."""

    def chunks(self, vectors: Tensor, layer: int | None, change: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """Yields logits of many vectors [n, d] of a layer, a bounded number at a time. `change`: whether they are changes.

        The CPU computes many and hands them on in smaller pieces, which stay in its cache. Yields the rows, and their logits
        [rows, vocabulary] in float32.
        """
        read = self.change if change else self.state
        rows, piece = (max(1, size // (4 * self.vocabulary)) for size in (CHUNK_BYTES, CACHED_BYTES))
        for chunk_start in range(0, len(vectors), rows):
            start, logits = chunk_start, read(vectors[chunk_start : chunk_start + rows], layer)
            for piece_logits in logits.split(piece if logits.device.type == "cpu" else rows):
                stop = start + len(piece_logits)
                yield slice(start, stop), piece_logits
                start = stop


class MappedLens(Lens):
    """The head, behind an affine map from the space of each layer to that of the vectors that the head reads."""

    def __init__(self, head: "Head", map_of: Callable[[int], tuple[np.ndarray, np.ndarray]]):
        """Shares the weights of `head`. `map_of`: returns W [d, d] and b [d] of a layer in float32; the last map is kept."""
        self._head, self.vocabulary = head, head.vocabulary
        self._map = lru_cache(maxsize=1)(
            lambda layer: [torch.from_numpy(part).to(head.device) for part in map_of(layer)]
        )

    def state(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits of states. The offset belongs to them."""
        return self._read(vectors, layer, with_offset=True)

    def change(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits of changes of states, without the offset."""
        return self._read(vectors, layer, with_offset=False)

    def _read(self, vectors: Tensor, layer: int | None, with_offset: bool) -> Tensor:
        vectors = vectors.to(self._head.device).float()
        if layer is not None:  # what the last block wrote is in the space of the head
            weight, offset = self._map(layer)
            vectors = vectors @ weight + offset if with_offset else vectors @ weight
        return self._head.logits(vectors, self._head.read_as)
