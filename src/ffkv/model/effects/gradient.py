"""How much a number that is read from the end of the model depends on the output of each layer: one backward pass.

The factors of norms and the patterns of attention can be held meanwhile, in any model. Functions of torch are caught by what
they compute, so that no class of a model is named. Only gradients change: what the functions return is the same. A model may
use other functions: `why_not_held` looks whether its norms and its attention are held. What is held is linear: its gradient
does not depend on what it reads, so that its second derivative is exactly 0.
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ffkv.base.errors import UserError
from ffkv.base.fault import BatchTooLarge
from ffkv.base.terminal import say
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap import hooks
from ffkv.model.tap.change import with_output
from ffkv.model.tap.tap import Quantity, tap

TOLERANCE = 1e-3  # relative: a held pass rounds otherwise; a wrong one is off by more than 1e-2
FAR = 1e4  # times: a norm makes the same of a vector so many times as long
TRIED = 12  # tokens
PATTERN_DIMENSIONS = 4  # of attention: sentence, head, token, token; or with sentences and heads in one dimension


class Linked(NamedTuple):
    """A pass whose end knows what it depends on.

    Zeros were added to o of each layer. Gradients are those with respect to the zeros. So they say what any change of o does, as far
    as this is linear, whatever the layer is made of.
    """

    loaded: LoadedModel
    zeros: list[Tensor]  # by layer, shaped as its o
    end: Tensor  # what the head reads [sentence, token, d]

    def gradients(self, end: Tensor, along: Tensor, again: bool = False) -> list[Tensor]:
        """Returns how much the sum of `end` times `along` depends on o of each layer, float32 [layer][sentence, token, d].

        `end`: the end of the pass, or a part of it, shaped as `along`. `again`: whether the pass is differentiated once more.
        Raises UserError: the model cannot be differentiated: something between a layer and the end has no gradient.
        """
        found = differentiate(self.loaded, end, self.zeros, along.to(end), retain_graph=again)
        layers = zip(self.loaded.anatomy.layers, found, strict=True)
        if missing := [layer.index for layer, gradient in layers if gradient is None]:
            raise UserError(
                f"{self.loaded.anatomy.checkpoint} cannot be differentiated: no gradient comes from the end of the model to layer"
                f" {missing[0]}."
            )
        tokens = self.end.shape[:2]
        return [gradient.float().reshape(*tokens, -1) for gradient in found if gradient is not None]

    def at(self, tokens: Tensor, of_end: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], Tensor]:
        """Returns how much a number that is read at one token of each sentence depends on o of each layer at each token.

        `tokens`: position of the token [sentence]. `of_end`: the gradient of the number with respect to what the head reads there,
        from the latter [sentence, d], which is returned, too, in float32. For gradients and errors see `gradients`.
        """
        device = self.end.device
        with torch.enable_grad():
            read = self.end[torch.arange(len(tokens), device=device), tokens.to(device)]
        end = read.detach().float()
        return self.gradients(read, of_end(end)), end


def differentiate(loaded: LoadedModel, made: Any, of: Any, along: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """Returns how much the sum of what a model made times `along` depends on each of some tensors; None if it does not.

    `options`: of `torch.autograd.grad`. Raises UserError if something between them has no gradient, or the memory does not suffice.
    """
    try:
        with hooks.enough_memory(lambda: hooks.weight_bytes(loaded.model), BatchTooLarge):
            return torch.autograd.grad(made, of, along, allow_unused=True, **options)
    except RuntimeError as error:
        raise UserError(f"{loaded.anatomy.checkpoint} cannot be differentiated: {str(error)[:200]}") from error


def link(
    loaded: LoadedModel,
    ids: Tensor,
    on_tensor: Callable[[Layer, Quantity, Tensor], None] = lambda layer, quantity, tensor: None,
    quantities: str = "",
    edit: Callable[[Layer, Tensor, Tensor], Tensor] | None = None,
) -> Linked:
    """Runs a model on tokens [sentence, token], so that its end can be differentiated.

    Args:
        on_tensor: called with the layer, the quantity and its tensor, as by `tap`, for `quantities`.
        edit: by what o of a layer is changed at all tokens [sentence, token, d], from the layer, m [sentence, token, memory] and the
            factor of a norm after it [sentence, token, 1]. The gradient passes through it, too.
    """
    model, layers = loaded.model, loaded.anatomy.layers
    model.requires_grad_(False)  # gradients with respect to weights would take as long again
    zeros = [torch.empty(0)] * len(layers)
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
            ends.append(tensor)  # the pass ends with it, so that nobody changes it
        if edit is not None and quantity in "ms":
            seen[quantity] = tensor
        if quantity in quantities:
            on_tensor(layer, quantity, tensor.detach())

    with contextlib.ExitStack() as stack:
        for number, layer in enumerate(layers):
            stack.enter_context(with_output(model, layer, partial(add_zeros, number)))
        run = stack.enter_context(tap(model, layers, {*quantities, *("ms" if edit else ""), loaded.anatomy.end}))
        run(ids, receive, gradients=True)
    return Linked(loaded, zeros, ends[0])


class Frozen(TorchFunctionMode):
    """Inside the `with` statement, gradients hold what norms divide by, and how much each token attends to each one.

    A norm that computes its own square root is held, too: roots, lengths and standard deviations have no gradient.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Calls a function of torch, or what stands for it."""
        held = partial(_INSTEAD[function], function) if function in _INSTEAD else function
        return held(*args, **(kwargs or {}))


def _constant(function: Callable, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs).detach()


def _power(function: Callable, input: Any, exponent: Any) -> Any:
    result = function(input, exponent)
    if torch.is_tensor(exponent):
        exponent = exponent.item() if exponent.numel() == 1 else None
    return result.detach() if exponent in (0.5, -0.5) else result


def _softmax(function: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    result = function(input, *args, **kwargs)
    # In a pattern [., token, token] no token has a weight of a later one. Routers give every expert a weight.
    square = result.ndim == PATTERN_DIMENSIONS - 1 and result.shape[-1] == result.shape[-2]
    held = input.ndim >= PATTERN_DIMENSIONS or (square and not result.triu(1).any())
    return result.detach() if held else result


def _layer_norm(
    function: Callable,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(axes, keepdim=True)
    factor = (centred.square().mean(axes, keepdim=True) + eps).rsqrt().detach()
    scaled = centred * factor if weight is None else centred * factor * weight
    return scaled if bias is None else scaled + bias


def _rms_norm(
    function: Callable, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    added = torch.finfo(input.dtype).eps if eps is None else eps
    scaled = input * (input.square().mean(axes, keepdim=True) + added).rsqrt().detach()
    return scaled if weight is None else scaled * weight


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
    **dict.fromkeys((torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt), _constant),
    **dict.fromkeys((torch.norm, Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm), _constant),
    **dict.fromkeys((torch.std, Tensor.std), _constant),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), _power),
    **dict.fromkeys((torch.softmax, Tensor.softmax, functional.softmax), _softmax),
    **dict.fromkeys((torch.logsumexp, Tensor.logsumexp), _softmax),  # a pattern with a sink may be scaled by it
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.scaled_dot_product_attention: _attention,
}


def held_gradients(
    loaded: LoadedModel, ids: Tensor, tokens: Tensor, of_end: Callable[[Tensor], Tensor], end: Tensor
) -> list[Tensor] | None:
    """Returns what `Linked.at` does with norms and attention held; None, and says so, if the `end` is another one then."""
    with Frozen():
        gradients, held_end = link(loaded, ids).at(tokens, of_end)
    if hooks.relative_error(held_end, end) < TOLERANCE:
        return gradients
    say("Norms and attention of this model cannot be held: a pass that holds them predicts otherwise.", error=True)
    return None


def why_not_held(loaded: LoadedModel, ids: Tensor) -> str:
    """Says why norms and attention of a model cannot be held; "" if they can.

    Each block, and each module right in it, is tried on the first tokens of a sentence [1, token], in one pass in which no
    feed-forward layer writes. A module that passes something on between tokens is attention. A module that makes the same of
    vectors of any length is a norm. Raises UserError if the memory does not suffice.
    """
    layers, model, ids = loaded.anatomy.layers, loaded.model, ids[:, :TRIED]
    blocks = hooks.blocks_beside(model, layers)
    parts = {f"{name}.{own}": part for name, block in blocks.items() for own, part in block.named_children()}
    mixing: set[str] = set()  # names of modules that pass something on between tokens
    curved: dict[str, tuple[nn.Module | None, Tensor, Any]] = {}  # what is not linear: a part, its state, all it got
    reads: list[list[Tensor]] = []  # what the modules read that are running

    def on_input(name: str, module: nn.Module, args: tuple, kwargs: dict) -> Any:
        state = hooks.hidden_argument(args, kwargs)
        reads.append([])

        def note(tensor: Tensor) -> Tensor:
            if state is None or tensor.shape != state.shape or not tensor.is_floating_point():
                return tensor
            reads[-1].append(tensor.detach().requires_grad_() if name in blocks else tensor.clone())
            return reads[-1][-1]

        return hooks.map_tensors(note, (args, kwargs))

    def on_output(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        made = hooks.hidden_state(output)
        read = [state for state in reads.pop() if state.requires_grad and state.shape[:2] == ids.shape]
        if not read or made is None or not made.requires_grad or made.shape[:2] != ids.shape:
            return output
        slopes = _slopes([made[:, -1]], read)
        before_last = [slope[:, :-1] for slope in slopes]  # of itself a token may also take a gated part
        if mixes := any(bool(slope.any()) for slope in before_last):
            mixing.add(name)
        curves = [each[:, :-1] for each in _slopes(before_last, read)] if mixes else _slopes(slopes, read)
        if any(bool(each.any()) for each in curves):
            state = read[0].detach()
            given = hooks.map_tensors(lambda each: state if each is read[0] else each, (args, kwargs))
            curved[name] = parts.get(name), state, given
        # So a block is not asked for what a part of it passes on.
        return hooks.map_tensors(torch.Tensor.detach, output) if mixes and name in parts else output

    modules = [*blocks, *parts]
    second = [(model.get_submodule(each.module), _off) for layer in layers for each in layer.second_matrices]
    model.requires_grad_(False)
    try:
        with (
            hooks.after(*second),
            hooks.before(*hooks.by_name(model, modules, on_input)),
            hooks.after(*hooks.by_name(model, modules, on_output)),
            Frozen(),
        ):
            hooks.forward(model, ids, gradients=True)
    except UserError:
        raise
    except Exception as error:  # the model's own code, or something that has no second derivative
        return f"the model does not run with them held ({type(error).__name__}: {str(error)[:200]})"
    return _told(model, mixing, curved)


def _off(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
    return hooks.replace_hidden_state(output, torch.zeros_like(hooks.known_state(output)))


def _told(model: nn.Module, mixing: set[str], curved: dict[str, tuple[nn.Module | None, Tensor, Any]]) -> str:
    """Says which of the modules that are not linear is attention or a norm; "" if none is. Arguments: see `why_not_held`."""
    for name, (part, state, given) in curved.items():
        kind = f"{name} ({type(model.get_submodule(name)).__name__})"
        if name in mixing:
            return f"{kind} passes something on between tokens, but not with the weights of a softmax"
        if part is not None and _divides(part, state, given):
            return f"{kind} is a norm whose division is not held"
    return ""


def _slopes(made: list[Tensor], read: list[Tensor]) -> list[Tensor]:
    """Returns how random sums of what was made depend on what was read, as far as they do."""
    made = [each for each in made if each.requires_grad]
    generator = torch.Generator().manual_seed(0)
    along = [torch.randn(each.shape, generator=generator).to(each) for each in made]
    found = torch.autograd.grad(made, read, along, create_graph=True, allow_unused=True) if made else ()
    return [slope for slope in found if slope is not None]


def _divides(module: nn.Module, state: Tensor, given: Any) -> bool:
    """Tells whether a module is a norm that is not held: it makes the same of longer vectors, and its gradient knows that."""

    def run(longer: Tensor) -> Tensor:
        args, kwargs = hooks.map_tensors(lambda each: longer if each is state else each, given)
        return hooks.known_state(module(*args, **kwargs))

    with contextlib.suppress(Exception), torch.enable_grad(), Frozen():  # what cannot run alone again is no norm
        made = run(state.requires_grad_())
        (slope,) = torch.autograd.grad(made, state, made.detach())
        same = hooks.relative_error(run(FAR * state), made) < 1 / FAR**0.5
        return same and bool((slope * state).sum() < 0.1 * made.square().sum())
    return False
