"""What the memories of each layer add at the chosen token, and what it does to the logit of the chosen next token."""

from collections.abc import Collection
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.tap.change import Place
from ffkv.model.tap.hooks import relative_error
from ffkv.model.value_vectors import in_residual, values_in_place
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.states import States


class LayerParts(NamedTuple):
    """What the FF output of one layer is the sum of, at the chosen token.

    Attributes:
        listed: the memories that are listed, the largest size first [part].
        coefficient: their coefficients [part].
        size: their |m_i| ‖v_i‖ times the factor [part].
        vectors: their contributions; then that of all other memories, the bias, and y itself [part + 3, d].
        others: number of the other memories whose coefficient is not 0.
        all_sizes: sum of the sizes of all memories.
        deviation: largest relative deviation of the sum from y.
    """

    listed: Tensor
    coefficient: Tensor
    size: Tensor
    vectors: Tensor
    others: int
    all_sizes: float
    deviation: float

    @property
    def shares(self) -> Tensor:
        """The share of y of each part but y, along y [part + 2]. NaN if y is 0."""
        y = self.vectors[-1]
        return self.vectors[:-1] @ y / (y @ y)


def split_layers(
    model: RunModel,
    states: States,
    position: int,
    token: int,
    memories: int,
    changed: Collection[Place],
) -> list[LayerParts]:
    """Splits y of every layer at the chosen token into contributions.

    Args:
        model: the model.
        states: of the prompt.
        position: the chosen token.
        token: the chosen next token.
        memories: number of memories per layer to list by size, and by their effect on the logit of `token` to first
            order.
        changed: memories to list in any case.
    """
    gradient = model.head.token_gradient(states.end, token, model.read_as)
    parts = []
    for layer in model.anatomy.layers:
        own = [memory for number, memory in changed if number == layer.index]
        parts.append(split_layer(model, layer, states, position, gradient, memories, own))
    return parts


def split_layer(
    model: RunModel,
    layer: Layer,
    states: States,
    position: int,
    gradient: Tensor,
    memories: int,
    changed: Collection[int],
) -> LayerParts:
    """Splits y of a layer at the chosen token into contributions.

    Args:
        model: the model.
        layer: the layer.
        states: of the prompt.
        position: the chosen token.
        gradient: of the chosen next token's logit with respect to what the head reads [d].
        memories: number of memories to list by size, and by gradient times contribution.
        changed: memories to list in any case.
    """
    v, _ = values_in_place(model.model, layer)
    if layer.index not in model.norms:
        model.norms[layer.index] = v.norm(dim=1)
    s, m = states.s[layer.index], states.m[layer.index].to(v.device)
    y = states.y[layer.index][position].to(v.device)
    s = s.to(v.device)
    sizes = s.abs() * m.abs() * model.norms[layer.index]
    effects = (s * m * (v @ gradient.to(v.device))).abs()
    count = min(memories, len(m))
    chosen = torch.cat([sizes.topk(count).indices, effects.topk(count).indices])
    chosen = torch.cat([chosen[m[chosen] != 0], torch.tensor([*changed], dtype=torch.long, device=v.device)]).unique()
    chosen = chosen[sizes[chosen].argsort(descending=True, stable=True)]
    contributions = s * m[chosen, None] * v[chosen]
    bias = s * in_residual(model.model, layer, states.b[layer.index].to(v.device)[None])[0].float()
    together = s * (m @ v)
    vectors = torch.cat([contributions, (together - contributions.sum(0))[None], bias[None], y[None]])
    return LayerParts(
        listed=chosen,
        coefficient=m[chosen],
        size=sizes[chosen],
        vectors=vectors,
        others=int((m != 0).sum() - (m[chosen] != 0).sum()),
        all_sizes=float(sizes.double().sum()),
        deviation=relative_error(together + bias, y),
    )


def logit_changes(model: RunModel, end: Tensor, parts: list[LayerParts], token: int) -> list[Tensor]:
    """Computes how much lower the token's logit is without each part: logit(h) - logit(h - part) [layer][part].

    Args:
        model: the model.
        end: h, what the head reads at the chosen token [d].
        parts: of every layer.
        token: the chosen next token.
    """
    without = torch.cat([end[None], *(end - part.vectors.to(end.device) for part in parts)])
    logits = model.head.token_logits(without, token, model.read_as).cpu()
    return [*(logits[0] - logits[1:]).split([len(part.vectors) for part in parts])]


def contribution_table(parts: list[LayerParts], changes: list[Tensor], top: pd.DataFrame) -> pd.DataFrame:
    """`Trace.contributions`.

    Args:
        parts: of every layer.
        changes: of the logit, see `logit_changes`.
        top: top_token and top_probability of the listed memories, in their order.
    """
    rows = [
        (number, memory, memory_name(number, memory), *numbers)
        for number, (part, change) in enumerate(zip(parts, changes, strict=True))
        for memory, *numbers in zip(
            part.listed.tolist(), part.coefficient.tolist(), part.size.tolist(), part.shares.tolist(), change.tolist()
        )
    ]
    table = pd.DataFrame(rows, columns=["layer", "memory", "name", "coefficient", "size", "share", "logit"])
    return table.assign(top_token=top["top_token"].to_numpy(), top_probability=top["top_probability"].to_numpy())


def remainder_table(parts: list[LayerParts], changes: list[Tensor]) -> pd.DataFrame:
    """`Trace.remainders`. Arguments as for `contribution_table`."""
    rows = []
    for number, (part, change) in enumerate(zip(parts, changes, strict=True)):
        lengths, shares = part.vectors[-3:-1].norm(dim=1).tolist(), part.shares[-2:].tolist()
        rows.append((number, "other memories", part.others, lengths[0], shares[0], float(change[-3])))
        rows.append((number, "bias", 0, lengths[1], shares[1], float(change[-2])))
    return pd.DataFrame(rows, columns=["layer", "part", "memories", "norm", "share", "logit"])
