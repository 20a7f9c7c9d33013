"""`values/projections/<group>.h5`: the tokens that each value promotes and demotes (paper section 4)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.files import hdf5


@dataclass(frozen=True)
class Projections:
    """Top and bottom tokens of the values of some layers, one row per memory.

    Attributes:
        layer: layer of the memory, from 0 [row].
        memory: number of the memory in its layer, from 0 [row].
        top: top(v_i), the id of the highest logit; the lowest id if several share it [row].
        tied: whether several ids share the highest logit [row].
        top_token: ids of the highest logits, descending [row, rank].
        top_log_probability: log-probabilities of these ids, in nat [row, rank].
        bottom: the id of the lowest logit; the lowest id if several share it [row].
        bottom_token: ids of the lowest logits, ascending; a negative coefficient promotes them [row, rank].
        bottom_log_probability: log-probabilities of these ids, in nat [row, rank].
        norm: length of v_i [row].
        attributes: the identity of the model, and `projection`: the setting `values.projection`.
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


def write_projections(path: Path | str, projections: Projections) -> None:
    """Writes `values/projections/<group>.h5`."""
    with hdf5.create(path, "projections", projections.attributes) as file:
        for name, (dimensions, unit, description) in DESCRIPTIONS.items():
            hdf5.put(file, name, getattr(projections, name), dimensions, unit, description)


def read_projections(path: Path | str, belongs_to: dict[str, Any] | None = None) -> Projections:
    """Reads `values/projections/<group>.h5`.

    Args:
        path: the file.
        belongs_to: identities that the file must have, for example `Anatomy.identity`.
    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(path, "projections", belongs_to) as file:
        return Projections(**{name: file[name][...] for name in DESCRIPTIONS}, attributes=dict(file.attrs))
