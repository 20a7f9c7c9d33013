"""The sizes of a model, from its modules alone: no weight is read, and the model is not run."""

from collections import Counter
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.model.discover.find import block_of, candidates_of
from ffkv.model.experts import layout_of


class Shape(NamedTuple):
    """The sizes of a model."""

    architecture: str  # name of its class
    memories: tuple[int, ...]  # d_m, number of memories [layer]
    width: int  # d, size of the residual stream
    vocabulary: int  # |V|
    parameters: int  # number of all weights
    body: int  # number of weights in the blocks, without those of experts that a token is not sent to
    outside: int  # number of weights outside of the blocks: the embeddings, the head
    dtype: str  # name of the weights' type
    itemsize: int  # bytes of a weight
    signed: bool = True  # whether coefficients can be negative, as far as the name of the activation tells
    active: float = 1.0  # share of the memories that a token is sent to; 1 without experts

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.memories)

    @property
    def all_memories(self) -> int:
        """Number of memories of all layers."""
        return sum(self.memories)

    @property
    def head(self) -> int:
        """Number of weights of the output embedding: the operations of one reading."""
        return self.vocabulary * self.width

    @property
    def to_layer(self) -> float:
        """Number of weights that a token meets in a pass that ends at a layer, on average over the layers."""
        return self.body * (self.layers + 1) / 2 / self.layers


def measure_shape(model: PreTrainedModel, second_matrix: str = "") -> Shape:
    """Measures a model. Its feed-forward layers are found by the names of their second matrices; it is not run.

    Raises UserError if no feed-forward layer has a name that ffkv knows.
    """
    config, modules = model.config.get_text_config(decoder=True), dict(model.named_modules())
    embedding: Any = model.get_output_embeddings() or model.get_input_embeddings()
    width = getattr(config, "hidden_size", None) or embedding.weight.shape[-1]
    readers = [name for name, part in modules.items() if getattr(part, "config", None) is config]
    text = tuple(f"{name}." for name in readers) if readers and "" not in readers else ("",)  # not a vision tower
    memories: Counter[str] = Counter()
    unused = idle = 0.0
    for name, block in candidates_of(model, modules, second_matrix).items():
        if name.startswith(text) and (count := _memories(modules[name], width)):
            memories[block] += count
            if (layout := layout_of(modules[name])) and (sent := getattr(config, "num_experts_per_tok", None)):
                share = 1 - min(1.0, sent / layout.experts)
                unused += share * sum(weight.numel() for weight in modules[name].parameters())
                idle += share * count
    if not memories:
        remedy = "Set model.second_matrix; `ffkv inspect` shows the modules of the model."
        raise UserError(f"{type(model).__name__} has no feed-forward layer of a name that ffkv knows. {remedy}")
    lists = {block.rpartition(".")[0] for block in memories}
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    body = sum(size for name, size in sizes.items() if block_of(model, name).rpartition(".")[0] in lists)
    parameters = sum(sizes.values())
    activations = [getattr(config, name, "") for name in ("hidden_act", "activation_function")]
    return Shape(
        type(model).__name__,
        tuple(memories.values()),
        width,
        vocabulary=embedding.weight.shape[0],
        parameters=parameters,
        body=round(body - unused),
        outside=parameters - body,
        dtype=str(model.dtype).removeprefix("torch."),
        itemsize=model.dtype.itemsize,
        signed="relu" not in activations,
        active=1 - idle / memories.total(),
    )


def _memories(module: Any, width: int) -> int:
    """Returns the number of memories of a second matrix or bank of experts; 0 if it writes into no residual stream."""
    if (layout := layout_of(module)) is not None:
        return layout.experts * layout.units
    rows, columns = module.weight.shape if isinstance(module, nn.Linear) else reversed(module.weight.shape)
    return columns if rows == width else 0
