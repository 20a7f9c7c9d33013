"""Reads m, x, y and o of chosen layers while the model runs."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from ffkv.model.anatomy import Layer
from ffkv.model.hooks import after, before, forward, given, hidden

QUANTITIES = ("x", "g", "m", "y", "o")  # in the order in which a block computes them


class _Enough(Exception):
    """Everything that was asked for has been seen: the rest of the pass is not needed."""


@contextlib.contextmanager
def tap(
    model: nn.Module, layers: Sequence[Layer], quantities: str, take: Callable[[Layer, str, Tensor], None]
) -> Iterator[Callable[[Tensor], None]]:
    """While the block runs, hands each wanted quantity of each wanted layer to `take` as soon as it exists.

    Args:
        layers: in order of execution.
        quantities: some of "xgmyo", in the words of the paper (section 3.1): FF input x, memory coefficients m, FF output
            y as it is added, block output o; g: whether the gate of each memory is positive (of gated layers only).
        take: called with the layer, the quantity and the tensor [sentence, token, d or d_m]. The tensor is the model's
            own: it is to be consumed or copied before `take` returns.
    Yields:
        A function that runs the model on ids [sentence, token], as far as the last wanted quantity of the last layer.
    """
    wanted = [quantity for quantity in QUANTITIES if quantity in quantities]
    shape: list[int] = []

    def give(layer: Layer, quantity: str, tensor: Tensor) -> None:
        take(layer, quantity, tensor.reshape(*shape, tensor.shape[-1]))
        if layer is layers[-1] and quantity == wanted[-1]:
            raise _Enough

    ahead, behind = [], []
    for layer in layers:
        block, write = model.get_submodule(layer.block), model.get_submodule(layer.writes[0].module)
        if "x" in wanted:
            ahead.append(
                (
                    model.get_submodule(layer.writes[0].readers[0]),
                    lambda module, args, kwargs, at=layer: give(at, "x", given(args, kwargs)),
                )
            )
        if "g" in wanted and layer.gated:
            behind.append(
                (
                    model.get_submodule(layer.writes[0].gate),
                    lambda module, args, kwargs, output, at=layer: give(at, "g", output > 0),
                )
            )
        if "m" in wanted:
            ahead.append((write, lambda module, args, kwargs, at=layer: give(at, "m", args[0])))
        if "y" in wanted:
            behind.append(
                (
                    write,
                    lambda module, args, kwargs, output, at=layer: give(
                        at, "y", output if at.writes[0].scale == 1 else at.writes[0].scale * output
                    ),
                )
            )
        if "o" in wanted and layer.site:
            ahead.append(
                (
                    model.get_submodule(layer.site),
                    lambda module, args, kwargs, at=layer: give(at, "o", given(args, kwargs)),
                )
            )
        elif "o" in wanted:
            behind.append((block, lambda module, args, kwargs, output, at=layer: give(at, "o", hidden(output))))

    def run(ids: Tensor) -> None:
        shape[:] = ids.shape
        with contextlib.suppress(_Enough):
            forward(model, ids)

    with before(*ahead), after(*behind):
        yield run
