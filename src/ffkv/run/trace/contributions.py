"""What the memories of each layer add at the chosen token, and what it does to the logit of the chosen next token."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.tap.change import Place
from ffkv.model.tap.hooks import relative_error
from ffkv.model.value_vectors import in_residual, values_in_place
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.states import States


class LayerParts(NamedTuple):
    """What the FF output of one layer is the sum of, at the chosen token."""

    listed: Tensor  # the memories that are listed, the largest size first [part]
    coefficient: Tensor  # their coefficients [part]
    size: Tensor  # their |m_i| ‖v_i‖ times the factor [part]
    vectors: Tensor  # their contributions; then that of all other memories, the bias, and y itself [part + 3, d]
    others: int  # number of the other memories whose coefficient is not 0
    all_sizes: float  # sum of the sizes of all memories
    deviation: float  # largest relative deviation of the sum from y

    @property
    def shares(self) -> Tensor:
        """The share of y of each part but y, along y [part + 2]. NaN if y is 0."""
        y = self.vectors[-1]
        return self.vectors[:-1] @ y / (y @ y)


def split_layers(
    model: RunModel, states: States, token: int, memories: int, changed: Collection[Place]
) -> list[LayerParts]:
    """Splits y of every layer at the chosen token into contributions.

    Args:
        memories: number of memories per layer to list by size, and by their effect on the logit of `token` to first
            order.
        changed: memories to list in any case.
    """
    gradient = model.head.token_gradient(states.end, token, model.anatomy.read_as)
    own = [[memory for number, memory in changed if number == layer.index] for layer in model.anatomy.layers]
    return [
        _split_layer(model, layer, states, gradient, memories, always)
        for layer, always in zip(model.anatomy.layers, own, strict=True)
    ]


def _split_layer(
    model: RunModel, layer: Layer, states: States, gradient: Tensor, memories: int, always: list[int]
) -> LayerParts:
    """Splits one layer. `gradient`: of the logit of the chosen next token, by what the head reads [d]."""
    v, _ = values_in_place(model.model, layer)
    if layer.index not in model.norms:
        model.norms[layer.index] = v.norm(dim=1)
    at = layer.index
    stored = states.s[at], states.m[at], states.b[at], states.y[at][states.position]
    s, m, b, y = (tensor.to(v.device) for tensor in stored)
    sizes = s.abs() * m.abs() * model.norms[layer.index]
    effects = (s * m * (v @ gradient.to(v.device))).abs()
    count = min(memories, len(m))
    chosen = torch.cat([sizes.topk(count).indices, effects.topk(count).indices])
    chosen = torch.cat([chosen[m[chosen] != 0], torch.tensor(always, dtype=torch.long, device=v.device)]).unique()
    chosen = chosen[sizes[chosen].argsort(descending=True, stable=True)]
    contributions = s * m[chosen, None] * v[chosen]
    bias = s * in_residual(model.model, layer, b[None])[0].float()
    together = s * (m @ v)
    return LayerParts(
        listed=chosen,
        coefficient=m[chosen],
        size=sizes[chosen],
        vectors=torch.cat([contributions, (together - contributions.sum(0))[None], bias[None], y[None]]),
        others=int((m != 0).sum() - (m[chosen] != 0).sum()),
        all_sizes=float(sizes.double().sum()),
        deviation=relative_error(together + bias, y),
    )


def logit_changes(model: RunModel, end: Tensor, parts: list[LayerParts], token: int) -> list[Tensor]:
    """Computes how much lower the token's logit is without each part: logit(h) - logit(h - part) [layer][part].

    `end`: h, what the head reads at the chosen token [d].
    """
    without = torch.cat([end[None], *(end - part.vectors.to(end.device) for part in parts)])
    logits = model.head.token_logits(without, token, model.anatomy.read_as).cpu()
    return [*(logits[0] - logits[1:]).split([len(part.vectors) for part in parts])]
