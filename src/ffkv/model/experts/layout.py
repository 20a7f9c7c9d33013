"""What is to be known of a layout of experts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Routed(NamedTuple):
    """An expert's work: its number, the tokens [n] that it is for, what it reads [n, d], the router's weight [n, 1] (or None)."""

    expert: int
    tokens: Tensor
    x: Tensor
    weight: Tensor | None


def _nothing(module: nn.Module, *args: Any) -> None:
    return None


@dataclass(frozen=True)
class Form:
    """A layout of experts.

    fits: whether a module has it. gated: whether coefficients are products of a gate and another factor; signed: whether the
    sign of the gate's activation is that of the gate. shape: number of experts, units of each. routed: the work of each expert, for inputs
    [row, d] and the bank's other arguments; an expert beyond the last is a slot that routes nowhere, or, where the form
    `passes_on`, one that passes x on as it is. first: coefficients of an expert before the router's weight, and whether
    their gates are positive (None: no gate). second: its values [unit, d]. bias: what it adds beside them. constant: what
    the bank adds to every token. tokens: how many tokens its inputs are for. returned: what the bank returns, from its
    first argument and what it writes [token, d]. reads_x: its own input is the FF input x (else its parent's is).
    """

    fits: Callable[[nn.Module], bool]
    gated: Callable[[nn.Module], bool]
    signed: Callable[[nn.Module], bool]
    shape: Callable[[nn.Module], tuple[int, int]]
    routed: Callable[..., Iterator[Routed]]
    first: Callable[[nn.Module, int, Tensor], tuple[Tensor, Tensor | None]]
    second: Callable[[nn.Module, int], Tensor]
    bias: Callable[[nn.Module, int], Tensor | None] = _nothing
    constant: Callable[[nn.Module], Tensor | None] = _nothing
    tokens: Callable[[nn.Module, Tensor], int] = lambda module, states: len(states)
    returned: Callable[[Tensor, Tensor], Tensor] = lambda given, written: written.reshape(given.shape)
    passes_on: bool = False
    reads_x: bool = True


def by_index(module: nn.Module, states: Tensor, index: Tensor, weights: Tensor) -> Iterator[Routed]:
    """Work from the router's choice: experts and weights [token, slot]."""
    for expert in index.unique().tolist():
        tokens, slots = torch.where(index == expert)
        yield Routed(expert, tokens, states[tokens], weights[tokens, slots, None])


def has_parameter(module: nn.Module, name: str, dimensions: int) -> bool:
    """Whether a module holds a tensor of that name with so many dimensions."""
    return getattr(getattr(module, name, None), "ndim", 0) == dimensions


def keeps_sign(activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether an activation has the sign of its input, or is 0."""
    positive, negative = activation(torch.tensor([1.0, -1.0])).tolist()
    return positive * negative <= 0
