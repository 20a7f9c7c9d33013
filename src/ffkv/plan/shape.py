"""The shape of a model: the sizes that a plan needs. No weight is read."""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.base.settings import EMBEDDED, Settings
from ffkv.corpus.embedded.training import make_model
from ffkv.model.checkpoint.read import load_form
from ffkv.model.discover.find import block_of, candidates_of
from ffkv.model.experts.layouts import layout_of


class Shape(NamedTuple):
    """The sizes of a model.

    Attributes:
        architecture: name of its class.
        memories: d_m, number of memories [layer].
        width: d, size of the residual stream.
        vocabulary: |V|.
        parameters: number of all weights.
        body: number of weights in the blocks, without those of experts that a token is not sent to.
        outside: number of weights outside of the blocks: the embeddings, the head.
        dtype: name of the weights' type.
        signed: whether coefficients can be negative, as far as the name of the activation tells.
        active: share of the memories that a token is sent to; 1 without experts.
    """

    architecture: str
    memories: tuple[int, ...]
    width: int
    vocabulary: int
    parameters: int
    body: int
    outside: int
    dtype: str
    signed: bool = True
    active: float = 1.0

    def batch_bytes(self, settings: Settings) -> float:
        """Bytes of the states and coefficients of a batch."""
        return 4 * settings.batches.tokens * (8 * max(self.memories) + 12 * self.width)


def load_model_form(settings: Settings, commit: Commit | None = None) -> PreTrainedModel:
    """The model of a run on torch's meta device: all its modules, no weights. Raises UserError if there is none."""
    if settings.model.checkpoint == EMBEDDED:
        with torch.device("meta"):
            return make_model(settings.embedded, settings.embedded.vocabulary, settings.seed)
    return load_form(settings.model, commit)


def measure_shape(model: PreTrainedModel, second_matrix: str = "") -> Shape:
    """The shape of a model. Its feed-forward layers are found by the names of their second matrices; it is not run.

    Raises:
        UserError: no feed-forward layer has a name that ffkv knows.
    """
    config, modules = model.config.get_text_config(decoder=True), dict(model.named_modules())
    embedding: Any = model.get_output_embeddings() or model.get_input_embeddings()
    width = getattr(config, "hidden_size", None) or embedding.weight.shape[-1]
    readers = [name for name, part in modules.items() if getattr(part, "config", None) is config]
    text = tuple(f"{name}." for name in readers) if readers and "" not in readers else ("",)  # not a vision tower
    memories: dict[str, int] = {}
    unused = idle = 0.0
    for name, block in candidates_of(model, modules, second_matrix).items():
        if name.startswith(text) and (count := _memories(modules[name], width)):
            memories[block] = memories.get(block, 0) + count
            if (layout := layout_of(modules[name])) and (sent := getattr(config, "num_experts_per_tok", None)):
                weights = sum(weight.numel() for weight in modules[name].parameters())
                share = 1 - min(1.0, sent / layout.experts)
                unused, idle = unused + weights * share, idle + count * share
    if not memories:
        remedy = "Set model.second_matrix; `ffkv inspect` shows the modules of the model."
        raise UserError(f"{type(model).__name__} has no feed-forward layer of a name that ffkv knows. {remedy}")
    lists = {block.rpartition(".")[0] for block in memories}
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    body = sum(size for name, size in sizes.items() if block_of(model, name).rpartition(".")[0] in lists)
    dtype, parameters = str(model.dtype).removeprefix("torch."), sum(sizes.values())
    signed = "relu" not in (getattr(config, name, "") for name in ("hidden_act", "activation_function"))
    active = 1 - idle / sum(memories.values())
    counts = parameters, round(body - unused), parameters - body, dtype, signed, active
    return Shape(type(model).__name__, tuple(memories.values()), width, embedding.weight.shape[0], *counts)


def _memories(module: Any, width: int) -> int:
    """Number of memories of a second matrix or a bank of experts; 0 if it does not write into the residual stream."""
    if (layout := layout_of(module)) is not None:
        return layout.experts * layout.units
    rows, columns = module.weight.shape if isinstance(module, nn.Linear) else reversed(module.weight.shape)
    return columns if rows == width else 0
