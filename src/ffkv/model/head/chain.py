"""Heads that are a chain of plain torch modules, such as a final norm and the output embedding (GPT-2, GPT-NeoX, OPT).

Such a head is rebuilt from its tensors alone. A job that needs no other part of the model then imports no modeling
code, which takes some four CPU seconds.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import HeadModule
from ffkv.model.head.emptied import EmptiedModel
from ffkv.model.tap.hooks import after, hidden_input

PLAIN: dict[str, type[nn.Module]] = {"LayerNorm": nn.LayerNorm, "Linear": nn.Linear}
ROWS = 3  # of random vectors on which chain and model are compared


class ModuleChain:
    """A head that is a chain of plain modules, in order."""

    def __init__(self, chain: list[HeadModule], tensors: dict[str, Tensor]):
        """Builds the modules. `tensors`: by the names that they have in the model."""
        self.model = nn.Sequential(*[_build(module, tensors) for module in chain])
        self.output_module = self.model[-1]  # holds the output embedding E [vocabulary, width of its input]

    def read_out(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits [n, vocabulary] of vectors [n, d], of any layer."""
        return self.model(vectors[:, None])[:, 0]


def find_chain(emptied: EmptiedModel, width: int) -> list[HeadModule]:
    """Finds the chain that gives exactly the logits of an emptied model with its weights; [] if there is none."""
    if any(layer.post_norm for layer in emptied.spec.layers):  # their vectors are read through norms of blocks
        return []
    model = emptied.model
    plain = {name: module for name, module in model.named_modules() if type(module) in PLAIN.values()}
    calls: list[tuple[str, Tensor, Tensor]] = []

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        calls.append((name, hidden_input(args, kwargs), output))

    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    vectors = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad(), after(*[(module, partial(note, name)) for name, module in plain.items()]):
        logits = emptied.read_out(vectors, None)
    state, chain = vectors[:, None], []
    for name, argument, output in calls:
        if argument.shape == state.shape and torch.equal(argument, state):
            chain.append(HeadModule(name, type(plain[name]).__name__, getattr(plain[name], "eps", 0.0)))
            state = output
    ends_with_embedding = bool(chain) and plain[chain[-1].name] is model.get_output_embeddings()
    return chain if ends_with_embedding and torch.equal(state[:, 0], logits) else []


def _build(module: HeadModule, tensors: dict[str, Tensor]) -> nn.Module:
    weight, bias = tensors[f"{module.name}.weight"], tensors.get(f"{module.name}.bias")
    with torch.device("meta"):
        built: Any = (
            nn.LayerNorm(weight.shape, module.eps) if module.kind == "LayerNorm" else nn.Linear(*weight.T.shape)
        )
    built.weight = nn.Parameter(weight, requires_grad=False)
    built.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return built
