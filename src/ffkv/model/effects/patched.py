"""Runs a prefix again with many memories changed at its last tokens, in all layers at once."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.rerun import Unchanged, behind
from ffkv.model.tap.resume import with_output
from ffkv.model.tap.tap import tap

# From a layer, the coefficients [copy, token, memory] and the factor of a norm after it [copy, token, 1] at the last tokens of
# all copies of all prefixes, to what o of each copy is changed by there [copy, token, d].
Edit = Callable[[Layer, Tensor, Tensor], Tensor]


def patched_ends(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    bases: Sequence[Unchanged],
    copies: int,
    edit: Edit,
    keep: bool,
    tokens: int = 1,
) -> Tensor:
    """Returns what the head reads at the last token of each prefix, for each copy of it, float32 [prefix, copy, d].

    In each copy, o of the layers changes at the last tokens by what `edit` says of the coefficients that the copy has there: a
    layer sees what the layers before it did.

    Args:
        layers: the layers that change, ascending.
        bases: the prefixes, see `run_unchanged`. Without `keep` only one.
        copies: number of copies of each prefix.
        keep: whether the model keeps keys and values, see `keeps`. Without them each copy reads the whole prefix.
        tokens: number of tokens at its end that change. With `keep` it is 1.
    """
    final = loaded.anatomy.layers[-1]
    if keep:
        ids, arguments = behind(bases, [copies] * len(bases))
    else:
        ids, arguments = bases[0].ids.expand(copies, -1), {}
    shape = (-1, 1) if keep else ids.shape  # copies of all prefixes, and their tokens
    seen: dict[str, Tensor] = {}
    ends: list[Tensor] = []

    def last(tensor: Tensor) -> Tensor:
        """[copy of each prefix, token, .], of the last tokens."""
        return tensor.reshape(*shape, tensor.shape[-1])[:, -tokens:]

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is final and quantity == loaded.anatomy.end:
            ends.append(last(tensor)[:, -1].float().clone())
        elif quantity in "ms":
            seen[quantity] = last(tensor).float().clone()

    def change(layer: Layer, o: Tensor) -> Tensor:
        states = o.reshape(*shape, o.shape[-1]).clone()
        m = seen.pop("m")
        states[:, -tokens:] += edit(layer, m, seen.pop("s", m.new_ones(*m.shape[:2], 1))).to(o.device, o.dtype)
        return states.reshape(o.shape)

    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(with_output(loaded.model, layer, partial(change, layer)))
        read = [*layers, *([] if final in layers else [final])]
        run = stack.enter_context(tap(loaded.model, read, f"ms{loaded.anatomy.end}"))
        run(ids, receive, **arguments)
    return ends[0].reshape(len(bases), copies, -1)
