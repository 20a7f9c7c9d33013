"""The keys k_i of a layer: the rows of the first matrices, as far as these are plain matrices."""

from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.placement.resident import in_float32


def keys(model: nn.Module, layer: Layer) -> Tensor | None:
    """Returns the keys of a layer. With a gate, a key is what gate and up read, one behind the other.

    A bias and the gain of a norm before the layer are left out.

    Returns:
        Keys [memory, d] or, with a gate, [memory, 2 d], float32, on the CPU; None if a first matrix is not a plain
        matrix, as in banks of experts.
    """
    parts = [_keys_of(model, matrix) for matrix in layer.second_matrices]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or len({part.shape[1] for part in found}) > 1:
        return None
    return torch.cat(found)


def _keys_of(model: nn.Module, matrix: SecondMatrix) -> Tensor | None:
    if matrix.experts:
        return None
    halves = [half for name in matrix.first_matrices for half in _rows(model.get_submodule(name), matrix.memories)]
    found = [half for half in halves if half is not None]
    return torch.cat(found, 1) if found and len(found) == len(halves) else None


def _rows(module: nn.Module, memories: int) -> list[Tensor | None]:
    """Returns what each memory reads: one matrix [memory, d], two of a fused matrix, or None for other modules."""
    if getattr(getattr(module, "weight", None), "ndim", 0) != 2:
        return [None]
    with torch.no_grad(), in_float32(module):
        weight: Any = module.weight
        rows = weight.detach().float().cpu()
    if type(module).__name__ == "Conv1D":  # of transformers' GPT-2: inputs by outputs
        rows = rows.T
    if len(rows) not in (memories, 2 * memories):
        return [None]
    return [*rows.clone().split(memories)]
