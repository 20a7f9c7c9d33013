"""Reads x, m, y and o of chosen layers while the model runs.

Where no single module knows m and y of a layer, they are assembled: from several second matrices, from banks of experts,
or where a module follows the layer.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.dictionaries import Decoder
from ffkv.model.experts import coefficients, last_calls, layout_of, positive_gates, written
from ffkv.model.placement import resident
from ffkv.model.tap import hooks


class Quantity(StrEnum):
    """A quantity by the letter of the paper (section 3.1). Members are in the order in which a layer computes them.

    y = s (m V + b + u), with s = 1 unless a norm follows the layer, and u = 0 unless a dictionary stands in its place.
    """

    FF_INPUT = "x"  # [sentence, token, d]
    GATE = "g"  # whether the gate of each memory is positive [sentence, token, d_m]; gated layers only
    COEFFICIENTS = "m"  # [sentence, token, d_m]
    BIAS = "b"  # what the layer adds beside its memories, before a norm or map after it [sentence, token, d]
    FACTOR = "s"  # by which a norm after the layer scales each token [sentence, token, 1]; only with such a norm
    ERROR = "u"  # what a dictionary leaves, before such a norm [sentence, token, d]; only of a layer that is read through one
    FF_OUTPUT = "y"  # as it is added to the residual [sentence, token, d]
    BLOCK_OUTPUT = "o"  # [sentence, token, d]
    END = "e"  # what the head reads [sentence, token, d]; only for a last layer whose o is something else


OnTensor = Callable[[Layer, Quantity, Tensor], None]
States = dict[str, Tensor]  # of one layer, by quantity
OF_MATRICES = {Quantity.GATE, Quantity.COEFFICIENTS, Quantity.BIAS, Quantity.FACTOR, Quantity.ERROR, Quantity.FF_OUTPUT}


class _AllSeen(Exception):
    """Ends a forward pass: a hook has no other way to tell the model that the rest of the pass is not needed."""


@contextlib.contextmanager
def tap(
    model: nn.Module, layers: Sequence[Layer], quantities: Collection[str], whole: bool = False
) -> Iterator[Callable[..., Any]]:
    """Inside the `with` statement, forward passes hand out each wanted quantity of each layer as soon as it exists.

    Args:
        model: a proven model whose experts keep records (`record_experts`).
        layers: the layers to read, in order of execution.
        quantities: members of `Quantity`, or their letters in a string, such as "xmyo".
        whole: do not stop after the last wanted quantity.
    Yields:
        A function run(ids, on_tensor): one forward pass over ids [sentence, token] that stops after the last wanted
        quantity and returns None; if it is to be `whole`, it returns what the model returns. Named arguments go to the
        model. `on_tensor` is called with the layer, the quantity and its tensor [sentence, token, .]. The tensor may be
        the model's own memory: use or copy it before `on_tensor` returns.
    """
    wanted = [q for q in Quantity if q in quantities and (q != Quantity.END or layers[-1].readout_block)]
    has = {Quantity.FACTOR: layers[-1].output_kind == "norm", Quantity.ERROR: layers[-1].is_dictionary}
    last = next((q for q in reversed(wanted) if has.get(q, True)), None)
    # Of the pass that is running: the shape of its ids (sentences, tokens), and who receives its quantities.
    shape: tuple[int, ...]
    receive: OnTensor

    def emit(layer: Layer, quantity: Quantity, tensor: Tensor) -> None:
        if quantity not in wanted:
            return
        receive(layer, quantity, tensor.reshape(*shape, tensor.shape[-1]))
        if layer is layers[-1] and quantity == last and not whole:
            raise _AllSeen

    def run(ids: Tensor, on_tensor: OnTensor, **arguments: Any) -> Any:
        nonlocal shape, receive
        shape, receive = ids.shape, on_tensor
        with contextlib.suppress(_AllSeen):
            return hooks.forward(model, ids, **arguments)

    repeats, counting = hooks.counting_repeats(model, {layer.block for layer in layers})
    with hooks.before(*counting), contextlib.ExitStack() as stack:
        for layer in layers:
            for when, name, hook in _layer_hooks(model, layer, wanted, emit):
                own = partial(hooks.in_own_repeat, layer, repeats, hook)
                stack.enter_context(when((model.get_submodule(name), own)))
        yield run


def observe(
    model: nn.Module, layers: Sequence[Layer], ids: Tensor, quantities: Collection[str] = "mbsyo", **arguments: Any
) -> list[States]:
    """Copies of some quantities of layers on ids [sentence, token], in float32, from one pass. Arguments go to the model."""
    states: dict[int, States] = {layer.index: {} for layer in layers}

    def copy(layer: Layer, quantity: Quantity, tensor: Tensor) -> None:
        states[layer.index][quantity] = tensor.float().clone()

    with tap(model, layers, quantities) as run:
        run(ids, copy, **arguments)
    return [*states.values()]


def _layer_hooks(model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor) -> Iterator[hooks.NamedHook]:
    def emit_input(quantity: Quantity, module: nn.Module, args: tuple, kwargs: dict) -> None:
        emit(layer, quantity, hooks.hidden_input(args, kwargs))

    def emit_output(quantity: Quantity, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        emit(layer, quantity, hooks.known_state(output))

    if Quantity.FF_INPUT in wanted:
        yield hooks.before, layer.second_matrices[0].first_matrices[0], partial(emit_input, Quantity.FF_INPUT)
    if OF_MATRICES & {*wanted}:
        alone = len(layer.second_matrices) == 1 and not layer.output_module
        # y is the output of one second matrix, as it is or scaled.
        simple = alone and layout_of(model.get_submodule(layer.second_matrices[0].module)) is None
        yield from (_matrix_hooks if simple else _joint_hooks)(model, layer, wanted, emit)
    if Quantity.BLOCK_OUTPUT in wanted and layer.sum_module:
        yield hooks.before, layer.sum_module, partial(emit_input, Quantity.BLOCK_OUTPUT)
    elif Quantity.BLOCK_OUTPUT in wanted:
        yield hooks.after, layer.block, partial(emit_output, Quantity.BLOCK_OUTPUT)
    if Quantity.END in wanted and layer.readout_block:
        yield hooks.after, layer.readout_block, partial(emit_output, Quantity.END)


def _matrix_hooks(model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor) -> Iterator[hooks.NamedHook]:
    """Yields the hooks of a simple layer. Nothing is copied, and m is read before the second matrix works."""
    matrix = layer.second_matrices[0]
    bias = bias_of(model.get_submodule(matrix.module), matrix) if Quantity.BIAS in wanted else None

    def on_input(module: nn.Module, args: tuple, kwargs: dict) -> None:
        emit(layer, Quantity.COEFFICIENTS, hooks.hidden_input(args, kwargs))

    def on_output(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        scale = matrix.scale if isinstance(matrix.scale, float) else output.new_tensor(matrix.scale)
        if bias is not None and not isinstance(module, Decoder):
            emit(layer, Quantity.BIAS, (scale * bias).expand(flat(output).shape))
        if isinstance(module, Decoder) and {Quantity.BIAS, Quantity.ERROR} & {*wanted}:
            beside, error = module.rest(*args)
            emit(layer, Quantity.BIAS, scale * beside)
            emit(layer, Quantity.ERROR, scale * error)
        emit(layer, Quantity.FF_OUTPUT, output if matrix.scale == 1 else scale * output)

    def on_gate(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        emit(layer, Quantity.GATE, columns_of(output, matrix.gate_columns) > 0)

    yield hooks.before, matrix.module, on_input
    yield hooks.after, matrix.module, on_output
    if Quantity.GATE in wanted and matrix.gate:
        yield hooks.after, matrix.gate, on_gate


class _Trace(NamedTuple):
    """What one second matrix did."""

    m: Tensor  # its coefficients [token, memory]
    z: Tensor  # what it wrote [token, d]
    bias: Tensor  # the part of z that no memory wrote [token or 1, d]
    error: Tensor  # the part of z that a dictionary leaves [token or 1, d]


class _Outcome(NamedTuple):
    """What a layer's output module did."""

    input: Tensor  # what it read [token, d]
    output: Tensor  # what it returned [token, d]


