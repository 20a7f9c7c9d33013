"""Reads layers whose m and y no one module knows: several second matrices, banks of experts, a module after the layer."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.experts.layouts import layout_of
from ffkv.model.experts.record import coefficients, forget_call, last_call, positive_gates, written
from ffkv.model.placement.resident import resident
from ffkv.model.tap.hooks import NamedHook, after, hidden_input, known_state
from ffkv.model.tap.quantities import OnTensor, Quantity


class _Trace(NamedTuple):
    """What one second matrix did."""

    m: Tensor  # its coefficients [token, memory]
    z: Tensor  # what it wrote [token, d]
    bias: Tensor  # the part of z that no memory wrote [token or 1, d]


class _Outcome(NamedTuple):
    """What a layer's output module did."""

    input: Tensor  # what it read [token, d]
    output: Tensor  # what it returned [token, d]


def assembly_hooks(model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor) -> Iterator[NamedHook]:
    """Yields the hooks that assemble m and y of a layer and pass them to `emit`."""
    assembly = _Assembly(model, layer, wanted, emit)
    for matrix in layer.second_matrices:
        yield after, matrix.module, partial(assembly.on_second_matrix, matrix)
        if matrix.gate and matrix.gate_columns and Quantity.GATE in wanted:
            yield after, matrix.gate, partial(assembly.on_gate, matrix)
    if layer.output_module:
        yield after, layer.output_module, assembly.on_output_module


