"""`values.h5`: the values of all layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import LAYER_OFFSET, dataset
from ffkv.model.anatomy import Anatomy

if TYPE_CHECKING:  # a finished run is read without torch
    from torch import nn


@dataclass(frozen=True)
class ValuesFile:
    """What `values.h5` holds."""

    layer_offset: np.ndarray = dataset("layer_boundary", "int64", unit="memory", about=LAYER_OFFSET, of="memory")
    value: np.ndarray = dataset(
        "memory width",
        "float32",
        unit="1",
        about="values: what one unit of the coefficient adds to the residual stream",
    )
    value_bias: np.ndarray = dataset(
        "layer width",
        "float32",
        unit="1",
        about="what the layer adds beside its memories; NaN if that depends on the token",
        odd=True,
    )


@dataclass(frozen=True)
class Values:
    """The values of some layers.

    Attributes:
        layer: layer of each memory, from 0 [row].
        memory: number of each memory in its layer, from 0 [row].
        value: v_i [row, d].
        attributes: what the file says of itself.
    """

    layer: np.ndarray
    memory: np.ndarray
    value: np.ndarray
    attributes: dict[str, Any]

    @property
    def norm(self) -> np.ndarray:
        """Length of v_i, float32 [row]."""
        return np.linalg.norm(self.value, axis=1).astype(np.float32)

    def of_layer(self, layer: int) -> "Values":
        """Returns the values of one layer."""
        rows = self.layer == layer
        return Values(self.layer[rows], self.memory[rows], self.value[rows], self.attributes)


def write_values(path: Path | str, model: "nn.Module", anatomy: Anatomy) -> None:
    """Writes `values.h5`, a layer at a time."""
    from ffkv.model.keys_and_values import values

    offsets = anatomy.layer_offset
    sizes = {"layer": len(anatomy.layers), "memory": offsets[-1], "width": anatomy.width}
    with hdf5.create(path, "values", anatomy.identity) as file:
        datasets.allocate(file, ValuesFile, sizes, compressed=["value"])
        file["layer_offset"][...] = offsets
        for layer in anatomy.layers:
            v, b = values(model, layer)
            file["value"][offsets[layer.index] : offsets[layer.index + 1]] = v.numpy()
            file["value_bias"][layer.index] = np.nan if b is None else b.numpy()


def read_values(path: Path | str, layers: range | None = None, belongs_to: Mapping[str, Any] | None = None) -> Values:
    """Reads the values of some layers.

    Args:
        path: `values.h5`.
        layers: contiguous layers, from 0; None for all.
        belongs_to: attributes whose identities the file must share, see `hdf5.open`.
    Raises:
        UserError: see `hdf5.open`.
    Examples:
        >>> values = ffkv.read_values("results/tiny/values.h5", layers=range(1))
        >>> values.value.shape  # [memory, d]
        (128, 32)
    """
    with hdf5.open(path, "values", belongs_to) as file:
        offsets = file["layer_offset"][...]
        layers = range(len(offsets) - 1) if layers is None else layers
        start, stop = (int(offsets[layers.start]), int(offsets[layers.stop])) if len(layers) else (0, 0)
        counts = np.diff(offsets)[layers.start : layers.stop]
        layer = np.repeat(np.asarray(layers, np.int32), counts)
        memory = np.arange(start, stop) - np.repeat(offsets[layers.start : layers.stop], counts)
        return Values(layer, memory.astype(np.int32), file["value"][start:stop], dict(file.attrs))
