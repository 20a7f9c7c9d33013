"""How much a number that is read from the end of the model depends on the output of each layer: one backward pass."""

import contextlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.quantities import Quantity
from ffkv.model.tap.resume import with_output
from ffkv.model.tap.tap import tap


def output_gradients(
    loaded: LoadedModel,
    ids: Tensor,
    tokens: Tensor,
    of_end: Callable[[Tensor], Tensor],
    on_tensor: Callable[[Layer, Quantity, Tensor], None] = lambda layer, quantity, tensor: None,
    quantities: str = "",
    edit: Callable[[Layer, Tensor, Tensor], Tensor] | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Returns how much a number depends on o of each layer at each token, and the end at one token of each sentence.

    Zeros are added to o of each layer. What is returned is the gradient with respect to them. So it says what any change of o
    does, as far as this is linear, whatever the layer is made of.

    Args:
        ids: tokens [sentence, token].
        tokens: position of the token that the number is read from [sentence].
        of_end: the gradient of the number with respect to what the head reads at the token, from the latter [sentence, d].
        on_tensor: called with the layer, the quantity and its tensor, as by `tap`, for `quantities`.
        edit: by what o of a layer is changed at all tokens [sentence, token, d], from the layer, m [sentence, token, memory] and the
            factor of a norm after it [sentence, token, 1]. The gradient passes through it, too.
    Returns:
        The gradients, by layer [layer][sentence, token, d], and what the head reads at the token [sentence, d], float32.
    Raises:
        UserError: the model cannot be differentiated: something between a layer and the end has no gradient.
    """
    model, layers = loaded.model, loaded.anatomy.layers
    model.requires_grad_(False)  # gradients with respect to weights would take as long again
    rows = torch.arange(len(ids))
    zeros: list[Tensor] = []
    ends: list[Tensor] = []
    seen: dict[str, Tensor] = {}  # of the layer that runs

    def add_zeros(number: int, o: Tensor) -> Tensor:
        zeros[number] = torch.zeros_like(o, requires_grad=True)
        if edit is None:
            return o + zeros[number]
        m = seen.pop("m")
        change = edit(layers[number], m, seen.pop("s", m.new_ones(*m.shape[:2], 1)))
        return o + zeros[number] + change.reshape(o.shape).to(o)

    def receive(layer: Layer, quantity: Quantity, tensor: Tensor) -> None:
        if layer is layers[-1] and quantity == loaded.anatomy.end:
            ends.append(tensor[rows.to(tensor.device), tokens.to(tensor.device)].clone())
        if edit is not None and quantity in "ms":
            seen[quantity] = tensor
        if quantity in quantities:
            on_tensor(layer, quantity, tensor.detach())

    with contextlib.ExitStack() as stack:
        for number, layer in enumerate(layers):
            zeros.append(torch.empty(0))
            stack.enter_context(with_output(model, layer, partial(add_zeros, number)))
        run = stack.enter_context(tap(model, layers, {*quantities, *("ms" if edit else ""), loaded.anatomy.end}))
        run(ids, receive, gradients=True)
    try:
        found = torch.autograd.grad(ends[0], zeros, of_end(ends[0].detach().float()).to(ends[0]), allow_unused=True)
    except RuntimeError as error:
        raise UserError(
            f"{loaded.anatomy.checkpoint} cannot be differentiated, so memories cannot be screened: {str(error)[:200]}"
        ) from error
    missing = [layer.index for layer, gradient in zip(layers, found, strict=True) if gradient is None]
    if missing:
        raise UserError(
            f"{loaded.anatomy.checkpoint} cannot be differentiated, so memories cannot be screened: no gradient comes from the"
            f" end of the model to layer {missing[0]}."
        )
    return [gradient.float().reshape(*ids.shape, -1) for gradient in found], ends[0].detach().float()
