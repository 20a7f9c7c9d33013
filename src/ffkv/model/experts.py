"""What ffkv must know of a bank of experts, the layouts of banks in `transformers`, and the record of a bank's last call.

A layout is recognised by the tensors that a module holds. A new one is a subclass here and an entry of `LAYOUTS`.

The memories of a bank are its (expert, unit) pairs, one expert after the other: memory `e * units + u`. The coefficient
carries the router's weight. The units of an expert that a token is not sent to are not evaluated; their coefficient is 0.

`record_experts` replaces the `forward` of each bank: its experts run one at a time. Nothing else of a foreign module is
changed: records are kept here, in `last_calls`, until someone drops them or until the bank itself is deleted.
"""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ffkv.model.placement import replace_forward


class RoutedTokens(NamedTuple):
    """The tokens that one expert works on."""

    expert: int  # number of the expert
    tokens: Tensor  # numbers of the tokens [n]
    x: Tensor  # what the expert reads [n, d]
    weight: Tensor | None  # the router's weight [n, 1]; None if x already carries it


class ExpertLayout(ABC):
    """How a bank stores the matrices of its experts, and which tokens it sends to them. An instance describes one bank."""

    # Whether experts beyond the last one pass their tokens on as they are; else they are slots that route nowhere.
    passes_on: ClassVar[bool] = False
    reads_x: ClassVar[bool] = True  # whether the bank's own input is the FF input x; else the input of its parent is
    activation_name: ClassVar[str] = "act_fn"  # of the activation function inside the bank

    def __init__(self, bank: nn.Module, experts: int, units: int):
        self.bank: Any = bank
        self.experts, self.units = experts, units

    @staticmethod
    @abstractmethod
    def recognise(module: Any) -> tuple[int, int] | None:
        """Returns the numbers of experts, and of units per expert, of a bank; None for any other module."""

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function, of the gate if there is one."""
        return attrgetter(self.activation_name)(self.bank)

    @property
    def gated(self) -> bool:
        """Whether coefficients are products of a gate and another factor."""
        return True

    @property
    def gate_has_sign(self) -> bool:
        """Whether the activated gate has the sign of the gate, or is 0."""
        positive, negative = self.activation(torch.tensor([1.0, -1.0])).tolist()
        return positive * negative <= 0

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
    def keys(self, expert: int) -> tuple[Tensor, Tensor | None]:
        """Returns what the units of an expert read [unit, d]: with gates, the other factor, and what the gates read."""

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


def _has(module: Any, dimensions: int, *names: str) -> bool:
    """Tells whether a module holds tensors of these names with so many dimensions."""
    return all(getattr(getattr(module, name, None), "ndim", 0) == dimensions for name in names)


class _LibraryInterface(ExpertLayout):
    """Experts that follow the library's own interface (`use_experts_implementation`)."""

    @staticmethod
    def recognise(module: Any) -> tuple[int, int] | None:
        """It has `_apply_gate` and second matrices [expert, ., .]."""
        if not hasattr(module, "_apply_gate") or not _has(module, 3, "down_proj") or module.has_post_expert_norm:
            return None
        return module.num_experts, module.down_proj.shape[1 if module.is_transposed else 2]

    @property
    def gated(self) -> bool:
        return self.bank.has_gate

    @property
    def gate_has_sign(self) -> bool:
        """Tried on the model's own gate function, which may do more than the activation."""
        if not self.gated:
            return False
        both = self.bank.down_proj.new_full((2, 2, self.units), 0.5)  # two tokens; gate and the other factor
        both[0, 0], both[1, 0] = 1, -1
        stored = both if self.bank.is_concatenated else both.transpose(1, 2)
        positive, negative = self.bank._apply_gate(stored.reshape(2, -1))[:, 0].tolist()
        return positive * negative <= 0

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gate and up are halves of the columns, or take turns."""
        name = "gate_up_proj" if self.gated else "up_proj"
        matrix, bias = getattr(self.bank, name)[expert], getattr(self.bank, f"{name}_bias", None)
        before = x @ (matrix if self.bank.is_transposed else matrix.T)
        before = before if bias is None else before + bias[expert]
        if not self.gated:
            return self.activation(before), None
        gate = before.chunk(2, -1)[0] if self.bank.is_concatenated else before[..., ::2]
        return self.bank._apply_gate(before), gate > 0

    def keys(self, expert: int) -> tuple[Tensor, Tensor | None]:
        matrix = getattr(self.bank, "gate_up_proj" if self.gated else "up_proj")[expert]
        rows = matrix.T if self.bank.is_transposed else matrix
        if not self.gated:
            return rows, None
        gate, up = rows.chunk(2) if self.bank.is_concatenated else (rows[::2], rows[1::2])
        return up, gate

    def values(self, expert: int) -> Tensor:
        matrix = self.bank.down_proj[expert]
        return matrix if self.bank.is_transposed else matrix.T

    def expert_bias(self, expert: int) -> Tensor | None:
        return self.bank.down_proj_bias[expert] if hasattr(self.bank, "down_proj_bias") else None


class _StackedMatrices(ExpertLayout):
    """The matrices of all experts are stacked in one matrix of two dimensions (DBRX)."""

    activation_name = "mlp.activation_fn"

    @staticmethod
    def recognise(module: Any) -> tuple[int, int] | None:
        """Its `mlp` holds w1, v1 and w2 with two dimensions."""
        stacked = _has(getattr(module, "mlp", None), 2, "w1", "v1", "w2")
        return (module.num_experts, module.ffn_hidden_size) if stacked else None

    def _rows(self, name: str, expert: int) -> Tensor:
        return getattr(self.bank.mlp, name)[expert * self.units : (expert + 1) * self.units]

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = x @ self._rows("w1", expert).T
        return self.activation(gate) * (x @ self._rows("v1", expert).T), gate > 0

    def keys(self, expert: int) -> tuple[Tensor, Tensor]:
        return self._rows("v1", expert), self._rows("w1", expert)

    def values(self, expert: int) -> Tensor:
        return self._rows("w2", expert)


class _Halves(ExpertLayout):
    """Gate and up are the halves of what one first matrix writes."""

    first: ClassVar[str] = "gate_up_proj"  # name inside the bank of the first matrices [expert, 2 unit, d]
    second: ClassVar[str] = "down_proj"  # and of the second ones [expert, d, unit]
    transposed: ClassVar[bool] = False  # whether they are [expert, d, 2 unit] and [expert, unit, d]

    def _matrix(self, name: str, expert: int) -> Tensor:
        matrix = attrgetter(name)(self.bank)[expert]
        return matrix if self.transposed else matrix.T

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = (x @ self._matrix(self.first, expert)).chunk(2, -1)
        return self.activation(gate) * up, gate > 0

    def keys(self, expert: int) -> tuple[Tensor, Tensor]:
        gate, up = self._matrix(self.first, expert).T.chunk(2)
        return up, gate

    def values(self, expert: int) -> Tensor:
        return self._matrix(self.second, expert)


class _WithIdentityExperts(_Halves):
    """Some of the experts pass the token on as it is (LongCat-Flash)."""

    passes_on = True

    @staticmethod
    def recognise(module: Any) -> tuple[int, int] | None:
        """It has an `identity_expert` and second matrices [expert, d, unit]."""
        known = hasattr(module, "identity_expert") and _has(module, 3, "down_proj")
        return (module.down_proj.shape[0], module.down_proj.shape[2]) if known else None


class _EveryToken(_Halves):
    """Every expert sees every token, already multiplied by the router's weight, 0 if it is not routed there (Llama 4).

    The weight acts before the activation. The coefficient is what comes out.
    """

    reads_x = False
    transposed = True

    @staticmethod
    def recognise(module: Any) -> tuple[int, int] | None:
        """It holds both matrices with three dimensions, and is none of the library's interface."""
        if not _has(module, 3, "gate_up_proj", "down_proj") or hasattr(module, "_apply_gate"):
            return None
        return (module.num_experts, module.down_proj.shape[1]) if hasattr(module, "expert_dim") else None

    def route(self, states: Tensor, *arguments: Any) -> Iterator[RoutedTokens]:
        """The inputs hold all tokens once per expert."""
        for expert, x in enumerate(states.chunk(self.experts)):
            tokens = x.any(-1).nonzero()[:, 0]
            yield RoutedTokens(expert, tokens, x[tokens], None)

    def count_tokens(self, states: Tensor) -> int:
        return len(states) // self.experts

    def output(self, argument: Tensor, written: Tensor) -> Tensor:
        """The model sums what the experts return: the first one returns everything, the others zeros."""
        output = torch.zeros_like(argument)
        output[: len(written)] = written
        return output


