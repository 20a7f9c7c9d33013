"""Mixtures of experts: banks that tell the coefficients of their memories.

The memories of a bank are its (expert, unit) pairs, experts side by side: memory `e * units + u`. The coefficient carries the
router's weight; units of an expert that the token is not sent to are not evaluated, their coefficient is 0.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.experts.layout import Form
from ffkv.model.experts.other_layouts import FORMS


class Worked(NamedTuple):
    """What one expert did: for which tokens [n], with which coefficients [n, unit], whether gates were positive (or None)."""

    expert: int
    tokens: Tensor
    coefficients: Tensor
    positive: Tensor | None


class Record(NamedTuple):
    """What a bank did in its last call: its experts, what it wrote for each token [token, d], and the part of that which
    no memory wrote [token, d]: the experts' biases, and tokens that were passed on as they are."""

    worked: list[Worked]
    tokens: int
    written: Tensor
    rest: Tensor


def record_experts(model: nn.Module) -> None:
    """Lets every bank of experts of a model run one expert at a time and keep a record. What it returns stays the same."""
    for module in model.modules():
        if (form := form_of(module)) is not None:
            module.forward = functools.partial(_forward, module, form)


def form_of(module: nn.Module) -> Form | None:
    """How a bank of experts is laid out; None for any other module."""
    return next((form for form in FORMS if form.fits(module)), None)


def shape_of(module: nn.Module) -> tuple[int, int]:
    """Number of experts of a bank, and units of each."""
    form = form_of(module)
    assert form is not None, "not a bank of experts"
    return form.shape(module)


def coefficients(module: nn.Module, state: Tensor) -> Tensor:
    """m of a write, [token, memory] or as the model shapes it. `state`: what went into it."""
    record: Record | None = getattr(module, "expert_record", None)
    if record is None:
        return state
    experts, units = shape_of(module)
    m = record.written.new_zeros(record.tokens, experts * units)
    for expert, tokens, values, _ in record.worked:
        m[:, expert * units : (expert + 1) * units].index_add_(0, tokens, values)
    return m


def positive_gates(module: nn.Module) -> Tensor:
    """Whether the gate of each memory of a bank was positive [token, memory]; False where it was not evaluated."""
    record: Record = module.expert_record
    experts, units = shape_of(module)
    positive = torch.zeros(record.tokens, experts * units, dtype=torch.bool, device=record.written.device)
    for expert, tokens, _, values in record.worked:
        positive[tokens, expert * units : (expert + 1) * units] = values
    return positive


def written(module: nn.Module, output: Tensor) -> Tensor:
    """What a write adds for each token. `output`: what it returned, which a bank may shape otherwise."""
    record: Record | None = getattr(module, "expert_record", None)
    return output if record is None else record.written


def expert_values(module: nn.Module) -> Tensor:
    """The values of a bank [memory, d], as its second matrices hold them."""
    form = form_of(module)
    assert form is not None, "not a bank of experts"
    return torch.cat([form.second(module, expert) for expert in range(form.shape(module)[0])])


def _forward(module: nn.Module, form: Form, *args: Any, **kwargs: Any) -> Tensor:
    arguments = (*args, *kwargs.values())
    states = arguments[0].reshape(-1, arguments[0].shape[-1])
    experts, _ = form.shape(module)
    worked, tokens = [], form.tokens(module, states)
    added = states.new_zeros(tokens, states.shape[-1])
    rest = torch.zeros_like(added)
    for expert, at, x, weight in form.routed(module, states, *arguments[1:]):
        if not len(at):
            continue
        if expert >= experts:
            if form.passes_on:
                rest.index_add_(0, at, (x * weight).to(rest.dtype))
            continue
        m, positive = form.first(module, expert, x)
        weight = None if weight is None else weight.to(m.dtype)
        m = m if weight is None else m * weight
        worked.append(Worked(expert, at, m, positive))
        added.index_add_(0, at, (m @ form.second(module, expert)).to(added.dtype))
        if (bias := form.bias(module, expert)) is not None:
            rest.index_add_(0, at, (bias if weight is None else bias * weight).to(rest.dtype).expand(len(at), -1))
    if (constant := form.constant(module)) is not None:
        rest += constant
    module.expert_record = Record(worked, tokens, added + rest, rest)
    return form.returned(arguments[0], module.expert_record.written)
