"""How banks of experts are laid out in `transformers`, by what they hold: a few lines for each form."""

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


def _by_index(module: nn.Module, states: Tensor, index: Tensor, weights: Tensor) -> Iterator[Routed]:
    """Work from the router's choice: experts and weights [token, slot]."""
    for expert in index.unique().tolist():
        tokens, slots = torch.where(index == expert)
        yield Routed(expert, tokens, states[tokens], weights[tokens, slots, None])


def _parameter(module: nn.Module, name: str, dimensions: int) -> bool:
    return getattr(getattr(module, name, None), "ndim", 0) == dimensions


# The library's own interface for experts (`use_experts_implementation`).
def _interface_first(module: nn.Module, expert: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
    kind = "gate_up_proj" if module.has_gate else "up_proj"
    matrix, bias = getattr(module, kind)[expert], getattr(module, f"{kind}_bias", None)
    before = x @ (matrix if module.is_transposed else matrix.T)
    before = before if bias is None else before + bias[expert]
    if not module.has_gate:
        return module.act_fn(before), None
    gate = before.chunk(2, -1)[0] if module.is_concatenated else before[..., ::2]
    return module._apply_gate(before), gate > 0


def _interface_second(module: nn.Module, expert: int) -> Tensor:
    return module.down_proj[expert] if module.is_transposed else module.down_proj[expert].T


def _interface_signed(module: nn.Module) -> bool:
    down = module.down_proj
    units = down.shape[1 if module.is_transposed else 2]
    both = down.new_full((2, 2, units), 0.5)  # two tokens; gate and the other factor
    both[0, 0], both[1, 0] = 1, -1
    laid_out = both if module.is_concatenated else both.transpose(1, 2)
    first, second = module._apply_gate(laid_out.reshape(2, -1))[:, 0].tolist()
    return first * second <= 0


def _keeps_sign(activation: Callable[[Tensor], Tensor]) -> bool:
    positive, negative = activation(torch.tensor([1.0, -1.0])).tolist()
    return positive * negative <= 0


INTERFACE = Form(
    fits=lambda module: (
        hasattr(module, "_apply_gate") and _parameter(module, "down_proj", 3) and not module.has_post_expert_norm
    ),
    gated=lambda module: module.has_gate,
    signed=lambda module: module.has_gate and _interface_signed(module),
    shape=lambda module: (module.num_experts, module.down_proj.shape[1 if module.is_transposed else 2]),
    routed=_by_index,
    first=_interface_first,
    second=_interface_second,
    bias=lambda module, expert: module.down_proj_bias[expert] if hasattr(module, "down_proj_bias") else None,
)


# Experts one behind the other in matrices of two dimensions (DBRX).
def _rows(module: nn.Module, name: str, expert: int) -> Tensor:
    units = module.ffn_hidden_size
    return getattr(module.mlp, name)[expert * units : (expert + 1) * units]


def _stacked_first(module: nn.Module, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
    gate = x @ _rows(module, "w1", expert).T
    return module.mlp.activation_fn(gate) * (x @ _rows(module, "v1", expert).T), gate > 0


STACKED = Form(
    fits=lambda module: all(_parameter(getattr(module, "mlp", None), name, 2) for name in ("w1", "v1", "w2")),
    gated=lambda module: True,
    signed=lambda module: _keeps_sign(module.mlp.activation_fn),
    shape=lambda module: (module.num_experts, module.ffn_hidden_size),
    routed=_by_index,
    first=_stacked_first,
    second=lambda module, expert: _rows(module, "w2", expert),
)


def _halves_first(module: nn.Module, gate_and_up: Tensor, activation: Callable) -> tuple[Tensor, Tensor]:
    gate, up = gate_and_up.chunk(2, -1)
    return activation(gate) * up, gate > 0


# Experts beside some that pass the token on (LongCat-Flash).
PASSING = Form(
    fits=lambda module: hasattr(module, "identity_expert") and _parameter(module, "down_proj", 3),
    gated=lambda module: True,
    signed=lambda module: _keeps_sign(module.act_fn),
    shape=lambda module: (module.down_proj.shape[0], module.down_proj.shape[2]),
    routed=_by_index,
    first=lambda module, expert, x: _halves_first(module, x @ module.gate_up_proj[expert].T, module.act_fn),
    second=lambda module, expert: module.down_proj[expert].T,
    passes_on=True,
)


# Experts that all see every token, already multiplied with the router's weight, 0 where it is not routed (Llama 4). The
# weight acts before the activation; the coefficient carries it all the same.
def _every_token(module: nn.Module, states: Tensor) -> Iterator[Routed]:
    for expert, x in enumerate(states.chunk(module.num_experts)):
        tokens = x.any(-1).nonzero()[:, 0]
        yield Routed(expert, tokens, x[tokens], None)


def _as_if_the_first_had_written_all(given: Tensor, written: Tensor) -> Tensor:
    output = torch.zeros_like(given)  # what each expert writes for each token: the model only adds them up
    output[: len(written)] = written
    return output


EVERY_TOKEN = Form(
    fits=lambda module: (
        _parameter(module, "gate_up_proj", 3)
        and _parameter(module, "down_proj", 3)
        and not hasattr(module, "_apply_gate")
        and hasattr(module, "expert_dim")
    ),
    gated=lambda module: True,
    signed=lambda module: _keeps_sign(module.act_fn),
    shape=lambda module: (module.num_experts, module.down_proj.shape[1]),
    routed=_every_token,
    first=lambda module, expert, x: _halves_first(module, x @ module.gate_up_proj[expert], module.act_fn),
    second=lambda module, expert: module.down_proj[expert],
    tokens=lambda module, states: len(states) // module.num_experts,
    returned=_as_if_the_first_had_written_all,
    reads_x=False,
)


# Experts whose tokens are sorted by the router (JetMoE).
def _sorted_by_router(module: nn.Module, states: Tensor) -> Iterator[Routed]:
    _, tokens, weights, counts, _ = module.router(states)
    parts = zip(tokens.split(counts), weights.split(counts), strict=True)
    for expert, (at, weight) in enumerate(parts):
        yield Routed(expert, at, states[at], weight[:, None])


SORTED = Form(
    fits=lambda module: (
        _parameter(getattr(module, "input_linear", None), "weight", 3)
        and _parameter(getattr(module, "output_linear", None), "weight", 3)
        and hasattr(module, "activation")
    ),
    gated=lambda module: True,
    signed=lambda module: _keeps_sign(module.activation),
    shape=lambda module: (module.output_linear.weight.shape[0], module.output_linear.weight.shape[2]),
    routed=_sorted_by_router,
    first=lambda module, expert, x: _halves_first(module, x @ module.input_linear.weight[expert].T, module.activation),
    second=lambda module, expert: module.output_linear.weight[expert].T,
    constant=lambda module: module.bias,
)

FORMS = (INTERFACE, STACKED, PASSING, EVERY_TOKEN, SORTED)
