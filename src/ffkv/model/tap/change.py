"""Changes memory coefficients while the model runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import Layer
from ffkv.model.experts.layouts import layout_of
from ffkv.model.experts.record import changed_coefficients
from ffkv.model.tap.hooks import before, counting_repeats, hidden_input, in_own_repeat, replace_hidden_argument

Place = tuple[int, int]  # a layer and a memory, both from 0


@contextlib.contextmanager
def scaled(
    model: nn.Module, layers: Sequence[Layer], factors: Mapping[Place, float], token: int | None = None
) -> Iterator[None]:
    """Inside the `with` statement, some coefficients are multiplied by factors when the second matrix reads them.

    All that comes after the second matrix, a norm too, works on what it then returns. A tap inside the statement reads
    the changed coefficients.

    Args:
        model: a proven model whose experts keep records (`record_experts`).
        layers: all layers of the model.
        factors: the factor of each memory that changes. A layer that runs several times changes in its own repeat only.
        token: the only token at which they change, as a position; the model may then run on one sentence at a time.
            None: every token.
    """
    # Several layers may share one bank or one matrix: those of a block that runs several times.
    changed = [layers[number] for number in sorted({layer for layer, _ in factors})]
    repeats, hooks = counting_repeats(model, {layer.block for layer in changed})
    banks: dict[nn.Module, list[Callable[..., Tensor | None]]] = {}
    for layer in changed:
        ends = accumulate((matrix.memories for matrix in layer.second_matrices), initial=0)
        own = {memory: factor for (number, memory), factor in factors.items() if number == layer.index}
        for matrix, first in zip(layer.second_matrices, ends, strict=False):
            inside = {m - first: factor for m, factor in own.items() if 0 <= m - first < matrix.memories}
            module = model.get_submodule(matrix.module)
            if not inside:
                continue
            if (layout := layout_of(module)) is None:
                hooks.append((module, partial(in_own_repeat, layer, repeats, _scale_input, inside, token)))
            else:
                change = partial(in_own_repeat, layer, repeats, _scale_experts, inside, token, layout.units)
                banks.setdefault(module, []).append(change)
    with before(*hooks), contextlib.ExitStack() as stack:
        for bank, changes in banks.items():
            stack.enter_context(changed_coefficients(bank, partial(_one_after_the_other, changes)))
        yield


def _scale_input(
    factors: Mapping[int, float], token: int | None, module: nn.Module, args: tuple, kwargs: dict
) -> tuple[tuple, dict]:
    """Multiplies columns of what a second matrix reads, as a hook."""
    state = hidden_input(args, kwargs)
    rows = state.reshape(-1, state.shape[-1]).clone()
    columns = torch.tensor([*factors], device=state.device)
    scale = torch.tensor([*factors.values()], dtype=state.dtype, device=state.device)
    rows[slice(None) if token is None else token, columns] *= scale
    return replace_hidden_argument(args, kwargs, rows.view(state.shape))


def _scale_experts(
    factors: Mapping[int, float], token: int | None, units: int, expert: int, tokens: Tensor, m: Tensor
) -> Tensor:
    """Returns the coefficients m of one expert, multiplied by the factors of their memories in the bank."""
    own = {memory % units: factor for memory, factor in factors.items() if memory // units == expert}
    if not own:
        return m
    scale = torch.ones_like(m)
    for unit, factor in own.items():
        scale[slice(None) if token is None else tokens == token, unit] = factor
    return m * scale


def _one_after_the_other(
    changes: Sequence[Callable[..., Tensor | None]], expert: int, tokens: Tensor, m: Tensor
) -> Tensor:
    for change in changes:
        changed = change(expert, tokens, m)  # None in another repeat of the block
        m = m if changed is None else changed
    return m
