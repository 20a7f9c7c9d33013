"""The layouts of banks of experts in `transformers`. Each one is recognised by the tensors that the module holds."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.experts.layout import ExpertLayout, RoutedTokens, gated_product, has_parameter


class LibraryInterface(ExpertLayout):
    """Experts that follow the library's own interface (`use_experts_implementation`)."""

    @staticmethod
    def fits(module: Any) -> bool:
        """It has `_apply_gate` and second matrices [expert, ., .]."""
        gated = hasattr(module, "_apply_gate") and has_parameter(module, "down_proj", 3)
        return gated and not module.has_post_expert_norm

    def __init__(self, bank: nn.Module):
        """Banks of this layout may have no gate."""
        super().__init__(bank)
        self.gated = self.bank.has_gate

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function."""
        return self.bank.act_fn

    @property
    def gate_has_sign(self) -> bool:
        """Tried on the model's own gate function, which may do more than the activation."""
        if not self.gated:
            return False
        both = self.bank.down_proj.new_full((2, 2, self.shape[1]), 0.5)  # two tokens; gate and the other factor
        both[0, 0], both[1, 0] = 1, -1
        stored = both if self.bank.is_concatenated else both.transpose(1, 2)
        positive, negative = self.bank._apply_gate(stored.reshape(2, -1))[:, 0].tolist()
        return positive * negative <= 0

    @property
    def shape(self) -> tuple[int, int]:
        """Experts and units."""
        return self.bank.num_experts, self.bank.down_proj.shape[1 if self.bank.is_transposed else 2]

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

    def values(self, expert: int) -> Tensor:
        """Rows or columns of the second matrix."""
        matrix = self.bank.down_proj[expert]
        return matrix if self.bank.is_transposed else matrix.T

    def expert_bias(self, expert: int) -> Tensor | None:
        """The bias of the second matrix."""
        return self.bank.down_proj_bias[expert] if hasattr(self.bank, "down_proj_bias") else None


class StackedMatrices(ExpertLayout):
    """The matrices of all experts are stacked in one matrix of two dimensions (DBRX)."""

    @staticmethod
    def fits(module: Any) -> bool:
        """Its `mlp` holds w1, v1 and w2 with two dimensions."""
        return all(has_parameter(getattr(module, "mlp", None), name, 2) for name in ("w1", "v1", "w2"))

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function."""
        return self.bank.mlp.activation_fn

    @property
    def shape(self) -> tuple[int, int]:
        """Experts and units."""
        return self.bank.num_experts, self.bank.ffn_hidden_size

    def _rows(self, name: str, expert: int) -> Tensor:
        units = self.bank.ffn_hidden_size
        return getattr(self.bank.mlp, name)[expert * units : (expert + 1) * units]

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """act(x w1) * (x v1)."""
        gate = x @ self._rows("w1", expert).T
        return self.activation(gate) * (x @ self._rows("v1", expert).T), gate > 0

    def values(self, expert: int) -> Tensor:
        """Rows of w2."""
        return self._rows("w2", expert)


class WithIdentityExperts(ExpertLayout):
    """Some of the experts pass the token on as it is (LongCat-Flash)."""

    passes_on = True

    @staticmethod
    def fits(module: Any) -> bool:
        """It has an `identity_expert` and second matrices [expert, d, unit]."""
        return hasattr(module, "identity_expert") and has_parameter(module, "down_proj", 3)

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function."""
        return self.bank.act_fn

    @property
    def shape(self) -> tuple[int, int]:
        """Experts and units."""
        return self.bank.down_proj.shape[0], self.bank.down_proj.shape[2]

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up are halves."""
        return gated_product(x @ self.bank.gate_up_proj[expert].T, self.activation)

    def values(self, expert: int) -> Tensor:
        """Columns of the second matrix."""
        return self.bank.down_proj[expert].T


class EveryToken(ExpertLayout):
    """Every expert sees every token, already multiplied by the router's weight, 0 if it is not routed there (Llama 4).

    The weight acts before the activation. The coefficient is what comes out.
    """

    reads_x = False

    @staticmethod
    def fits(module: Any) -> bool:
        """It holds both matrices with three dimensions, and is none of the library's interface."""
        matrices = has_parameter(module, "gate_up_proj", 3) and has_parameter(module, "down_proj", 3)
        return matrices and not hasattr(module, "_apply_gate") and hasattr(module, "expert_dim")

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function."""
        return self.bank.act_fn

    @property
    def shape(self) -> tuple[int, int]:
        """Experts and units."""
        return self.bank.num_experts, self.bank.down_proj.shape[1]

    def route(self, states: Tensor, *arguments: Any) -> Iterator[RoutedTokens]:
        """The inputs hold all tokens once per expert."""
        for expert, x in enumerate(states.chunk(self.bank.num_experts)):
            tokens = x.any(-1).nonzero()[:, 0]
            yield RoutedTokens(expert, tokens, x[tokens], None)

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up are halves."""
        return gated_product(x @ self.bank.gate_up_proj[expert], self.activation)

    def values(self, expert: int) -> Tensor:
        """Rows of the second matrix."""
        return self.bank.down_proj[expert]

    def count_tokens(self, states: Tensor) -> int:
        """The inputs hold all tokens once per expert."""
        return len(states) // self.bank.num_experts

    def output(self, argument: Tensor, written: Tensor) -> Tensor:
        """The model sums what the experts return: the first one returns everything, the others zeros."""
        output = torch.zeros_like(argument)
        output[: len(written)] = written
        return output


class SortedByRouter(ExpertLayout):
    """The router sorts the tokens by expert (JetMoE)."""

    @staticmethod
    def fits(module: Any) -> bool:
        """Its linear layers hold weights of three dimensions."""
        linear = ("input_linear", "output_linear")
        return all(has_parameter(getattr(module, name, None), "weight", 3) for name in linear) and hasattr(
            module, "activation"
        )

    @property
    def activation(self) -> Callable[[Tensor], Tensor]:
        """The activation function."""
        return self.bank.activation

    @property
    def shape(self) -> tuple[int, int]:
        """Experts and units."""
        weight = self.bank.output_linear.weight
        return weight.shape[0], weight.shape[2]

    def route(self, states: Tensor, *arguments: Any) -> Iterator[RoutedTokens]:
        """The bank holds the router itself."""
        _, tokens, weights, counts, _ = self.bank.router(states)
        for expert, (chosen, weight) in enumerate(zip(tokens.split(counts), weights.split(counts), strict=True)):
            yield RoutedTokens(expert, chosen, states[chosen], weight[:, None])

    def coefficients(self, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up are halves."""
        return gated_product(x @ self.bank.input_linear.weight[expert].T, self.activation)

    def values(self, expert: int) -> Tensor:
        """Columns of the second matrix."""
        return self.bank.output_linear.weight[expert].T

    def bank_bias(self) -> Tensor:
        """One bias for all experts."""
        return self.bank.bias


LAYOUTS: tuple[type[ExpertLayout], ...] = (
    LibraryInterface,
    StackedMatrices,
    WithIdentityExperts,
    EveryToken,
    SortedByRouter,
)
