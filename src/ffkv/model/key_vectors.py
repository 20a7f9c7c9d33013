"""The keys k_i of a layer: the rows of the first matrices, as far as these are plain matrices.

`keys` gives what a memory reads as one vector, `factors` gives both factors of a gated memory apart, of experts too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.experts.layouts import layout_of
from ffkv.model.placement.resident import in_float32, resident


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


def factors(model: nn.Module, layer: Layer, width: int) -> tuple[Tensor, Tensor]:
    """Returns what each memory of a layer reads: its key and its gate, m = act(gate) key; without a gate m = act(key).

    A bias and the gain of a norm before the layer are left out.

    Args:
        model: the model.
        layer: the layer.
        width: d, the width of the residual stream.
    Returns:
        Keys and gates [memory, d], float32, on the CPU. A row is NaN where there is none: a memory without a gate; a first
        matrix that is no plain matrix on the residual stream; a gate that the proof could not tell from the other factor.
    """
    parts = [_factors_of(model, matrix, width) for matrix in layer.second_matrices]
    key, gate = (torch.cat(part) for part in zip(*parts, strict=True))
    return key, gate


def factor_places(matrix: SecondMatrix) -> dict[str, tuple[str, int]]:
    """Returns which first matrix writes the "key" and the "gate" of each memory, and in which column that of memory 0.

    A factor is missing where there is none, or where the proof could not tell it. A bank of experts has none of them.
    """
    if matrix.kind == "plain" and not matrix.experts:
        return {"key": (matrix.first_matrices[0], 0)}
    if matrix.experts or not matrix.gate:
        return {}
    if matrix.gate_columns == "all":
        other = next(name for name in matrix.first_matrices if name != matrix.gate)
        return {"key": (other, 0), "gate": (matrix.gate, 0)}
    first, second = (matrix.gate, 0), (matrix.gate, matrix.memories)
    key, gate = (first, second) if matrix.gate_columns == "second half" else (second, first)
    return {"key": key, "gate": gate}


def _factors_of(model: nn.Module, matrix: SecondMatrix, width: int) -> list[Tensor]:
    unknown = torch.full((matrix.memories, width), torch.nan)
    if matrix.experts:
        module = model.get_submodule(matrix.module)
        layout: Any = layout_of(module)
        with torch.no_grad(), resident(module):
            of_experts = [layout.keys(expert) for expert in range(layout.experts)]
            found = [None if None in part else torch.cat(part).float().cpu() for part in zip(*of_experts, strict=True)]
    else:
        places = factor_places(matrix)
        rows = {name: _rows(model.get_submodule(name), matrix.memories) for name, _ in places.values()}
        taken = [places.get(factor) for factor in ("key", "gate")]
        found = [None if place is None else [*rows[place[0]], None][place[1] // matrix.memories] for place in taken]
    return [unknown if part is None or part.shape != unknown.shape else part for part in found]


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
