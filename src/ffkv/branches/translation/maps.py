"""The maps of layers: fitted by ridge regression in closed form, and stored in `translation/maps/<group>.h5`.

The penalty is chosen by cross-validation. `ffkv.model.head.lens.MappedLens` reads vectors through the maps.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import Checked, dataset
from ffkv.branches.translation.tables import READINGS

FOLDS = 5
FACTORS = 10.0 ** np.arange(-6, 6)  # penalties that are tried, as multiples of `scale`


class Ridge(NamedTuple):
    """A linear map y ≈ x W + b."""

    weight: np.ndarray  # W [input, output]
    offset: np.ndarray  # b [output]
    penalty: float  # what W was shrunk by
    steps: int = 0  # of gradient descent that followed


class Moments(NamedTuple):
    """Sums over pairs of x and y, in float64: enough to fit a map on them, or to judge one."""

    n: int
    x: np.ndarray  # [input]
    y: np.ndarray  # [output]
    xx: np.ndarray  # [input, input]
    xy: np.ndarray  # [input, output]
    yy: float  # the sum of squares of all outputs

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> "Moments":
        """Sums the pairs of x [n, input] and y [n, output]."""
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, float((y * y).sum()))

    def plus(self, other: "Moments", sign: int = 1) -> "Moments":
        """Returns the sums over the pairs of both; with sign -1 over those that are not in `other`."""
        n, yy = self.n + sign * other.n, self.yy + sign * other.yy
        sums = (self.x + sign * other.x, self.y + sign * other.y)
        return Moments(n, *sums, self.xx + sign * other.xx, self.xy + sign * other.xy, yy)

    def around(self, x: np.ndarray, y: np.ndarray) -> "Moments":
        """Returns the sums of the same pairs, with x [input] and y [output] subtracted from each."""
        xx = self.xx - np.outer(self.x, x) - np.outer(x, self.x) + self.n * np.outer(x, x)
        xy = self.xy - np.outer(self.x, y) - np.outer(x, self.y) + self.n * np.outer(x, y)
        yy = self.yy - 2 * float(self.y @ y) + self.n * float(y @ y)
        return Moments(self.n, self.x - self.n * x, self.y - self.n * y, xx, xy, yy)


def fold_of(sentence: np.ndarray) -> np.ndarray:
    """Returns the fold of each pair by its sentence [n]: runs of neighbouring sentences, of about equal numbers of them."""
    sentences, number = np.unique(sentence, return_inverse=True)
    return number * FOLDS // max(len(sentences), 1)


def scale(xx: np.ndarray) -> float:
    """Returns the median squared length of a centred coordinate, from their products [input, input]; 1 if it is 0."""
    return float(np.median(np.diag(xx))) or 1.0


def fit(x: np.ndarray, y: np.ndarray, fold: np.ndarray, order: np.ndarray) -> tuple[Ridge, Ridge]:
    """Fits y [n, output] by x [n, input], with the penalty whose squared error on left-out folds is the smallest.

    `fold`: as `fold_of` returns it [n]. Of equal errors, the larger penalty counts. Returns the map; and with the same penalty
    that of shuffled pairs, x and y[order].
    """
    mean_x, mean_y = x.mean(0, dtype=np.float64), y.mean(0, dtype=np.float64)
    x, y = x - mean_x, y - mean_y
    parts = [Moments.of(x[fold == number], y[fold == number]) for number in np.unique(fold)]
    whole = functools.reduce(Moments.plus, parts)
    errors = np.sum([errors_of(whole.plus(part, -1), part) for part in parts if part.n < whole.n], 0)
    factor = FACTORS[::-1][np.argmin(np.atleast_1d(errors)[::-1])]
    penalty = float(factor * scale(whole.xx))
    products = np.hstack([whole.xy, x.T @ y[order]])
    weights = np.hsplit(np.linalg.solve(whole.xx + penalty * np.eye(len(mean_x)), products), 2)
    own, shuffled = (Ridge(weight, mean_y - mean_x @ weight, penalty) for weight in weights)
    return own, shuffled


def errors_of(train: Moments, held: Moments) -> np.ndarray:
    """Returns the squared error on `held` of the map that is fitted on `train`, with each of the penalties [penalty].

    With the eigenvectors Q and eigenvalues e of xx, the map of a penalty p is Q (Qᵀ xy / (e + p)), so that one decomposition
    serves all of them.
    """
    mean_x, mean_y = train.x / max(train.n, 1), train.y / max(train.n, 1)
    own, held = train.around(mean_x, mean_y), held.around(mean_x, mean_y)
    e, q = np.linalg.eigh(own.xx)
    fitted, found = q.T @ own.xy, q.T @ held.xy
    cross, products = (fitted * found).sum(1), (q.T @ held.xx @ q) * (fitted @ fitted.T)
    errors = []
    for penalty in FACTORS * scale(own.xx):
        shrink = 1 / (np.maximum(e, 0) + penalty)
        errors.append(held.yy - 2 * float(shrink @ cross) + float(shrink @ products @ shrink))
    return np.array(errors)


@dataclass(frozen=True, kw_only=True)
class Maps:
    """Two maps per layer: one fitted on pairs of states, one on shuffled pairs, in the order of `READINGS`."""

    layer: np.ndarray = dataset("layer", "int32", unit="layer", about="the layer, from 0")
    weight: np.ndarray = dataset(
        "layer reading input width",
        "float32",
        unit="1",
        about="W of o^L = o^l W + b; fitted on pairs of states, and on shuffled pairs",
        chunks={"layer": 1, "reading": 1},
    )
    offset: np.ndarray = dataset("layer reading width", "float32", unit="1", about="b")
    attributes: dict[str, Any]  # the attributes of the file

    def map_of(self, reading: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns W [d, d] and b [d] of a reading of one layer."""
        row, which = self.layer.tolist().index(layer), READINGS.index(reading)
        return self.weight[row, which], self.offset[row, which]


def write_maps(path: Path | str, maps: Maps) -> None:
    """Writes `translation/maps/<group>.h5`."""
    with hdf5.create(path, "translation maps", maps.attributes) as file:
        datasets.write(file, maps)


def read_maps(path: Path | str, belongs_to: Mapping[str, Any], layers: Sequence[int]) -> Maps:
    """Reads the maps of some layers. For `belongs_to` and errors see `hdf5.open`; UserError if it has other layers."""
    with hdf5.open(path, "translation maps", belongs_to) as file:
        maps = datasets.read(file, Maps, attributes=dict(file.attrs))
    if maps.layer.tolist() != list(layers):
        message = f"{path} has layers {maps.layer.tolist()}, not layers {list(layers)}"
        raise UserError(f"{message}: give the file of the same layer group.")
    return maps


def read_map(file: h5py.File | Checked, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads the map of one layer from an open file: W [d, d] and b [d], fitted on pairs of states."""
    row = file["layer"][...].tolist().index(layer)
    return file["weight"][row, 0], file["offset"][row, 0]
