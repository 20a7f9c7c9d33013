"""Ridge regression in closed form, whose penalty is chosen by cross-validation (docs/translation.md)."""

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FOLDS = 5
FACTORS = 10.0 ** np.arange(-6, 6)  # penalties that are tried, as multiples of `scale`


class Ridge(NamedTuple):
    """A linear map y ≈ x W + b."""

    weight: np.ndarray  # W [input, output]
    offset: np.ndarray  # b [output]
    penalty: float  # what W was shrunk by
    steps: int = 0  # of gradient descent that followed


class Moments(NamedTuple):
    """Sums over pairs of x and y, in float64, on their device: enough to fit a map on them, or to judge one."""

    n: int
    x: Tensor  # [input]
    y: Tensor  # [output]
    xx: Tensor  # [input, input]
    xy: Tensor  # [input, output]
    yy: float  # the sum of squares of all outputs

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Moments":
        """Sums the pairs of x [n, input] and y [n, output]."""
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, float((y * y).sum()))

    def plus(self, other: "Moments", sign: int = 1) -> "Moments":
        """Returns the sums over the pairs of both; with sign -1 over those that are not in `other`."""
        n, yy = self.n + sign * other.n, self.yy + sign * other.yy
        sums = (self.x + sign * other.x, self.y + sign * other.y)
        return Moments(n, *sums, self.xx + sign * other.xx, self.xy + sign * other.xy, yy)

    def around(self, x: Tensor, y: Tensor) -> "Moments":
        """Returns the sums of the same pairs, with x [input] and y [output] subtracted from each."""
        xx = self.xx - torch.outer(self.x, x) - torch.outer(x, self.x) + self.n * torch.outer(x, x)
        xy = self.xy - torch.outer(self.x, y) - torch.outer(x, self.y) + self.n * torch.outer(x, y)
        yy = self.yy - 2 * float(self.y @ y) + self.n * float(y @ y)
        return Moments(self.n, self.x - self.n * x, self.y - self.n * y, xx, xy, yy)


def fold_of(sentence: np.ndarray) -> np.ndarray:
    """Returns the fold of each pair by its sentence [n]: runs of neighbouring sentences, of about equal numbers of them."""
    sentences, number = np.unique(sentence, return_inverse=True)
    return number * FOLDS // max(len(sentences), 1)


def scale(xx: Tensor) -> float:
    """Returns the median squared length of a centred coordinate, from their products [input, input]; 1 if it is 0."""
    return float(xx.diagonal().quantile(0.5)) or 1.0


def fit(x: np.ndarray, y: np.ndarray, fold: np.ndarray, order: np.ndarray, device: str = "cpu") -> tuple[Ridge, Ridge]:
    """Fits y [n, output] by x [n, input], with the penalty whose squared error on left-out folds is the smallest.

    `fold`: as `fold_of` returns it [n]. Of equal errors, the larger penalty counts. `device`: that computes, in float64. Returns the
    map; and with the same penalty that of shuffled pairs, x and y[order].
    """
    mean_x, mean_y = x.mean(0, dtype=np.float64), y.mean(0, dtype=np.float64)
    centred = [torch.from_numpy(z).to(device) for z in (x - mean_x, y - mean_y, (y - mean_y)[order])]
    rows = [torch.from_numpy(np.flatnonzero(fold == number)).to(device) for number in np.unique(fold)]
    parts = [Moments.of(centred[0][own], centred[1][own]) for own in rows]
    whole = functools.reduce(Moments.plus, parts)
    errors = np.sum([errors_of(whole.plus(part, -1), part) for part in parts if part.n < whole.n], 0)
    factor = FACTORS[::-1][np.argmin(np.atleast_1d(errors)[::-1])]
    penalty = float(factor * scale(whole.xx))
    shrunk = whole.xx + penalty * torch.eye(len(whole.xx), dtype=whole.xx.dtype, device=device)
    products = torch.cat([whole.xy, centred[0].T @ centred[2]], 1)
    weights = np.hsplit(torch.linalg.solve(shrunk, products).cpu().numpy(), 2)
    own, shuffled = (Ridge(weight, mean_y - mean_x @ weight, penalty) for weight in weights)
    return own, shuffled


def errors_of(train: Moments, held: Moments) -> np.ndarray:
    """Returns the squared error on `held` of the map that is fitted on `train`, with each of the penalties [penalty].

    With the eigenvectors Q and eigenvalues e of xx, the map of a penalty p is Q (Qᵀ xy / (e + p)), so that one decomposition
    serves all of them.
    """
    mean_x, mean_y = train.x / max(train.n, 1), train.y / max(train.n, 1)
    own, held = train.around(mean_x, mean_y), held.around(mean_x, mean_y)
    e, q = torch.linalg.eigh(own.xx)
    fitted, found = q.T @ own.xy, q.T @ held.xy
    cross, products = (fitted * found).sum(1), (q.T @ held.xx @ q) * (fitted @ fitted.T)
    errors = []
    for penalty in FACTORS * scale(own.xx):
        shrink = 1 / (e.clamp(min=0) + penalty)
        errors.append(held.yy - 2 * float(shrink @ cross) + float(shrink @ (products @ shrink)))
    return np.array(errors)
