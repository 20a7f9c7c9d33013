"""Changes coefficients and outputs of layers while the model runs, or begins a forward pass behind a layer."""

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.base.process.libraries import replaced
from ffkv.model.anatomy import Layer
from ffkv.model.experts import changed_coefficients, layout_of
from ffkv.model.tap import hooks

Place = tuple[int, int]  # a layer and a memory, both from 0


@contextlib.contextmanager
def scaled(
    model: nn.Module, layers: Sequence[Layer], factors: Mapping[Place, float], token: int | None = None
) -> Iterator[None]:
    """Inside the `with` statement, some coefficients are multiplied by factors when the second matrix reads them.

    All that comes after the second matrix, a norm too, works on what it then returns. A tap inside the statement reads
    the changed coefficients. `model`: a proven model whose experts keep records (`record_experts`). `layers`: all of the model.
    `factors`: the factor of each memory that changes; a layer that runs several times changes in its own repeat only. `token`:
    the only token at which they change, as a position; the model may then run on one sentence at a time. None: every token.
    """
    # Several layers may share one bank or one matrix: those of a block that runs several times.
    changed = [layers[number] for number in sorted({layer for layer, _ in factors})]
    repeats, pairs = hooks.counting_repeats(model, {layer.block for layer in changed})
    with contextlib.ExitStack() as stack:
        for layer in changed:
            ends = accumulate((matrix.memories for matrix in layer.second_matrices), initial=0)
            own = {memory: factor for (number, memory), factor in factors.items() if number == layer.index}
            for matrix, first in zip(layer.second_matrices, ends, strict=False):
                inside = {m - first: factor for m, factor in own.items() if 0 <= m - first < matrix.memories}
                module, in_repeat = model.get_submodule(matrix.module), partial(hooks.in_own_repeat, layer, repeats)
                if not inside:
                    continue
                if (layout := layout_of(module)) is None:
                    pairs.append((module, partial(in_repeat, _scale_input, inside, token)))
                else:
                    change = partial(in_repeat, _scale_experts, inside, token, layout.units)
                    stack.enter_context(changed_coefficients(module, change))
        stack.enter_context(hooks.before(*pairs))
        yield


def _scale_input(
    factors: Mapping[int, float], token: int | None, module: nn.Module, args: tuple, kwargs: dict
) -> tuple[tuple, dict]:
    """Multiplies columns of what a second matrix reads, as a hook."""
    state = hooks.hidden_input(args, kwargs)
    rows = state.reshape(-1, state.shape[-1]).clone()
    columns = torch.tensor([*factors], device=state.device)
    scale = torch.tensor([*factors.values()], dtype=state.dtype, device=state.device)
    rows[slice(None) if token is None else token, columns] *= scale
    return hooks.replace_hidden_argument(args, kwargs, rows.view(state.shape))