class _Assembly:
    """The pieces of one layer that this forward pass has seen so far, by second matrix. The last one gives m and y."""

    def __init__(self, model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor):
        self.layer, self.wanted, self.emit = layer, wanted, emit
        self.traces: dict[str, _Trace] = {}
        self.gates: dict[str, Tensor] = {}
        # What each second matrix returns for zero [1, d].
        self.biases = {own.module: bias_of(model.get_submodule(own.module), own) for own in layer.second_matrices}
        self.gain: Tensor | None = None
        if layer.output_kind == "norm":
            self.gain = norm_gain(model.get_submodule(layer.output_module), next(iter(self.biases.values())))

    def on_second_matrix(self, matrix: SecondMatrix, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        call = last_call(module)
        bias = self.biases[matrix.module] if call is None else call.bias
        found = coefficients(module, hidden_input(args, kwargs)), written(module, output), bias
        # Copies, because the model may add to its own memory in place before the layer is finished.
        self.traces[matrix.module] = _Trace(*(flat(tensor).clone() for tensor in found))
        if call is not None:
            if matrix.gate and Quantity.GATE in self.wanted:
                self.gates[matrix.module] = positive_gates(module)
            forget_call(module)
        if not self.layer.output_module and len(self.traces) == len(self.layer.second_matrices):
            self._finish(None)

    def on_gate(self, matrix: SecondMatrix, module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        self.gates[matrix.module] = flat(columns_of(output, matrix.gate_columns)) > 0

    def on_output_module(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        self._finish(_Outcome(flat(hidden_input(args, kwargs)), flat(known_state(output))))

    def _finish(self, outcome: _Outcome | None) -> None:
        """Emits everything and forgets the pieces."""
        layer, matrices = self.layer, self.layer.second_matrices
        traces = [self.traces[matrix.module] for matrix in matrices]
        gates = [
            self.gates.get(matrix.module, torch.zeros_like(own.m, dtype=torch.bool))
            for matrix, own in zip(matrices, traces, strict=True)
            if layer.gated and Quantity.GATE in self.wanted
        ]
        self.traces.clear()
        self.gates.clear()
        m, y, bias = _assemble(layer, traces, outcome)
        del traces  # they are as large as m, y and bias
        if gates:
            self.emit(layer, Quantity.GATE, torch.cat(gates, -1))
        self.emit(layer, Quantity.COEFFICIENTS, m)
        self.emit(layer, Quantity.BIAS, bias.expand(y.shape))
        if self.gain is not None and outcome is not None and Quantity.FACTOR in self.wanted:
            direction = self.gain * outcome.input  # output = factor * gain * input
            factor = token_weights(direction[None], outcome.output)[0][:, None].to(direction.dtype)
            self.emit(layer, Quantity.FACTOR, factor)
        self.emit(layer, Quantity.FF_OUTPUT, y)


def _assemble(layer: Layer, traces: list[_Trace], outcome: _Outcome | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns m and y of a layer, and what the sum before its output module holds beside memories [token or 1, d]."""
    scales = [scale_of(matrix, own.z) for matrix, own in zip(layer.second_matrices, traces, strict=True)]
    weights = _weights(layer, [scale * own.z for scale, own in zip(scales, traces, strict=True)], outcome)
    weighted = list(zip(weights, scales, traces, strict=True))
    m = torch.cat([weight * own.m for weight, _, own in weighted], -1)
    bias = _sum(weight * scale * own.bias for weight, scale, own in weighted)
    if outcome is None:
        return m, _sum(weight * scale * own.z for weight, scale, own in weighted), bias
    return m, layer.output_scale * outcome.output, bias


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    return torch.as_tensor(sum(tensors))


def _weights(layer: Layer, scaled: list[Tensor], outcome: _Outcome | None) -> list[Tensor]:
    """Returns the block's own weight of each second matrix, per token [token, 1]; 1 if there is none."""
    weights = [torch.ones_like(z[:, :1]) for z in scaled]
    weighted = [number for number, matrix in enumerate(layer.second_matrices) if matrix.per_token_weight]
    if weighted and outcome is not None:
        total = layer.output_scale * outcome.output if layer.output_kind == "sum" else outcome.input
        known = [z for z, matrix in zip(scaled, layer.second_matrices, strict=True) if not matrix.per_token_weight]
        unknown = token_weights(torch.stack([scaled[number] for number in weighted]), total - sum(known))
        for number, weight in zip(weighted, unknown, strict=True):
            weights[number] = weight[:, None].to(scaled[number].dtype)
    return weights


def token_weights(summands: Tensor, total: Tensor) -> Tensor:
    """Returns the weight of each summand [summand, token, d] in a total [token, d], per token, by least squares.

    Weights [summand, token] are such that total = sum_p weight_p summand_p; 0 for a summand that is zero.
    """
    summands, total = summands.double(), total.double()
    products = torch.einsum("ptd,qtd->tpq", summands, summands)
    onto = torch.einsum("ptd,td->tp", summands, total)
    return (torch.linalg.pinv(products, hermitian=True) @ onto[..., None])[..., 0].T


def scale_of(matrix: SecondMatrix, like: Tensor) -> Tensor:
    """Returns what the block multiplies with what a second matrix returns: one number [1] or one per dimension [d]."""
    return torch.as_tensor(matrix.scale, dtype=like.dtype, device=like.device).reshape(-1)


def bias_of(module: nn.Module, matrix: SecondMatrix) -> Tensor:
    """Returns what a second matrix returns for zero [1, d]; zeros for a bank, whose biases depend on the router."""
    with torch.no_grad(), resident(module):
        if (layout := layout_of(module)) is not None:
            values = layout.values(0)
            return values.new_zeros(1, values.shape[-1])
        like: Any = module.weight
        return flat(module(like.new_zeros(1, matrix.memories)))


def norm_gain(module: nn.Module, like: Tensor) -> Tensor:
    """Returns the constant gain of a norm without a mean, per dimension [d]: its output for a vector of ones."""
    ones = torch.ones_like(like.reshape(-1, like.shape[-1])[:1])
    with torch.no_grad():
        return known_state(module(ones))[0]


def columns_of(output: Tensor, columns: str) -> Tensor:
    """Returns the columns of a first matrix's output that `SecondMatrix.gate_columns` names."""
    half = output.shape[-1] // 2
    return output[..., {"all": slice(None), "first half": slice(half), "second half": slice(half, None)}[columns]]


def flat(state: Tensor) -> Tensor:
    """[token, .], whatever the number of dimensions in front."""
    return state.reshape(-1, state.shape[-1])
