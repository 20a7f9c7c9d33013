"""Maps of the Jacobian lens: the mean Jacobian of each layer, and what stands beside it as a null (docs/translation.md)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.translation.fit import Ridge, judge
from ffkv.branches.translation.jacobian import FIXED_POINT, of_shards
from ffkv.branches.translation.lens_file import read_lens
from ffkv.branches.translation.maps import Maps
from ffkv.branches.translation.settings import Translation
from ffkv.branches.translation.tables import JACOBIAN_FIT, JACOBIAN_READINGS, PUBLISHED


def average_jacobians(given: Given, settings: Translation = Translation(), seed: int = 0) -> tuple[Maps, pd.DataFrame]:
    """Makes the maps of a group of layers from the sums of all shards, or from a published lens, and judges them.

    `settings`: `lens`, the file of a published lens; "" for the sums. `seed`: of the rotations. Returns the maps, in the order of
    `JACOBIAN_READINGS`, and a row per layer and reading, `JACOBIAN_FIT`.

    Raises:
        UserError: there is neither of them; or see `read_lens`.
    """
    head, anatomy = given.head(), given.anatomy
    published = read_lens(settings.lens, len(anatomy.layers), anatomy.width) if settings.lens else None
    if published is None and not given.files["jacobians"]:
        raise UserError("There are no sums of Jacobians. Name those of all shards by --jacobians, or a lens by --lens.")
    shape = (len(given.layers), len(JACOBIAN_READINGS), anatomy.width)
    weight, offset = np.zeros((*shape, anatomy.width), np.float32), np.zeros(shape, np.float32)
    rows = []
    for row, layer in enumerate(given.each_layer("Jacobians")):
        if published is None:  # sums are whole numbers: the order of shards changes nothing
            squares = np.concatenate([*of_shards(given, "square", slice(None), layer)])  # [text]
            sums: list[tuple[Any, ...]] = [("jacobian", layer), ("state", layer), ("end",)]
            jacobian, state, end = (sum(of_shards(given, *of)) * FIXED_POINT / len(squares) for of in sums)
            positions = sum(int(own.sum()) for own in of_shards(given, "positions"))
            known = [len(squares), positions, change_of(jacobian, squares)]
        else:
            jacobian, state, end, known = published[0][layer], *np.zeros((2, anatomy.width)), [published[1], 0, np.nan]
        # The map o -> J (o - mean of o) + mean of o^L: a first-order map of a state goes through a point.
        fitted = {name: Ridge(j.T, end - j @ state, np.nan) for name, j in variants(jacobian, seed, layer).items()}
        for which, ridge in enumerate(fitted.values()):
            weight[row, which], offset[row, which] = ridge.weight, ridge.offset
        judged = fitted | {PUBLISHED: fitted[JACOBIAN_READINGS[0]]._replace(offset=np.zeros(anatomy.width))}
        about = *known, identity_share(jacobian)
        states = given.states(layer, "o").o
        rows += [(*judgement, *about) for judgement in judge(head, layer, judged, states, given.end)]
    maps = Maps(layer=np.array(given.layers, np.int32), weight=weight, offset=offset, attributes=anatomy.identity)
    return maps, tables.frame(JACOBIAN_FIT, rows, given.sample_identity)


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