def _joint_hooks(model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor) -> Iterator[hooks.NamedHook]:
    assembly = _Assembly(model, layer, wanted, emit)
    for matrix in layer.second_matrices:
        yield hooks.after, matrix.module, partial(assembly.on_second_matrix, matrix)
        if matrix.gate and matrix.gate_columns and Quantity.GATE in wanted:
            yield hooks.after, matrix.gate, partial(assembly.on_gate, matrix)
    if layer.output_module:
        yield hooks.after, layer.output_module, assembly.on_output_module


class _Assembly:
    """The pieces of one layer that this forward pass has seen so far, by second matrix. The last one gives m and y."""

    def __init__(self, model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor):
        self.layer, self.wanted, self.emit = layer, wanted, emit
        self.traces, self.gates = dict[str, _Trace](), dict[str, Tensor]()
        # What each second matrix returns for zero [1, d].
        self.biases = {own.module: bias_of(model.get_submodule(own.module), own) for own in layer.second_matrices}
        self.gain: Tensor | None = None
        if layer.output_kind == "norm":
            self.gain = norm_gain(model.get_submodule(layer.output_module), next(iter(self.biases.values())))

    def on_second_matrix(self, matrix: SecondMatrix, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        call = last_calls.get(module)
        bias = self.biases[matrix.module] if call is None else call.bias
        m, z = coefficients(module, hooks.hidden_input(args, kwargs)), written(module, output)
        error = bias.new_zeros(1, 1)
        if isinstance(module, Decoder):
            bias, error = module.rest(m, args[1])
        # Copies, because the model may add to its own memory in place before the layer is finished.
        self.traces[matrix.module] = _Trace(*(flat(tensor).clone() for tensor in (m, z, bias, error)))
        if call is not None:
            if matrix.gate and Quantity.GATE in self.wanted:
                self.gates[matrix.module] = positive_gates(module)
            del last_calls[module]
        if not self.layer.output_module and len(self.traces) == len(self.layer.second_matrices):
            self._finish(None)

    def on_gate(self, matrix: SecondMatrix, module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        self.gates[matrix.module] = flat(columns_of(output, matrix.gate_columns)) > 0

    def on_output_module(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        self._finish(_Outcome(flat(hooks.hidden_input(args, kwargs)), flat(hooks.known_state(output))))

    def _finish(self, outcome: _Outcome | None) -> None:
        """Emits everything and forgets the pieces."""
        layer, matrices = self.layer, self.layer.second_matrices
        traces = [self.traces[matrix.module] for matrix in matrices]
        gates = [
            self.gates.get(matrix.module, torch.zeros_like(own.m, dtype=torch.bool))
            for matrix, own in zip(matrices, traces, strict=True)
            if layer.gated and Quantity.GATE in self.wanted
        ]
        self.traces, self.gates = {}, {}
        m, y, bias, error = _assemble(layer, traces, outcome)
        del traces  # they are as large as m, y and bias
        if gates:
            self.emit(layer, Quantity.GATE, torch.cat(gates, -1))
        self.emit(layer, Quantity.COEFFICIENTS, m)
        self.emit(layer, Quantity.BIAS, bias.expand(y.shape))
        if layer.is_dictionary:
            self.emit(layer, Quantity.ERROR, error)
        if self.gain is not None and outcome is not None and Quantity.FACTOR in self.wanted:
            direction = self.gain * outcome.input  # output = factor * gain * input
            factor = token_weights(direction[None], outcome.output)[0][:, None].to(direction.dtype)
            self.emit(layer, Quantity.FACTOR, factor)
        self.emit(layer, Quantity.FF_OUTPUT, y)


def _assemble(layer: Layer, traces: list[_Trace], outcome: _Outcome | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns m and y of a layer, what the sum before its output module holds beside memories, and what a dictionary leaves of it
    [token or 1, d]."""
    scales = [scale_of(matrix, own.z) for matrix, own in zip(layer.second_matrices, traces, strict=True)]
    weights = _weights(layer, [scale * own.z for scale, own in zip(scales, traces, strict=True)], outcome)
    weighted = list(zip(weights, scales, traces, strict=True))
    m = torch.cat([weight * own.m for weight, _, own in weighted], -1)
    bias, error = (_sum(weight * scale * own[part] for weight, scale, own in weighted) for part in (2, 3))
    if outcome is None:
        return m, _sum(weight * scale * own.z for weight, scale, own in weighted), bias, error
    return m, layer.output_scale * outcome.output, bias, error


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
            return torch.zeros_like(layout.values(0)[:1])
        like: Any = module.weight
        return flat(module(like.new_zeros(1, matrix.memories)))


def norm_gain(module: nn.Module, like: Tensor) -> Tensor:
    """Returns the constant gain of a norm without a mean, per dimension [d]: its output for a vector of ones."""
    ones = torch.ones_like(like.reshape(-1, like.shape[-1])[:1])
    with torch.no_grad():
        return hooks.known_state(module(ones))[0]


def columns_of(output: Tensor, columns: str) -> Tensor:
    """Returns the columns of a first matrix's output that `SecondMatrix.gate_columns` names."""
    half = output.shape[-1] // 2
    return output[..., {"all": slice(None), "first half": slice(half), "second half": slice(half, None)}[columns]]


def flat(state: Tensor) -> Tensor:
    """[token, .], whatever the number of dimensions in front."""
    return state.reshape(-1, state.shape[-1])
