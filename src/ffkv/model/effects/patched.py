"""Runs a prefix again with many memories changed at its last token, in all layers at once."""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.rerun import Unchanged, behind
from ffkv.model.tap.resume import with_output
from ffkv.model.tap.tap import tap

# From a layer, the coefficients [copy, memory] and the factor of a norm after it [copy, 1] at the last token of all copies of
# all prefixes, to what o of each copy is changed by [copy, d].
Edit = Callable[[Layer, Tensor, Tensor], Tensor]


def patched_ends(
    loaded: LoadedModel, layers: Sequence[Layer], bases: Sequence[Unchanged], copies: int, edit: Edit, keep: bool
) -> Tensor:
    """Returns what the head reads at the last token of each prefix, for each copy of it, float32 [prefix, copy, d].

    In each copy, o of the layers changes at the last token by what `edit` says of the coefficients that the copy has there: a
    layer sees what the layers before it did.

    Args:
        layers: the layers that change, ascending.
        bases: the prefixes, see `run_unchanged`. Without `keep` only one.
        copies: number of copies of each prefix.
        keep: whether the model keeps keys and values, see `keeps`. Without them each copy reads the whole prefix.
    """
    final = loaded.anatomy.layers[-1]
    if keep:
        ids, arguments = behind(bases, [copies] * len(bases))
    else:
        ids, arguments = bases[0].ids.expand(copies, -1), {}
    seen: dict[str, Tensor] = {}
    ends: list[Tensor] = []

    def last(tensor: Tensor) -> Tensor:
        """[copy of each prefix, .], of the last token."""
        return tensor.reshape(-1, tensor.shape[-1]) if keep else tensor.reshape(*ids.shape, -1)[:, -1]

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is final and quantity == loaded.anatomy.end:
            ends.append(last(tensor).float().clone())
        elif quantity in "ms":
            seen[quantity] = last(tensor).float().clone()

    def change(layer: Layer, o: Tensor) -> Tensor:
        states = o.reshape(*ids.shape, o.shape[-1]).clone()
        m = seen.pop("m")
        by = edit(layer, m, seen.pop("s", m.new_ones(len(m), 1))).to(o.device, o.dtype)
        if keep:
            states += by.reshape(states.shape)
        else:
            states[:, -1] += by
        return states.reshape(o.shape)

    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(with_output(loaded.model, layer, partial(change, layer)))
        read = [*layers, *([] if final in layers else [final])]
        run = stack.enter_context(tap(loaded.model, read, f"ms{loaded.anatomy.end}"))
        run(ids, receive, **arguments)
    return ends[0].reshape(len(bases), copies, -1)
