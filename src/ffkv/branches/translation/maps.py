"""`translation/maps/<group>.h5`: the maps of some layers, and heads that read vectors through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import dataset
from ffkv.branches.translation.tables import READINGS
from ffkv.model.head.head import Head


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Two maps per layer: one fitted on pairs of states, one on shuffled pairs, in the order of `READINGS`."""

    layer: np.ndarray = dataset("layer", "int32", unit="layer", about="the layer, from 0")
    weight: np.ndarray = dataset(
        "layer reading input width",
        "float32",
        unit="1",
        about="W of o^L = o^l W + b; fitted on pairs of states, and on shuffled pairs",
        chunks={"layer": 1, "reading": 1},
    )
    offset: np.ndarray = dataset("layer reading width", "float32", unit="1", about="b")
    attributes: dict[str, Any]  # the attributes of the file


def write_maps(path: Path | str, maps: Maps) -> None:
    """Writes `translation/maps/<group>.h5`."""
    with hdf5.create(path, "translation maps", maps.attributes) as file:
        datasets.write(file, maps)


def read_maps(path: Path | str, belongs_to: Mapping[str, Any], layers: Sequence[int]) -> Maps:
    """Reads the maps of some layers. For `belongs_to` and errors see `hdf5.open`; UserError if it has other layers."""
    with hdf5.open(path, "translation maps", belongs_to) as file:
        maps = datasets.read(file, Maps, attributes=dict(file.attrs))
    if maps.layer.tolist() != list(layers):
        message = f"{path} has layers {maps.layer.tolist()}, not layers {list(layers)}"
        raise UserError(f"{message}: give the file of the same layer group.")
    return maps


def read_map(file: h5py.File, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the map of one layer from an open file: W [d, d] and b [d], fitted on pairs of states."""
    row = file["layer"][...].tolist().index(layer)
    return file["weight"][row, 0], file["offset"][row, 0]


class TranslatedHead(Head):
    """A head that reads vectors of a layer through a map, as it reads the last layer."""

    def __init__(self, head: Head, weight: np.ndarray, offset: np.ndarray | None, read_as: int | None):
        """Shares the weights of `head`.

        `weight`: W [d, d]. `offset`: b [d], for states; None for changes of states, such as values. `read_as`: the layer that
        translated vectors are read out as, see `Head.logits`.
        """
        vars(self).update(vars(head))
        self._weight = torch.from_numpy(weight).to(self._device)
        self._offset = None if offset is None else torch.from_numpy(offset).to(self._device)
        self._read_as = read_as

    def logits(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Returns logits [n, vocabulary] in float32 of vectors [n, d] of the map's layer, whatever `layer` says."""
        translated = vectors.to(self._device).float() @ self._weight
        return super().logits(translated if self._offset is None else translated + self._offset, self._read_as)


def head_of(head: Head, maps: Maps, layer: int, reading: str, read_as: int | None, state: bool) -> TranslatedHead:
    """Returns the head that reads vectors of a layer in a reading; `state`: whether they are states, or changes of them."""
    row, which = int(np.flatnonzero(maps.layer == layer)[0]), READINGS.index(reading)
    return TranslatedHead(head, maps.weight[row, which], maps.offset[row, which] if state else None, read_as)
