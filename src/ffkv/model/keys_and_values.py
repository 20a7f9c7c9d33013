"""The keys k_i and the values v_i of a layer, as vectors.

Values are as they act in the residual stream. Keys are the rows of the first matrices, as far as these are plain ones:
`keys` gives what a memory reads as one vector, `factors` gives both factors of a gated memory apart, of experts too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.experts import layout_of
from ffkv.model.placement import in_float32, resident
from ffkv.model.tap.tap import norm_gain, scale_of

UNIT_VECTORS = 1024  # per call of a second matrix
TRIED = 8  # unit vectors that tell whether a second matrix is a plain one
TOLERANCE = 1e-6  # relative: rounding in float32, which a bias that is added and taken away leaves


def values(model: nn.Module, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Returns the values v_i and the bias b of a layer, so that y = sum_i m_i v_i + b.

    These are the rows or columns of the second matrix if it is a plain one (Linear, Conv1D). Else, as with adapters
    around it, it is asked with all unit vectors. If a norm follows the layer, these are the values with the constant
    gain of the norm. Each token multiplies them with a factor of its own (`ffkv.model.tap.tap`).

    Values are [memory, d] and the bias [d], float32, on the CPU. The bias is None if it depends on the token: experts with
    biases, a second matrix with a bias and a weight per token, or a dictionary that passes on what it reads. What a dictionary
    leaves of y is no part of it.
    """
    v, b = values_in_place(model, layer)
    return v.cpu(), None if b is None else b.cpu()


def values_in_place(model: nn.Module, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Returns the values and the bias, see `values`, on the layer's device.

    The values may be the model's own memory: do not write to them.
    """
    parts = [_written(model.get_submodule(matrix.module), matrix) for matrix in layer.second_matrices]
    together = parts[0][0] if len(parts) == 1 else torch.cat([v for v, _ in parts])  # no copy of a single matrix
    v = in_residual(model, layer, together, directions=True)
    biases = [bias for _, bias in parts if bias is not None]
    constant = len(biases) == len(parts) and not any(
        matrix.per_token_weight and bool(bias.any()) for matrix, bias in zip(layer.second_matrices, biases, strict=True)
    )
    b = in_residual(model, layer, sum(biases[1:], biases[0])[None])[0].float() if constant else None
    return v.float(), b


def in_residual(model: nn.Module, layer: Layer, vectors: Tensor, directions: bool = False) -> Tensor:
    """Maps vectors [n, d] from the sum of a layer's second matrices to the residual stream, without a token's factor.

    A norm or a linear map may follow the sum. `directions`: they are differences of such sums: nothing constant is added.
    """
    if layer.output_kind not in ("norm", "linear"):
        return vectors
    output_module, vectors = model.get_submodule(layer.output_module), vectors.float()
    with torch.no_grad(), in_float32(output_module):  # so that differences of its outputs keep their digits
        if layer.output_kind == "norm":
            return layer.output_scale * norm_gain(output_module, vectors) * vectors
        constant = output_module(torch.zeros_like(vectors[:1])) if directions else 0
        return layer.output_scale * (output_module(vectors) - constant)


def error_of(model: nn.Module, layer: Layer, u: Tensor, factor: Tensor | None = None) -> Tensor:
    """Returns what a dictionary leaves of y of its layer [..., d]. `u`: as the tap reads it. `factor`: s [..., 1]; None if it is 1."""
    error = in_residual(model, layer, u.reshape(-1, u.shape[-1]), directions=True).reshape(u.shape)
    return error if factor is None else factor * error


def _written(module: nn.Module, matrix: SecondMatrix) -> tuple[Tensor, Tensor | None]:
    """Scaled values [memory, d] and bias [d] of one second matrix; None for a bias that depends on the token."""
    bias: Tensor | None
    if (layout := layout_of(module)) is not None:
        with torch.no_grad(), resident(module):
            v = torch.cat([layout.values(expert) for expert in range(layout.experts)]).float()
            constant = layout.bank_bias()
            bias = v.new_zeros(v.shape[1]) if constant is None else constant.detach()
            if layout.expert_bias(0) is not None or layout.passes_on:  # then it depends on the token
                bias = None
    else:
        with torch.no_grad(), in_float32(module):
            weight: Any = module.weight
            for_zero = module(weight.new_zeros(1, matrix.memories))
            plain = _plain_values(module, matrix.memories, for_zero)
            units = torch.arange(matrix.memories, device=weight.device).split(UNIT_VECTORS)
            asked = (module(nn.functional.one_hot(some, matrix.memories).to(weight.dtype)) - for_zero for some in units)
            v = torch.cat([*asked]) if plain is None else plain
        bias = for_zero[0] if getattr(module, "constant", True) else None  # of a dictionary
    scale = scale_of(matrix, v)
    return v if matrix.scale == 1 else scale * v, None if bias is None else scale * bias


def _plain_values(module: nn.Module, memories: int, for_zero: Tensor) -> Tensor | None:
    """Returns the weight of a second matrix as values [memory, d]; None if some unit vectors show that it is more."""
    weight: Any = module.weight
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(memories, generator=generator)[:TRIED].to(weight.device)
    told = module(nn.functional.one_hot(chosen, memories).to(weight.dtype)) - for_zero
    allowed = TOLERANCE * (told.abs().max() + for_zero.abs().max())
    for rows in (weight, weight.T):
        if rows.shape == (memories, told.shape[1]) and bool(((rows[chosen] - told).abs() <= allowed).all()):
            return rows.detach()
    return None


def keys(model: nn.Module, layer: Layer) -> Tensor | None:
    """Returns the keys of a layer. With a gate, a key is what gate and up read, one behind the other.

    A bias and the gain of a norm before the layer are left out. Keys are [memory, d] or, with a gate, [memory, 2 d], float32, on
    the CPU; None if a first matrix is not a plain matrix, as in banks of experts.
    """
    parts = []
    for matrix in layer.second_matrices:
        rows = [_rows(model.get_submodule(name), matrix.memories) for name in matrix.first_matrices]
        if matrix.experts or not all(rows):
            return None
        parts.append(torch.cat([half for halves in rows for half in halves], 1))
    return torch.cat(parts) if len({part.shape[1] for part in parts}) == 1 else None


def factors(model: nn.Module, layer: Layer, width: int) -> tuple[Tensor, Tensor]:
    """Returns what each memory of a layer reads: its key and its gate, m = act(gate) key; without a gate m = act(key).

    A bias and the gain of a norm before the layer are left out. `width`: d, the width of the residual stream. Keys and gates are
    [memory, d], float32, on the CPU. A row is NaN where there is none: a memory without a gate; a first matrix that is no plain
    matrix on the residual stream; a gate that the proof could not tell from the other factor.
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
        found = []
        for factor in ("key", "gate"):
            name, column = places.get(factor, ("", 0))
            parts = rows.get(name, [])  # of a fused matrix its two halves
            number = column // matrix.memories
            found.append(parts[number] if number < len(parts) else None)
    return [unknown if part is None or part.shape != unknown.shape else part for part in found]


def _rows(module: nn.Module, memories: int) -> list[Tensor]:
    """Returns what each memory reads: one matrix [memory, d], two of a fused matrix, none for other modules."""
    if getattr(getattr(module, "weight", None), "ndim", 0) != 2:
        return []
    with torch.no_grad(), in_float32(module):
        weight: Any = module.weight
        rows = weight.detach().float().cpu()
    if type(module).__name__ == "Conv1D":  # of transformers' GPT-2: inputs by outputs
        rows = rows.T
    return [*rows.clone().split(memories)] if len(rows) in (memories, 2 * memories) else []
