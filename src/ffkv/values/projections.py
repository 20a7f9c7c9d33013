"""What each value predicts by itself: p_i = softmax of its projection onto the vocabulary (paper section 4)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffkv import store
from ffkv.errors import UserError
from ffkv.model import head as reading
from ffkv.model.head import Head
from ffkv.model.memories import Memories
from ffkv.progress import progress


@dataclass(frozen=True)
class Projections:
    """Top and bottom tokens of the values of some layers, one row a memory.

    layer, memory: which memory [row]. top: top(v_i), the id of the highest logit, the lowest id of equals [row].
    tied: whether several ids share it [row]. top_token, top_log_probability: the ids of the highest logits, descending,
    and their log-probabilities [row, rank]. bottom, bottom_token, bottom_log_probability: the same of the lowest logits,
    ascending: what a negative coefficient promotes. norm: length of v_i [row].
    """

    layer: np.ndarray
    memory: np.ndarray
    top: np.ndarray
    tied: np.ndarray
    top_token: np.ndarray
    top_log_probability: np.ndarray
    bottom: np.ndarray
    bottom_token: np.ndarray
    bottom_log_probability: np.ndarray
    norm: np.ndarray
    attributes: dict[str, Any]

    def tops(self, layer: int) -> np.ndarray:
        """top(v_i) of the memories of a layer, in their order [memory]."""
        return self.top[self.layer == layer]


DESCRIPTIONS = {
    "layer": (["memory"], "layer", "layer of the memory, from 0"),
    "memory": (["memory"], "memory", "number of the memory in its layer, from 0"),
    "top": (["memory"], "token", "id of the highest logit, the lowest id of equals"),
    "tied": (["memory"], "1", "whether several ids share the highest logit"),
    "top_token": (["memory", "rank"], "token", "ids of the highest logits, descending"),
    "top_log_probability": (["memory", "rank"], "nat", "their log-probabilities"),
    "bottom": (["memory"], "token", "id of the lowest logit, the lowest id of equals"),
    "bottom_token": (["memory", "rank"], "token", "ids of the lowest logits, ascending"),
    "bottom_log_probability": (["memory", "rank"], "nat", "their log-probabilities"),
    "norm": (["memory"], "1", "length of the value"),
}


def project(head: Head, memories: Memories, count: int) -> Projections:
    """Projects values onto the vocabulary and keeps the `count` highest and the `count` lowest tokens of each."""
    total, kept = len(memories.value), min(count, head.vocabulary)
    # Made before the work: small arrays that stay between large ones that go would keep the memory of these from use.
    whole = {
        "top": np.zeros(total, np.int32),
        "tied": np.zeros(total, np.bool_),
        "top_token": np.zeros((total, kept), np.int32),
        "top_log_probability": np.zeros((total, kept), np.float32),
        "bottom": np.zeros(total, np.int32),
        "bottom_token": np.zeros((total, kept), np.int32),
        "bottom_log_probability": np.zeros((total, kept), np.float32),
    }
    with progress(total, "values", "projections") as bar:
        for layer in np.unique(memories.layer):
            rows = np.flatnonzero(memories.layer == layer)
            for part, logits in head.chunks(torch.from_numpy(memories.value[rows]), int(layer)):
                found = (
                    reading.top(logits),
                    reading.tied(logits),
                    *reading.top_tokens(logits, count),
                    logits.argmin(-1),
                    *_bottom_tokens(logits, count),
                )
                for name, values in zip(whole, found, strict=True):
                    whole[name][rows[part]] = values.cpu().numpy()
                bar.update(part.stop - part.start)
    return Projections(
        memories.layer,
        memories.memory,
        norm=np.linalg.norm(memories.value, axis=1).astype(np.float32),
        attributes={},
        **whole,
    )


def _bottom_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ids of the `count` lowest logits, ascending, and their log-probabilities, each [n, count]."""
    lowest, ids = logits.topk(min(count, logits.shape[-1]), -1, largest=False)
    return ids, lowest - logits.logsumexp(-1, keepdim=True)


def write_projections(path: Path, projections: Projections) -> None:
    """Writes `values/projections/<group>.h5`."""
    with store.create(path, "projections", projections.attributes) as file:
        for name, (dimensions, unit, description) in DESCRIPTIONS.items():
            store.put(file, name, getattr(projections, name), dimensions, unit, description)


def read_projections(path: Path, belongs_to: dict[str, Any] | None = None, layers: range | None = None) -> Projections:
    """Reads `values/projections/<group>.h5`.

    Args:
        layers: those that it must hold.
    Raises:
        UserError: it holds other layers; or see `store.open`.
    """
    with store.open(path, "projections", belongs_to) as file:
        found = Projections(**{name: file[name][...] for name in DESCRIPTIONS}, attributes=dict(file.attrs))
    if layers is not None and set(found.layer.tolist()) != set(layers):
        raise UserError(f"{path} holds other layers than {list(layers)}: give the projections of the same layer group.")
    return found
