"""`translation/maps/<group>.h5`: the maps of layers (`ridge`, `fit`). `ffkv.model.head.lens.MappedLens` reads vectors through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import Checked, dataset
from ffkv.branches.translation.tables import JACOBIAN_READINGS, READINGS


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Maps per layer: two in the order of `READINGS`, or three in that of `JACOBIAN_READINGS`."""

    layer: np.ndarray = dataset("layer", "int32", unit="layer", about="the layer, from 0")
    weight: np.ndarray = dataset(
        "layer reading input width",
        "float32",
        unit="1",
        about="W of o^L = o^l W + b, by reading",
        chunks={"layer": 1, "reading": 1},
    )
    offset: np.ndarray = dataset("layer reading width", "float32", unit="1", about="b")
    attributes: dict[str, Any]  # the attributes of the file

    @property
    def readings(self) -> tuple[str, ...]:
        """The readings that it has maps for."""
        return JACOBIAN_READINGS if self.weight.shape[1] == len(JACOBIAN_READINGS) else READINGS

    def map_of(self, reading: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns W [d, d] and b [d] of a reading of one layer."""
        row, which = self.layer.tolist().index(layer), self.readings.index(reading)
        return self.weight[row, which], self.offset[row, which]


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


def read_map(file: h5py.File | Checked, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the map of one layer from an open file: W [d, d] and b [d], of the first reading, which is no null."""
    row = file["layer"][...].tolist().index(layer)
    return file["weight"][row, 0], file["offset"][row, 0]
