"""Holds the factors of norms and the patterns of attention while gradients are computed, in any model.

Functions of torch are caught by what they compute, so that no class of a model is named. Only gradients change: what the
functions return is the same.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

PATTERN_DIMENSIONS = 4  # of attention: sentence, head, token, token. Routers have fewer.


class Frozen(TorchFunctionMode):
    """Inside the `with` statement, gradients hold what norms divide by, and how much each token attends to each one.

    A norm that computes its own square root is held, too: the reciprocal root and the root of a mean have no gradient.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Calls a function of torch, or what stands for it."""
        return _INSTEAD.get(function, _same)(function, *args, **(kwargs or {}))


def _same(function: Callable, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _constant(function: Callable, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs).detach()


def _power(function: Callable, x: Any, exponent: Any) -> Any:
    result = function(x, exponent)
    return result.detach() if exponent in (0.5, -0.5) else result


def _softmax(function: Callable, scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    result = function(scores, *args, **kwargs)
    return result.detach() if scores.ndim >= PATTERN_DIMENSIONS else result


def _layer_norm(
    function: Callable,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    factor = (centred.square().mean(axes, keepdim=True) + eps).rsqrt().detach()
    scaled = centred * factor if weight is None else centred * factor * weight
    return scaled if bias is None else scaled + bias


def _rms_norm(
    function: Callable, x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    factor = (x.square().mean(axes, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt().detach()
    return x * factor if weight is None else x * factor * weight


def _attention(
    function: Callable,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        copies = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(copies, -3) for each in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if hidden else scores + attn_mask
    return scores.softmax(-1).detach() @ value


_INSTEAD: dict[Any, Callable] = {
    torch.rsqrt: _constant,
    Tensor.rsqrt: _constant,
    torch.sqrt: _constant,
    Tensor.sqrt: _constant,
    torch.pow: _power,
    Tensor.pow: _power,
    Tensor.__pow__: _power,
    torch.softmax: _softmax,
    Tensor.softmax: _softmax,
    functional.softmax: _softmax,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.scaled_dot_product_attention: _attention,
}