class _SortedByRouter(_Halves):
    """The router sorts the tokens by expert (JetMoE)."""

    activation_name = "activation"
    first, second = "input_linear.weight", "output_linear.weight"

    @staticmethod
    def recognise(module: Any) -> tuple[int, int] | None:
        """Its linear layers hold weights of three dimensions."""
        linear = (getattr(module, name, None) for name in ("input_linear", "output_linear"))
        if not all(_has(each, 3, "weight") for each in linear) or not hasattr(module, "activation"):
            return None
        return module.output_linear.weight.shape[0], module.output_linear.weight.shape[2]

    def route(self, states: Tensor, *arguments: Any) -> Iterator[RoutedTokens]:
        # The bank holds the router itself.
        _, tokens, weights, counts, _ = self.bank.router(states)
        for expert, (chosen, weight) in enumerate(zip(tokens.split(counts), weights.split(counts), strict=True)):
            yield RoutedTokens(expert, chosen, states[chosen], weight[:, None])

    def bank_bias(self) -> Tensor:
        return self.bank.bias


LAYOUTS = (_LibraryInterface, _StackedMatrices, _WithIdentityExperts, _EveryToken, _SortedByRouter)


def layout_of(module: nn.Module) -> ExpertLayout | None:
    """Returns the layout of a bank of experts; None for any other module."""
    sizes = ((layout, layout.recognise(module)) for layout in LAYOUTS)
    return next((layout(module, *told) for layout, told in sizes if told), None)


