"""A model without the contents of its blocks.

The blocks pass their input on, and the last one returns the vectors that are to be read out. What remains is the
model's own final norm, projections, output embedding, scale and soft cap, so that ffkv needs to know none of them.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ffkv.model.anatomy import HeadSpec
from ffkv.model.tap.hooks import hidden_argument, known_state


class EmptiedModel:
    """A model whose blocks are empty, and the vectors that its last block returns.

    The blocks themselves stay, with the attributes that the model's own code asks them for. If a block adds the
    feed-forward output before a last norm, that norm stays too.
    """

    def __init__(self, model: Any, spec: HeadSpec):
        """Empties the blocks of a model in place."""
        self.model = model
        self.spec = spec
        self._vectors: Tensor | None = None
        norms = {layer.sum_module for layer in spec.layers if layer.post_norm}
        for siblings in dict.fromkeys(layer.block.rpartition(".")[0] for layer in spec.layers):
            for name, block in model.get_submodule(siblings).named_children():
                path = f"{siblings}.{name}"
                kept = {norm[len(path) + 1 :].split(".")[0] for norm in norms if norm.startswith(path + ".")}
                for child in [child for child in block._modules if child not in kept]:
                    del block._modules[child]
                block._parameters.clear()
                block._buffers.clear()
                block.forward = partial(self._forward, path == spec.last_block)
        # The module that holds the output embedding E [vocabulary, width of its input]; None if there is no single one.
        self.output_module = model.get_output_embeddings()

    def read_out(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits [n, vocabulary] of vectors [n, d] of a layer; None: of outputs of the last block."""
        states = vectors[:, None]
        if layer is not None and self.spec.layers[layer].post_norm:
            states = known_state(self.model.get_submodule(self.spec.layers[layer].sum_module)(states))
        self._vectors = states
        ids = torch.zeros(len(states), 1, dtype=torch.long, device=states.device)
        return self.model(input_ids=ids, use_cache=False).logits[:, 0]

    def _forward(self, is_last: bool, *args: Any, **kwargs: Any) -> Any:
        states = self._vectors if is_last else hidden_argument(args, kwargs)
        return (states, *[None] * (self.spec.returns - 1)) if self.spec.returns else states
