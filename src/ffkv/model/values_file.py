"""`values.h5`: the values as they act in the residual stream."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.files import hdf5
from ffkv.model.anatomy import Anatomy, Layer, SecondMatrix
from ffkv.model.experts.record import expert_values, layout_of
from ffkv.model.tap.assemble import norm_gain, scale_of

TOGETHER = 1024  # unit vectors a call


def values(model: nn.Module, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """What one unit of each coefficient adds to the residual stream, and what the layer adds without any.

    Asks the second matrix itself, with unit vectors and with zero: this needs no knowledge of its layout (Linear, Conv1D)
    or of adapters around it. Where a norm stands between the layer and the residual stream, these are the values with the
    norm's constant gain; each token multiplies them with a factor of its own (`ffkv.model.tap.tap`, quantity s).

    Returns:
        Values v_i [memory, d] and bias b [d], float32, so that y = sum_i m_i v_i + b. b is None where it depends on the
        token: experts with biases, a second matrix with a bias that is weighted by token.
    """
    parts = [_written(model.get_submodule(write.module), write) for write in layer.second_matrices]
    v = in_residual(model, layer, torch.cat([v for v, _ in parts]), directions=True)
    biases = [bias for _, bias in parts if bias is not None]
    constant = len(biases) == len(parts) and not any(
        write.per_token_weight and bool(bias.any()) for write, bias in zip(layer.second_matrices, biases, strict=True)
    )
    b = in_residual(model, layer, sum(biases)[None])[0].float().cpu() if constant else None
    return v.float().cpu(), b


def in_residual(model: nn.Module, layer: Layer, vectors: Tensor, directions: bool = False) -> Tensor:
    """Vectors [n, d] from where a layer's writes are summed to where they are added, without a token's own factor.

    Args:
        directions: they are differences of such sums, to which nothing constant is added.
    """
    if layer.output_kind not in ("norm", "linear"):
        return vectors
    carrier, vectors = in_float32(model.get_submodule(layer.output_module)), vectors.float()
    if layer.output_kind == "norm":
        return layer.output_scale * norm_gain(carrier, vectors) * vectors
    with torch.no_grad():
        constant = carrier(torch.zeros_like(vectors[:1])) if directions else 0
        return layer.output_scale * (carrier(vectors) - constant)


def in_float32(module: nn.Module) -> nn.Module:
    """The module, or a float32 copy of it: differences of its outputs are to keep their digits."""
    dtypes = {parameter.dtype for parameter in module.parameters()}
    return module if dtypes <= {torch.float32, torch.float64} else copy.deepcopy(module).float()


def _written(module: nn.Module, write: SecondMatrix) -> tuple[Tensor, Tensor | None]:
    """Scaled values [memory, d] and bias [d] of one write; of a bank whose bias depends on the token: None."""
    if (layout := layout_of(module)) is not None:
        with torch.no_grad():
            v, constant = expert_values(module).float(), layout.bank_bias()
        beside = layout.expert_bias(0) is not None or layout.passes_on
        bias = None if beside else v.new_zeros(v.shape[1]) if constant is None else constant
    else:
        module = in_float32(module)
        like = module.weight
        with torch.no_grad():
            bias = module(like.new_zeros(1, write.memories))
            v = torch.cat([module(units) - bias for units in _unit_vectors(write.memories, like)])
        bias = bias[0]
    scale = scale_of(write, v)
    return scale * v, None if bias is None else scale * bias


def _unit_vectors(size: int, like: Tensor) -> Iterator[Tensor]:
    for start in range(0, size, TOGETHER):
        stop = min(start + TOGETHER, size)
        units = like.new_zeros(stop - start, size)
        units[torch.arange(stop - start), torch.arange(start, stop)] = 1
        yield units


@dataclass(frozen=True)
class Values:
    """The values of some layers.

    layer: of each memory [row]; memory: its number in the layer [row]; value: v_i [row, d].
    """

    layer: np.ndarray
    memory: np.ndarray
    value: np.ndarray
    attributes: dict[str, Any]

    @property
    def norm(self) -> np.ndarray:
        """Length of v_i, float32 [row]."""
        return np.linalg.norm(self.value, axis=1).astype(np.float32)

    def of(self, layer: int) -> "Values":
        """Those of one layer."""
        rows = self.layer == layer
        return Values(self.layer[rows], self.memory[rows], self.value[rows], self.attributes)


def write_values(path: Path, model: nn.Module, anatomy: Anatomy) -> None:
    """Writes `values.h5`, a layer at a time."""
    offsets = anatomy.layer_offset
    largest = max(layer.memories for layer in anatomy.layers)
    with hdf5.create(path, "values", anatomy.identity) as file:
        hdf5.put(
            file,
            "layer_offset",
            np.asarray(offsets),
            ["layer_boundary"],
            "memory",
            "first row of each layer; memory i of layer l is row layer_offset[l] + i",
        )
        value = hdf5.allocate(
            file,
            "value",
            (offsets[-1], anatomy.width),
            np.float32,
            ["memory", "width"],
            "1",
            "values: what one unit of the coefficient adds to the residual stream",
            chunks=(min(largest, 4096), anatomy.width),
        )
        bias = hdf5.allocate(
            file,
            "value_bias",
            (len(anatomy.layers), anatomy.width),
            np.float32,
            ["layer", "width"],
            "1",
            "what the layer adds beside its memories; NaN where that depends on the token",
        )
        for layer in anatomy.layers:
            v, b = values(model, layer)
            value[offsets[layer.index] : offsets[layer.index + 1]] = v.numpy()
            bias[layer.index] = np.nan if b is None else b.numpy()


def read_values(path: Path, layers: range | None = None, belongs_to: dict[str, Any] | None = None) -> Values:
    """The values of some layers, of all by default.

    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(path, "values", belongs_to) as file:
        offsets = file["layer_offset"][...]
        layers = range(len(offsets) - 1) if layers is None else layers
        start, stop = (int(offsets[layers.start]), int(offsets[layers.stop])) if len(layers) else (0, 0)
        counts = np.diff(offsets)[layers.start : layers.stop]
        numbers = [np.arange(count, dtype=np.int32) for count in counts]
        return Values(
            np.repeat(np.asarray(layers, np.int32), counts),
            np.concatenate(numbers) if numbers else np.zeros(0, np.int32),
            file["value"][start:stop],
            dict(file.attrs),
        )
