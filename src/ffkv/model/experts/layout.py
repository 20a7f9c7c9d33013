"""What ffkv must know of a bank of experts: the base class of all layouts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class RoutedTokens(NamedTuple):
    """The tokens that one expert works on.

    Attributes:
        expert: number of the expert.
        tokens: numbers of the tokens [n].
        x: what the expert reads [n, d].
        weight: the router's weight [n, 1]; None if x already carries it.
    """

    expert: int
    tokens: Tensor
    x: Tensor
    weight: Tensor | None


class ExpertLayout(ABC):
    """How a bank stores the matrices of its experts, and which tokens it sends to them. An instance describes one bank.

    A new layout is a subclass in `layouts.py` and an entry of `LAYOUTS` there.

    Attributes:
        passes_on: experts beyond the last one pass their tokens on as they are; else they are slots that route nowhere.
        reads_x: the bank's own input is the FF input x; else the input of its parent is.
        gated: coefficients are products of a gate and another factor.
        bank: the module.
    """

    passes_on: ClassVar[bool] = False
    reads_x: ClassVar[bool] = True
    gated: bool = True

    def __init__(self, bank: nn.Module):
        """Describes a bank that `fits`."""
        self.bank: Any = bank

    @staticmethod
    @abstractmethod
    def fits(module: nn.Module) -> bool:
        """Tells whether a module has this layout."""

    @property
    @abstractmethod
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function of the gate."""

    @property
    def gate_has_sign(self) -> bool:
        """Whether the activated gate has the sign of the gate, or is 0."""
        positive, negative = self.activation(torch.tensor([1.0, -1.0])).tolist()
        return positive * negative <= 0

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Number of experts, and units per expert."""

    def route(self, states: Tensor, *arguments: Any) -> Iterator[RoutedTokens]:
        """Yields the tokens of each expert, for inputs [row, d] and the bank's other arguments.

        By default these arguments are the router's choice: experts [token, slot] and weights [token, slot].
        """
        index, weights = arguments[:2]
        for expert in index.unique().tolist():
            tokens, slots = torch.where(index == expert)
            yield RoutedTokens(expert, tokens, states[tokens], weights[tokens, slots, None])

    @abstractmethod
    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Coefficients [n, unit] of an expert without the router's weight, and whether their gates are positive.

        The second is None in a bank without gates.
        """

    @abstractmethod
    def values(self, expert: int) -> Tensor:
        """Returns the values of an expert [unit, d]."""

    def expert_bias(self, expert: int) -> Tensor | None:
        """Returns what an expert adds beside its values [d]; None: nothing."""
        return None

    def bank_bias(self) -> Tensor | None:
        """Returns what the bank adds to every token [d]; None: nothing."""
        return None

    def count_tokens(self, states: Tensor) -> int:
        """Counts the tokens that the inputs [row, d] are for."""
        return len(states)

    def output(self, argument: Tensor, written: Tensor) -> Tensor:
        """Returns the output of the bank, from its first argument and what it writes [token, d]."""
        return written.reshape(argument.shape)


def has_parameter(module: Any, name: str, dimensions: int) -> bool:
    """Tells whether a module holds a tensor of that name with so many dimensions."""
    return getattr(getattr(module, name, None), "ndim", 0) == dimensions


def gated_product(gate_and_up: Tensor, activation: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """act(gate) * up, and whether the gate is positive; gate and up are the halves of one output [n, 2 unit]."""
    gate, up = gate_and_up.chunk(2, -1)
    return activation(gate) * up, gate > 0
