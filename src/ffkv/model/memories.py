"""`memories.h5`: the values as they act in the residual stream."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ffkv import store
from ffkv.model.anatomy import Anatomy, Layer

TOGETHER = 1024  # unit vectors a call


def values(model: nn.Module, layer: Layer) -> tuple[Tensor, Tensor]:
    """What one unit of each coefficient adds to the residual stream, and what the layer adds without any.

    Asks the second matrix itself, with unit vectors and with zero: this needs no knowledge of its layout (Linear, Conv1D)
    or of adapters around it.

    Returns:
        Values v_i [memory, d] and bias b [d], float32, so that y = sum_i m_i v_i + b.
    """
    write = model.get_submodule(layer.writes[0].module)
    like = write.weight
    with torch.no_grad():
        bias = write(like.new_zeros(1, layer.memories)).float()
        rows = [(write(units).float() - bias).cpu() for units in _unit_vectors(layer.memories, like)]
    return layer.writes[0].scale * torch.cat(rows), layer.writes[0].scale * bias[0].cpu()


def _unit_vectors(size: int, like: Tensor) -> Iterator[Tensor]:
    for start in range(0, size, TOGETHER):
        stop = min(start + TOGETHER, size)
        units = like.new_zeros(stop - start, size)
        units[torch.arange(stop - start), torch.arange(start, stop)] = 1
        yield units


@dataclass(frozen=True)
class Memories:
    """The values of some layers.

    layer: of each memory [row]; memory: its number in the layer [row]; value: v_i [row, d].
    """

    layer: np.ndarray
    memory: np.ndarray
    value: np.ndarray
    attributes: dict[str, Any]


def write_memories(path: Path, model: nn.Module, anatomy: Anatomy) -> None:
    """Writes `memories.h5`, a layer at a time."""
    offsets = anatomy.layer_offset
    largest = max(layer.memories for layer in anatomy.layers)
    with store.create(path, "memories", anatomy.identity) as file:
        store.put(
            file,
            "layer_offset",
            np.asarray(offsets),
            ["layer_boundary"],
            "memory",
            "first row of each layer; memory i of layer l is row layer_offset[l] + i",
        )
        value = store.allocate(
            file,
            "value",
            (offsets[-1], anatomy.width),
            np.float32,
            ["memory", "width"],
            "1",
            "values: what one unit of the coefficient adds to the residual stream",
            chunks=(min(largest, 4096), anatomy.width),
        )
        bias = store.allocate(
            file,
            "value_bias",
            (len(anatomy.layers), anatomy.width),
            np.float32,
            ["layer", "width"],
            "1",
            "what the layer adds beside its memories",
        )
        for layer in anatomy.layers:
            value[offsets[layer.index] : offsets[layer.index + 1]], bias[layer.index] = (
                part.numpy() for part in values(model, layer)
            )


def read_memories(path: Path, layers: range | None = None, belongs_to: dict[str, Any] | None = None) -> Memories:
    """The values of some layers, of all by default.

    Raises:
        UserError: see `store.open`.
    """
    with store.open(path, "memories", belongs_to) as file:
        offsets = file["layer_offset"][...]
        layers = range(len(offsets) - 1) if layers is None else layers
        start, stop = (int(offsets[layers.start]), int(offsets[layers.stop])) if len(layers) else (0, 0)
        counts = np.diff(offsets)[layers.start : layers.stop]
        numbers = [np.arange(count, dtype=np.int32) for count in counts]
        return Memories(
            np.repeat(np.asarray(layers, np.int32), counts),
            np.concatenate(numbers) if numbers else np.zeros(0, np.int32),
            file["value"][start:stop],
            dict(file.attrs),
        )
