"""Reads x, m, y and o of chosen layers while the model runs."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from ffkv.model.anatomy import Layer
from ffkv.model.experts.layouts import layout_of
from ffkv.model.tap.assemble import assembly_hooks, bias_of, columns_of, flat
from ffkv.model.tap.hooks import (
    NamedHook,
    after,
    before,
    counting_repeats,
    forward,
    hidden_input,
    in_own_repeat,
    known_state,
)
from ffkv.model.tap.quantities import OnTensor, Quantity

OF_MATRICES = {Quantity.GATE, Quantity.COEFFICIENTS, Quantity.BIAS, Quantity.FACTOR, Quantity.FF_OUTPUT}


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
    has_factor = layers[-1].output_kind == "norm"
    last = next((q for q in reversed(wanted) if q != Quantity.FACTOR or has_factor), None)  # of the last layer
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
            return forward(model, ids, **arguments)

    repeats, counting = counting_repeats(model, {layer.block for layer in layers})
    with before(*counting), contextlib.ExitStack() as stack:
        for layer in layers:
            for when, name, hook in _layer_hooks(model, layer, wanted, emit):
                own = partial(in_own_repeat, layer, repeats, hook)
                stack.enter_context(when((model.get_submodule(name), own)))
        yield run


def _layer_hooks(model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor) -> Iterator[NamedHook]:
    """Yields the hooks that read one layer."""

    def emit_input(quantity: Quantity, module: nn.Module, args: tuple, kwargs: dict) -> None:
        emit(layer, quantity, hidden_input(args, kwargs))

    def emit_output(quantity: Quantity, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        emit(layer, quantity, known_state(output))

    if Quantity.FF_INPUT in wanted:
        yield before, layer.second_matrices[0].first_matrices[0], partial(emit_input, Quantity.FF_INPUT)
    if OF_MATRICES & {*wanted}:
        alone = len(layer.second_matrices) == 1 and not layer.output_module
        # y is the output of one second matrix, as it is or scaled.
        simple = alone and layout_of(model.get_submodule(layer.second_matrices[0].module)) is None
        yield from (_matrix_hooks if simple else assembly_hooks)(model, layer, wanted, emit)
    if Quantity.BLOCK_OUTPUT in wanted and layer.sum_module:
        yield before, layer.sum_module, partial(emit_input, Quantity.BLOCK_OUTPUT)
    elif Quantity.BLOCK_OUTPUT in wanted:
        yield after, layer.block, partial(emit_output, Quantity.BLOCK_OUTPUT)
    if Quantity.END in wanted and layer.readout_block:
        yield after, layer.readout_block, partial(emit_output, Quantity.END)


def _matrix_hooks(model: nn.Module, layer: Layer, wanted: list[Quantity], emit: OnTensor) -> Iterator[NamedHook]:
    """Yields the hooks of a simple layer. Nothing is copied, and m is read before the second matrix works."""
    matrix = layer.second_matrices[0]
    bias = bias_of(model.get_submodule(matrix.module), matrix) if Quantity.BIAS in wanted else None

    def on_input(module: nn.Module, args: tuple, kwargs: dict) -> None:
        emit(layer, Quantity.COEFFICIENTS, hidden_input(args, kwargs))

    def on_output(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        scale = matrix.scale if isinstance(matrix.scale, float) else output.new_tensor(matrix.scale)
        if bias is not None:
            emit(layer, Quantity.BIAS, (scale * bias).expand(flat(output).shape))
        emit(layer, Quantity.FF_OUTPUT, output if matrix.scale == 1 else scale * output)

    def on_gate(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        emit(layer, Quantity.GATE, columns_of(output, matrix.gate_columns) > 0)

    yield before, matrix.module, on_input
    yield after, matrix.module, on_output
    if Quantity.GATE in wanted and matrix.gate:
        yield after, matrix.gate, on_gate
