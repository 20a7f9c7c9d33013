"""Runs the experts of a bank one at a time, and keeps the record of the bank's last call.

The memories of a bank are its (expert, unit) pairs, one expert after the other: memory `e * units + u`. The coefficient
carries the router's weight. The units of an expert that a token is not sent to are not evaluated; their coefficient is
0.

`record_experts` replaces the `forward` of each bank. Nothing else of a foreign module is changed: records are kept
here, in `_last_calls`, until `forget_call` or until the bank itself is deleted.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ffkv.model.experts.layouts import ExpertLayout, layout_of
from ffkv.model.placement.resident import replace_forward


class ExpertCall(NamedTuple):
    """What one expert did."""

    expert: int  # number of the expert
    tokens: Tensor  # numbers of its tokens [n]
    coefficients: Tensor  # with the router's weight [n, unit]
    positive: Tensor | None  # whether the gates were positive [n, unit]; None without a gate


class BankCall(NamedTuple):
    """What a bank of experts did in one call."""

    shape: tuple[int, int]  # number of experts, and units per expert
    experts: list[ExpertCall]  # the calls of its experts
    written: Tensor  # what the bank wrote for each token [token, d]
    # the part of `written` that no memory wrote [token, d]: biases, and tokens that were passed on as they are
    bias: Tensor


# From the number of an expert, the numbers of its tokens [n] and its coefficients [n, unit] to other coefficients.
Change = Callable[[int, Tensor, Tensor], Tensor]
_last_calls: WeakKeyDictionary[nn.Module, BankCall] = WeakKeyDictionary()
_changes: WeakKeyDictionary[nn.Module, Change] = WeakKeyDictionary()


def record_experts(model: nn.Module) -> None:
    """Makes every bank of a model run one expert at a time and keep a record. What it returns stays the same."""
    for module in model.modules():
        if (layout := layout_of(module)) is not None:
            replace_forward(module, functools.partial(_forward, layout))


def last_call(module: nn.Module) -> BankCall | None:
    """Returns the record of a bank's last call; None for a module that keeps none."""
    return _last_calls.get(module)


def forget_call(bank: nn.Module) -> None:
    """Drops the record of a bank's last call. It is as large as the bank's coefficients."""
    _last_calls.pop(bank, None)


@contextlib.contextmanager
def changed_coefficients(bank: nn.Module, change: Change) -> Iterator[None]:
    """Inside the `with` statement, a bank of experts computes with other coefficients. Its record has these."""
    _changes[bank] = change
    try:
        yield
    finally:
        del _changes[bank]


def coefficients(module: nn.Module, state: Tensor) -> Tensor:
    """m of a second matrix or a bank, [token, memory] or as the model shapes it. `state`: the input of the module."""
    call = last_call(module)
    if call is None:
        return state
    experts, units = call.shape
    m = call.written.new_zeros(len(call.written), experts * units)
    for expert, tokens, values, _ in call.experts:
        m[:, expert * units : (expert + 1) * units].index_add_(0, tokens, values)
    return m


def positive_gates(bank: nn.Module) -> Tensor:
    """Tells whether the gate of each memory of a bank was positive [token, memory]; False if it was not evaluated."""
    call = _last_calls[bank]
    experts, units = call.shape
    positive = torch.zeros(len(call.written), experts * units, dtype=torch.bool, device=call.written.device)
    for expert, tokens, _, gates in call.experts:
        assert gates is not None, "a bank without gates"
        positive[tokens, expert * units : (expert + 1) * units] = gates
    return positive


def written(module: nn.Module, output: Tensor) -> Tensor:
    """Returns what a second matrix or a bank writes for each token. A bank may give its `output` another shape."""
    call = last_call(module)
    return output if call is None else call.written


def _forward(layout: ExpertLayout, *args: Any, **kwargs: Any) -> Tensor:
    argument, *others = (*args, *kwargs.values())
    states = argument.reshape(-1, argument.shape[-1])
    calls = []
    memories_wrote = states.new_zeros(layout.count_tokens(states), states.shape[-1])
    bias = torch.zeros_like(memories_wrote)
    for expert, tokens, x, weight in layout.route(states, *others):
        if not len(tokens):
            continue
        if expert >= layout.experts:
            if layout.passes_on:
                bias.index_add_(0, tokens, (x if weight is None else x * weight).to(bias.dtype))
            continue
        m, positive = layout.coefficients(expert, x)
        weight = None if weight is None else weight.to(m.dtype)
        m = m if weight is None else m * weight
        if (change := _changes.get(layout.bank)) is not None:
            m = change(expert, tokens, m)
        calls.append(ExpertCall(expert, tokens, m, positive))
        memories_wrote.index_add_(0, tokens, (m @ layout.values(expert)).to(memories_wrote.dtype))
        if (own := layout.expert_bias(expert)) is not None:
            own = (own if weight is None else own * weight).to(bias.dtype)
            bias.index_add_(0, tokens, own.expand(len(tokens), -1))
    if (shared := layout.bank_bias()) is not None:
        bias += shared
    call = _last_calls[layout.bank] = BankCall((layout.experts, layout.units), calls, memories_wrote + bias, bias)
    return layout.output(argument, call.written)