class ExpertCall(NamedTuple):
    """What one expert did."""

    expert: int  # number of the expert
    tokens: Tensor  # numbers of its tokens [n]
    coefficients: Tensor  # with the router's weight [n, unit]
    positive: Tensor | None  # whether the gates were positive [n, unit]; None without a gate
    weight: Tensor  # the router's weight [n]; NaN if it acts inside the expert
    written: Tensor  # what the expert wrote, with its bias [n, d]


class BankCall(NamedTuple):
    """What a bank of experts did in one call."""

    shape: tuple[int, int]  # number of experts, and units per expert
    experts: list[ExpertCall]  # the calls of its experts
    written: Tensor  # what the bank wrote for each token [token, d]
    # the part of `written` that no memory wrote [token, d]: biases, and tokens that were passed on as they are
    bias: Tensor


# From the number of an expert, the numbers of its tokens [n] and its coefficients [n, unit] to other coefficients; None: no change.
Change = Callable[[int, Tensor, Tensor], Tensor | None]
# The record of each bank's last call. It is as large as the bank's coefficients.
last_calls: WeakKeyDictionary[nn.Module, BankCall] = WeakKeyDictionary()
_changes: WeakKeyDictionary[nn.Module, list[Change]] = WeakKeyDictionary()


def record_experts(model: nn.Module) -> None:
    """Makes every bank of a model run one expert at a time and keep a record. What it returns stays the same."""
    for module in model.modules():
        if (layout := layout_of(module)) is not None:
            replace_forward(module, functools.partial(_forward, layout))


@contextlib.contextmanager
def changed_coefficients(bank: nn.Module, change: Change) -> Iterator[None]:
    """Inside the `with` statement, a bank of experts computes with other coefficients. Its record has these.

    Several changes of one bank follow each other.
    """
    changes = _changes.setdefault(bank, [])
    changes.append(change)
    try:
        yield
    finally:
        changes.remove(change)


def coefficients(module: nn.Module, state: Tensor) -> Tensor:
    """m of a second matrix or a bank, [token, memory] or as the model shapes it. `state`: the input of the module."""
    if (call := last_calls.get(module)) is None:
        return state
    experts, units = call.shape
    m = call.written.new_zeros(len(call.written), experts * units)
    for expert, tokens, values, *_ in call.experts:
        m[:, expert * units : (expert + 1) * units].index_add_(0, tokens, values)
    return m


def positive_gates(bank: nn.Module) -> Tensor:
    """Tells whether the gate of each memory of a bank was positive [token, memory]; False if it was not evaluated."""
    call = last_calls[bank]
    experts, units = call.shape
    positive = torch.zeros(len(call.written), experts * units, dtype=torch.bool, device=call.written.device)
    for expert, tokens, _, gates, *_ in call.experts:
        assert gates is not None, "a bank without gates"
        positive[tokens, expert * units : (expert + 1) * units] = gates
    return positive


def written(module: nn.Module, output: Tensor) -> Tensor:
    """Returns what a second matrix or a bank writes for each token. A bank may give its `output` another shape."""
    return output if (call := last_calls.get(module)) is None else call.written


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
        for change in _changes.get(layout.bank, ()):
            m = m if (changed := change(expert, tokens, m)) is None else changed
        wrote = m @ layout.values(expert)
        memories_wrote.index_add_(0, tokens, wrote.to(memories_wrote.dtype))
        if (own := layout.expert_bias(expert)) is not None:
            of_bias = (own if weight is None else own * weight).expand(len(tokens), -1)
            bias.index_add_(0, tokens, of_bias.to(bias.dtype))
            wrote = wrote + of_bias
        known = m.new_full((len(tokens),), torch.nan) if weight is None else weight[:, 0]
        calls.append(ExpertCall(expert, tokens, m, positive, known, wrote))
    if (shared := layout.bank_bias()) is not None:
        bias += shared
    call = last_calls[layout.bank] = BankCall((layout.experts, layout.units), calls, memories_wrote + bias, bias)
    return layout.output(argument, call.written)
