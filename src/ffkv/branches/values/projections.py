"""What each value predicts by itself: p_i = softmax of its projection onto the vocabulary (paper section 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import dataset

TOKEN: dict[str, Any] = {"dtype": "int32", "unit": "token", "of": "token_id"}
NUMBER: dict[str, Any] = {"dtype": "float32", "unit": "1"}
LOG: dict[str, Any] = {"dtype": "float32", "unit": "nat", "odd": True}
VARIANCE = "variance, over the vocabulary, of the logits of the value minus those of a vector of zeros"
KURTOSIS = "their kurtosis, 3 of a normal distribution; NaN if they are all alike"


@dataclass(frozen=True, kw_only=True)
class Projections:
    """Top and bottom tokens of the values of some layers, one row per memory. Negative coefficients promote the bottom."""

    layer: np.ndarray = dataset("memory", "int32", unit="layer", about="layer of the memory, from 0", of="layer")
    memory: np.ndarray = dataset("memory", "int32", unit="memory", about="number of the memory in its layer, from 0")
    top: np.ndarray = dataset("memory", about="id of the highest logit, the lowest id of equals", **TOKEN)
    tied: np.ndarray = dataset("memory", "bool", unit="1", about="whether several ids share the highest logit")
    top_token: np.ndarray = dataset("memory rank", about="ids of the highest logits, descending", **TOKEN)
    top_log_probability: np.ndarray = dataset("memory rank", about="log-probabilities of `top_token`", **LOG)
    bottom: np.ndarray = dataset("memory", about="id of the lowest logit, the lowest id of equals", **TOKEN)
    bottom_token: np.ndarray = dataset("memory rank", about="ids of the lowest logits, ascending", **TOKEN)
    bottom_log_probability: np.ndarray = dataset("memory rank", about="log-probabilities of `bottom_token`", **LOG)
    norm: np.ndarray = dataset("memory", about="length of the value", **NUMBER)
    logit_variance: np.ndarray = dataset("memory", about=VARIANCE, **NUMBER)
    logit_skewness: np.ndarray = dataset(
        "memory", about="their skewness; NaN if they are all alike", odd=True, **NUMBER
    )
    logit_kurtosis: np.ndarray = dataset("memory", about=KURTOSIS, odd=True, **NUMBER)
    attributes: dict[str, Any]  # the attributes of the file


def write_projections(path: Path | str, projections: Projections) -> None:
    """Writes `values/projections/<group>.h5`."""
    with hdf5.create(path, "projections", projections.attributes) as file:
        datasets.write(file, projections)


def read_projections(
    path: Path | str, belongs_to: Mapping[str, Any] | None = None, layers: Sequence[int] | None = None
) -> Projections:
    """Reads `values/projections/<group>.h5`. For `belongs_to` and errors see `hdf5.open`.

    `layers`: the layers that it must have, else it raises UserError; None for any.
    """
    with hdf5.open(path, "projections", belongs_to) as file:
        projections = datasets.read(file, Projections, attributes=dict(file.attrs))
    stored = np.unique(projections.layer).tolist()
    if layers is not None and stored != list(layers):
        raise UserError(
            f"{path} has layers {stored}, not layers {list(layers)}: give the file of the same layer group."
        )
    return projections