def _scale_experts(
    factors: Mapping[int, float], token: int | None, units: int, expert: int, tokens: Tensor, m: Tensor
) -> Tensor:
    """Returns the coefficients m of one expert, multiplied by the factors of their memories in the bank."""
    own = {memory % units: factor for memory, factor in factors.items() if memory // units == expert}
    scale = torch.ones_like(m)
    for unit, factor in own.items():
        scale[slice(None) if token is None else tokens == token, unit] = factor
    return m * scale


@contextlib.contextmanager
def noting_returns(model: nn.Module, layers: Sequence[Layer]) -> Iterator[dict[str, Any]]:
    """Inside the `with` statement, a pass notes what blocks of some layers return, by name, without hidden states."""
    returns: dict[str, Any] = {}

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        returns[name] = hooks.replace_hidden_state(output, torch.empty(0))

    with hooks.after(*hooks.by_name(model, (layer.block for layer in layers), note)):
        yield returns


@contextlib.contextmanager
def with_output(model: nn.Module, layer: Layer, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the `with` statement, o of a layer becomes `change(o)`. All that comes after works on it.

    If the block runs several times, o changes in the layer's own repeat only. `change` gets o as the model has it [...,
    d], and returns a tensor of its shape.
    """
    repeats, counting = hooks.counting_repeats(model, [layer.block])

    def of_input(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        o = hooks.hidden_input(args, kwargs)
        changed = change(o)
        if layer.post_norm:
            return hooks.replace_hidden_argument(args, kwargs, changed)
        o.copy_(changed)  # in place: a block that goes on behind o adds what it makes of o to o itself
        return args, kwargs

    def of_output(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        return hooks.replace_hidden_state(output, change(hooks.known_state(output)))

    at_sum, at_block = (hooks.before, layer.sum_module, of_input), (hooks.after, layer.block, of_output)
    when, name, hook = at_sum if layer.sum_module else at_block
    with hooks.before(*counting), when((model.get_submodule(name), partial(hooks.in_own_repeat, layer, repeats, hook))):
        yield


@contextlib.contextmanager
def with_input(
    model: nn.Module, layer: Layer, change: Callable[[Tensor], Tensor], module: nn.Module | None = None
) -> Iterator[None]:
    """Inside the `with` statement, what the block of a layer reads, or a `module` in it, becomes `change` of it. See `with_output`."""
    repeats, counting = hooks.counting_repeats(model, [layer.block])

    def of_input(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return hooks.replace_hidden_argument(args, kwargs, change(hooks.hidden_input(args, kwargs)))

    own = partial(hooks.in_own_repeat, layer, repeats, of_input)
    with hooks.before(*counting, (module or model.get_submodule(layer.block), own)):
        yield


@contextlib.contextmanager
def resumed(
    model: nn.Module, layers: Sequence[Layer], own: Sequence[Layer], states: Tensor, returns: Mapping[str, Any]
) -> Iterator[None]:
    """Inside the `with` statement, forward passes begin with o of a layer. The blocks up to the layer do not run.

    Only the block of a layer that continues after o runs, too: a norm at its end reads o. The later blocks must read
    nothing but o of the layer, and a block that some sentences skip must take fewer of them: whoever calls must try this.

    `layers`: all of the model. `own`: the layer of each sentence, ascending; if it continues after o, it is the same one for all
    [sentence]. `states`: o of these layers [sentence, token, d]. `returns`: what the blocks return, from `noting_returns`.
    """
    numbers, layer = [each.index for each in own], own[0]
    skipping = layers[: numbers[-1] + (not layer.sum_module)]
    counts = {(each.block, each.repeat): bisect_left(numbers, each.index) for each in skipping}  # sentences that run
    blocks = {block for block, _ in counts}
    repeats, counting = hooks.counting_repeats(model, blocks)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hooks.before(*counting))
        for name in blocks:
            block = model.get_submodule(name)
            instead = partial(_pass_on, block.forward, name, counts, repeats, returns[name])
            stack.enter_context(replaced((block, "forward", instead)))
        stack.enter_context(with_output(model, layer, lambda o: states.to(o.device, o.dtype).reshape(o.shape)))
        yield


def _pass_on(
    own: Callable,
    name: str,
    counts: Mapping[tuple[str, int], int],
    repeats: Counter[str],
    returned: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Stands for the forward function of a block: the sentences that skip it come out as they went in."""
    count, state = counts.get((name, repeats[name] - 1)), hooks.hidden_input(args, kwargs)
    if count is None:
        return own(*args, **kwargs)
    if not count:
        return hooks.replace_hidden_state(returned, state)
    few = partial(hooks.map_tensors, lambda tensor: tensor[:count] if tensor.shape[:1] == state.shape[:1] else tensor)
    output = own(*few(args), **few(kwargs))
    made = hooks.known_state(output)
    return hooks.replace_hidden_state(output, torch.cat([made, state[count:].to(made.device)]))
