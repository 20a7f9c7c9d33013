"""What each value predicts by itself: p_i = softmax of its projection onto the vocabulary (paper section 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.trigger_file import NONE
from ffkv.files import datasets, hdf5
from ffkv.files.datasets import dataset
from ffkv.model.head.head import Head, highest, lowest, rank
from ffkv.model.values_file import Values
from ffkv.process.progress import progress


@dataclass(frozen=True, kw_only=True)
class Projections:
    """Top and bottom tokens of the values of some layers, one row per memory. Bottom tokens: what negative coefficients promote.

    Attributes:
        attributes: what the file says of itself.
    """

    layer: np.ndarray = dataset("memory", "int32", unit="layer", about="layer of the memory, from 0")
    memory: np.ndarray = dataset("memory", "int32", unit="memory", about="number of the memory in its layer, from 0")
    top: np.ndarray = dataset("memory", "int32", unit="token", about="id of the highest logit, the lowest id of equals")
    tied: np.ndarray = dataset("memory", "bool", unit="1", about="whether several ids share the highest logit")
    top_token: np.ndarray = dataset("memory rank", "int32", unit="token", about="ids of the highest logits, descending")
    top_log_probability: np.ndarray = dataset(
        "memory rank", "float32", unit="nat", about="log-probabilities of `top_token`"
    )
    bottom: np.ndarray = dataset(
        "memory", "int32", unit="token", about="id of the lowest logit, the lowest id of equals"
    )
    bottom_token: np.ndarray = dataset(
        "memory rank", "int32", unit="token", about="ids of the lowest logits, ascending"
    )
    bottom_log_probability: np.ndarray = dataset(
        "memory rank", "float32", unit="nat", about="log-probabilities of `bottom_token`"
    )
    norm: np.ndarray = dataset("memory", "float32", unit="1", about="length of the value")
    attributes: dict[str, Any]


def project(head: Head, memories: Values, count: int, w: np.ndarray) -> tuple[Projections, np.ndarray]:
    """Projects values onto the vocabulary and keeps the `count` highest and the `count` lowest tokens of each.

    Args:
        w: the token that follows the first trigger of each memory's key [row]; -1: none.
    Returns:
        The projections; and the rank of w_i in the projection of v_i: how many tokens have a strictly greater logit, as
        int32 [row], -1 where there is no w_i.
    """
    total, tokens = len(memories.value), min(count, head.vocabulary)
    # Made before the work: small arrays that stay between large ones that go would keep the memory of these from use.
    whole = {
        "top": np.zeros(total, np.int32),
        "tied": np.zeros(total, np.bool_),
        "top_token": np.zeros((total, tokens), np.int32),
        "top_log_probability": np.zeros((total, tokens), np.float32),
        "bottom": np.zeros(total, np.int32),
        "bottom_token": np.zeros((total, tokens), np.int32),
        "bottom_log_probability": np.zeros((total, tokens), np.float32),
        "rank": np.zeros(total, np.int32),
    }
    with progress(total, "values", "projections") as bar:
        for layer in np.unique(memories.layer):
            rows = np.flatnonzero(memories.layer == layer)
            for part, logits in head.chunks(torch.from_numpy(memories.value[rows]), int(layer)):
                following = torch.from_numpy(w[rows[part]].astype(np.int64)).to(logits.device)
                for name, values in kept(logits, count, following.clamp(min=0)).items():
                    whole[name][rows[part]] = values.cpu().numpy()
                bar.update(part.stop - part.start)
    ranks = np.where(w == NONE, np.int32(-1), whole.pop("rank"))
    return Projections(layer=memories.layer, memory=memories.memory, norm=memories.norm, attributes={}, **whole), ranks


def kept(logits: Tensor, count: int, tokens: Tensor) -> dict[str, Tensor]:
    """What is kept of logits [n, vocabulary], by the names in `Projections`; and the rank of a token each [n]."""
    top, bottom = highest(logits, count), lowest(logits, count)
    log_probability = logits.log_softmax(-1)
    return {
        "top": top.first,
        "tied": top.tied,
        "top_token": top.ids,
        "top_log_probability": log_probability.gather(-1, top.ids),
        "bottom": bottom.first,
        "bottom_token": bottom.ids,
        "bottom_log_probability": log_probability.gather(-1, bottom.ids),
        "rank": rank(logits, tokens),
    }


def write_projections(path: Path | str, projections: Projections) -> None:
    """Writes `values/projections/<group>.h5`."""
    with hdf5.create(path, "projections", projections.attributes) as file:
        datasets.write(file, projections)


def read_projections(path: Path | str, belongs_to: Mapping[str, Any] | None = None) -> Projections:
    """Reads `values/projections/<group>.h5`.

    Args:
        path: the file.
        belongs_to: attributes whose identities the file must share, see `hdf5.open`.
    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(path, "projections", belongs_to) as file:
        return datasets.read(file, Projections, attributes=dict(file.attrs))
