"""How other banks of experts are laid out in `transformers`, by what they hold: a few lines for each form."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ffkv.model.experts.layout import Form, Routed, by_index, has_parameter, keeps_sign
from ffkv.model.experts.transformers_interface import INTERFACE


# Experts one behind the other in matrices of two dimensions (DBRX).
def _rows(module: nn.Module, name: str, expert: int) -> Tensor:
    units = module.ffn_hidden_size
    return getattr(module.mlp, name)[expert * units : (expert + 1) * units]


def _stacked_first(module: nn.Module, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
    gate = x @ _rows(module, "w1", expert).T
    return module.mlp.activation_fn(gate) * (x @ _rows(module, "v1", expert).T), gate > 0


STACKED = Form(
    fits=lambda module: all(has_parameter(getattr(module, "mlp", None), name, 2) for name in ("w1", "v1", "w2")),
    gated=lambda module: True,
    signed=lambda module: keeps_sign(module.mlp.activation_fn),
    shape=lambda module: (module.num_experts, module.ffn_hidden_size),
    routed=by_index,
    first=_stacked_first,
    second=lambda module, expert: _rows(module, "w2", expert),
)


def _halves_first(module: nn.Module, gate_and_up: Tensor, activation: Callable) -> tuple[Tensor, Tensor]:
    gate, up = gate_and_up.chunk(2, -1)
    return activation(gate) * up, gate > 0


# Experts beside some that pass the token on (LongCat-Flash).
PASSING = Form(
    fits=lambda module: hasattr(module, "identity_expert") and has_parameter(module, "down_proj", 3),
    gated=lambda module: True,
    signed=lambda module: keeps_sign(module.act_fn),
    shape=lambda module: (module.down_proj.shape[0], module.down_proj.shape[2]),
    routed=by_index,
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
        has_parameter(module, "gate_up_proj", 3)
        and has_parameter(module, "down_proj", 3)
        and not hasattr(module, "_apply_gate")
        and hasattr(module, "expert_dim")
    ),
    gated=lambda module: True,
    signed=lambda module: keeps_sign(module.act_fn),
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
        has_parameter(getattr(module, "input_linear", None), "weight", 3)
        and has_parameter(getattr(module, "output_linear", None), "weight", 3)
        and hasattr(module, "activation")
    ),
    gated=lambda module: True,
    signed=lambda module: keeps_sign(module.activation),
    shape=lambda module: (module.output_linear.weight.shape[0], module.output_linear.weight.shape[2]),
    routed=_sorted_by_router,
    first=lambda module, expert, x: _halves_first(module, x @ module.input_linear.weight[expert].T, module.activation),
    second=lambda module, expert: module.output_linear.weight[expert].T,
    constant=lambda module: module.bias,
)

FORMS = (INTERFACE, STACKED, PASSING, EVERY_TOKEN, SORTED)
