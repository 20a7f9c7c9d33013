"""Maps of the Jacobian lens: the mean Jacobian of each layer, and what stands beside it as a null (docs/translation.md)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.files import datasets, hdf5, tables
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.translation.fit import Ridge, judge
from ffkv.branches.translation.jacobian import FIXED_POINT, KIND, Sums
from ffkv.branches.translation.lens_file import read_lens
from ffkv.branches.translation.maps import Maps
from ffkv.branches.translation.settings import Translation
from ffkv.branches.translation.tables import JACOBIAN_FIT, JACOBIAN_READINGS, PUBLISHED


class Average(NamedTuple):
    """The mean Jacobian of a layer."""

    jacobian: np.ndarray  # J [d, d], by coordinate of o^L and of o^l
    state: np.ndarray  # mean of o^l [d]
    end: np.ndarray  # mean of o^L [d]
    texts: int  # that it is the mean of
    positions: int  # of all texts
    change: float  # of the mean if one text is left out, see `change_of`


def average_jacobians(given: Given, settings: Translation = Translation(), seed: int = 0) -> tuple[Maps, pd.DataFrame]:
    """Makes the maps of a group of layers from the sums of all shards, or from a published lens, and judges them.

    `settings`: `lens`, the file of a published lens; "" for the sums. `seed`: of the rotations. Returns the maps, in the order of
    `JACOBIAN_READINGS`, and a row per layer and reading, `JACOBIAN_FIT`.

    Raises:
        UserError: see `read_lens`.
    """
    head, anatomy = given.head(), given.anatomy
    published = read_lens(settings.lens, len(anatomy.layers), anatomy.width) if settings.lens else None
    shape = (len(given.layers), len(JACOBIAN_READINGS), anatomy.width)
    weight, offset = np.zeros((*shape, anatomy.width), np.float32), np.zeros(shape, np.float32)
    rows = []
    for row, layer in enumerate(given.each_layer("Jacobians")):
        if published is None:
            found = _average(given, layer)
        else:
            nothing = np.zeros(anatomy.width)
            found = Average(published.jacobian(layer), nothing, nothing, published.texts, 0, np.nan)
        fitted = {name: around(j, found) for name, j in variants(found.jacobian, seed, layer).items()}
        for which, ridge in enumerate(fitted.values()):
            weight[row, which], offset[row, which] = ridge.weight, ridge.offset
        judged = fitted | {PUBLISHED: fitted[JACOBIAN_READINGS[0]]._replace(offset=np.zeros(anatomy.width))}
        about = found.texts, found.positions, found.change, identity_share(found.jacobian)
        states = given.states(layer, "o").o
        rows += [(*judgement, *about) for judgement in judge(head, layer, judged, states, given.end)]
    maps = Maps(layer=np.array(given.layers, np.int32), weight=weight, offset=offset, attributes=anatomy.identity)
    return maps, tables.frame(JACOBIAN_FIT, rows, given.sample_identity)


def _average(given: Given, layer: int) -> Average:
    """Reads the sums of a layer of all shards. Their order changes nothing: they are whole numbers."""
    jacobian, state, end = (
        np.zeros(shape, np.int64) for shape in ((given.anatomy.width,) * 2, *((given.anatomy.width,),) * 2)
    )
    squares, positions = [], 0
    for path in given.files["jacobians"]:
        with hdf5.open(path, KIND, given.identity) as file:
            sums = datasets.Checked(file, Sums)
            for total, part in (
                (jacobian, sums["jacobian"][layer]),
                (state, sums["state"][layer]),
                (end, sums["end"][:]),
            ):
                total += part
            squares += sums["square"][:, layer].tolist()
            positions += int(sums["positions"][:].sum())
    j, o, last = (total * FIXED_POINT / len(squares) for total in (jacobian, state, end))
    return Average(j, o, last, len(squares), positions, change_of(j, np.asarray(squares)))


def change_of(mean: np.ndarray, squares: np.ndarray) -> float:
    """Returns how far the mean of Jacobians [d, d] moves if one text is left out, relative to its own length.

    It is the root mean square over the texts: leaving out text k moves the mean by (J - J_k) / (n - 1). `squares`: ‖J_k‖² [text].
    NaN for a single text.
    """
    n, length = len(squares), float(np.square(mean).sum())
    if n < 2 or not length:
        return float("nan")
    return float(np.sqrt(max(0.0, squares.mean() - length) / length) / (n - 1))


def identity_share(jacobian: np.ndarray) -> float:
    """Returns d α² / ‖J‖², with α = tr J / d: how much of J is a multiple of the identity, 0 to 1; NaN if J is 0."""
    length = float(np.square(jacobian).sum())
    return float(np.trace(jacobian) ** 2 / len(jacobian) / length) if length else float("nan")


def variants(jacobian: np.ndarray, seed: int, layer: int) -> Mapping[str, np.ndarray]:
    """Returns J [d, d] by reading: as it is; without its share of the identity; and J R, with R a random rotation.

    J R has the same singular values, and reads directions that have nothing to do with those of the layer.
    """
    d = len(jacobian)
    q, r = np.linalg.qr(random_stream(seed, Purpose.ROTATIONS, layer + 1).normal(size=(d, d)))
    matrices = (jacobian, jacobian - np.trace(jacobian) / d * np.eye(d), jacobian @ (q * np.sign(np.diag(r))))
    return dict(zip(JACOBIAN_READINGS, matrices, strict=True))


def around(jacobian: np.ndarray, means: Average) -> Ridge:
    """Returns the map o -> J (o - mean of o) + mean of o^L, as a first-order map of a state goes through a point."""
    return Ridge(jacobian.T, means.end - jacobian @ means.state, float("nan"))
