"""Fits the map of each layer: by ridge regression in closed form, whose penalty is chosen by cross-validation, and from there on by
descent if that is asked for (docs/translation.md).

The descent is on the divergence of predictions, as of the tuned lens (Belrose et al. 2023). Maps are judged on validation prefixes.
"""

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.prefix_file import KIND, read_end, read_layer
from ffkv.base.files import hdf5, tables
from ffkv.base.intervals import mean_interval
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.translation.maps import Maps
from ffkv.branches.translation.settings import Translation
from ffkv.branches.translation.tables import FIT, READINGS
from ffkv.model.head.head import Head
from ffkv.model.head.lens import CHUNK_BYTES, Lens, MappedLens

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
    yy: Tensor  # the sum of squares of all outputs []

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> "Moments":
        """Sums the pairs of x [n, input] and y [n, output]."""
        return cls(len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y, (y * y).sum())

    def plus(self, other: "Moments", sign: int = 1) -> "Moments":
        """Returns the sums over the pairs of both; with sign -1 over those that are not in `other`."""
        pairs: Any = zip(self, other, strict=True)
        return Moments(*(own + sign * its for own, its in pairs))

    def around(self, x: Tensor, y: Tensor) -> "Moments":
        """Returns the sums of the same pairs, with x [input] and y [output] subtracted from each."""
        xx = self.xx - torch.outer(self.x, x) - torch.outer(x, self.x) + self.n * torch.outer(x, x)
        xy = self.xy - torch.outer(self.x, y) - torch.outer(x, self.y) + self.n * torch.outer(x, y)
        yy = self.yy - 2 * (self.y @ y) + self.n * (y @ y)
        return Moments(self.n, self.x - self.n * x, self.y - self.n * y, xx, xy, yy)


def fold_of(sentence: np.ndarray) -> np.ndarray:
    """Returns the fold of each pair by its sentence [n]: runs of neighbouring sentences, of about equal numbers of them."""
    sentences, number = np.unique(sentence, return_inverse=True)
    return number * FOLDS // max(len(sentences), 1)


def scale(xx: Tensor) -> Tensor:
    """Returns the median squared length of a centred coordinate, from their products [input, input]; 1 if it is 0."""
    median = xx.diagonal().quantile(0.5)
    return torch.where(median == 0, 1.0, median)


def fit(x: np.ndarray, y: np.ndarray, fold: np.ndarray, order: np.ndarray, device: str = "cpu") -> tuple[Ridge, Ridge]:
    """Fits y [n, output] by x [n, input], with the penalty whose squared error on left-out folds is the smallest.

    `fold`: as `fold_of` returns it [n]. Of equal errors, the larger penalty counts. `device`: that computes, in float64. Returns the
    map; and with the same penalty that of shuffled pairs, x and y[order].
    """
    mean_x, mean_y = x.mean(0, dtype=np.float64), y.mean(0, dtype=np.float64)
    centred = [torch.from_numpy(z).to(device) for z in (x - mean_x, y - mean_y, (y - mean_y)[order])]
    _, counts = np.unique(fold, return_counts=True)
    rows = torch.from_numpy(np.argsort(fold, kind="stable")).to(device).split(counts.tolist())
    parts = [Moments.of(centred[0][own], centred[1][own]) for own in rows]
    whole = functools.reduce(Moments.plus, parts)
    factors = torch.from_numpy(FACTORS).to(device)
    of_folds = (errors_of(whole.plus(part, -1), part, factors) for part in parts if part.n < whole.n)
    errors = sum(of_folds, torch.zeros_like(factors)).cpu().numpy()
    penalty = float(FACTORS[::-1][np.argmin(errors[::-1])] * scale(whole.xx))
    shrunk = whole.xx + penalty * torch.eye(len(whole.xx), dtype=whole.xx.dtype, device=device)
    products = torch.cat([whole.xy, centred[0].T @ centred[2]], 1)
    weights = np.hsplit(torch.linalg.solve(shrunk, products).cpu().numpy(), 2)
    own, shuffled = (Ridge(weight, mean_y - mean_x @ weight, penalty) for weight in weights)
    return own, shuffled


def errors_of(train: Moments, held: Moments, factors: Tensor) -> Tensor:
    """Returns the squared error on `held` of the map that is fitted on `train`, with each penalty [penalty], `factors` times its `scale`.

    With the eigenvectors Q and eigenvalues e of xx, the map of a penalty p is Q (Qᵀ xy / (e + p)), so that one decomposition
    serves all of them.
    """
    mean_x, mean_y = train.x / max(train.n, 1), train.y / max(train.n, 1)
    own, held = train.around(mean_x, mean_y), held.around(mean_x, mean_y)
    e, q = torch.linalg.eigh(own.xx)
    fitted, found = q.T @ own.xy, q.T @ held.xy
    cross, products = (fitted * found).sum(1), (q.T @ held.xx @ q) * (fitted @ fitted.T)
    shrink = 1 / (e.clamp(min=0) + factors[:, None] * scale(own.xx))  # [penalty, input]
    return held.yy - 2 * shrink @ cross + (shrink @ products * shrink).sum(1)


COMPARED = 500  # sampled prefixes, at most, on which predictions are compared


def fit_maps(given: Given, settings: Translation = Translation(), seed: int = 0) -> tuple[Maps, pd.DataFrame]:
    """Fits the maps of a group of layers on states of train prefixes, and judges them on validation prefixes.

    `settings`: `fit`, how they are fitted. `seed`: of the shuffled pairs, and of batches. Returns the maps, and a row per layer and
    reading: how well it gives what the head reads, `FIT`.
    """
    head, anatomy = given.head(), given.anatomy
    sentence, target = _read(given, lambda file: file["sentence"][...]), _read(given, read_end)
    fold, shuffled = fold_of(sentence), random_stream(seed, Purpose.SHUFFLED_PAIRS).permutation(len(target))
    shape = (len(given.layers), len(READINGS), anatomy.width)
    weight, offset = np.zeros((*shape, anatomy.width), np.float32), np.zeros(shape, np.float32)
    rows = []
    for row, layer in enumerate(given.each_layer("maps")):
        o = _read(given, lambda file, layer: read_layer(file, layer, "o").o, layer)
        fitted = dict(zip(READINGS, fit(o, target, fold, shuffled, head.device), strict=True))
        if settings.fit == "divergence":
            pairs = dict(zip(READINGS, (target, target[shuffled]), strict=True))
            for reading, start in fitted.items():
                batches = random_stream(seed, Purpose.DESCENT, layer)
                fitted[reading] = descend(head, start, o, pairs[reading], fold, batches)
        for which, ridge in enumerate(fitted.values()):
            weight[row, which], offset[row, which] = ridge.weight, ridge.offset
        rows += judge(head, layer, fitted, given.states(layer, "o").o, given.end)
    maps = Maps(layer=np.array(given.layers, np.int32), weight=weight, offset=offset, attributes=anatomy.identity)
    return maps, tables.frame(FIT, rows, given.sample_identity)


def _read(given: Given, read: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
    """Reads an array of the train prefixes of all shards [prefix, ...]."""
    parts = []
    for path in given.files["states"]:
        with hdf5.open(path, KIND, given.identity) as file:
            parts.append(read(file, *arguments))
    return np.concatenate(parts)


def judge(head: Head, layer: int, ridges: dict[str, Ridge], o: np.ndarray, final: np.ndarray) -> list[tuple]:
    """Returns the rows of `FIT` of a layer. `o`: its block outputs; `final`: what the head reads, both [prefix, d]."""
    every = slice(None, None, max(1, -(-len(o) // COMPARED)))
    lenses: dict[str, Lens] = {name: lens_of(ridge, head) for name, ridge in ridges.items()}
    found = divergences(head, final[every], lenses | {"head": head}, o[every], layer)
    rows = []
    for name, sample in found.items():
        ridge = ridges.get(name)
        variance = explained_variance(final, o @ ridge.weight + ridge.offset if ridge else o)
        penalty, steps = (ridge.penalty, ridge.steps) if ridge else (np.nan, 0)
        mean = sample.mean() if len(sample) else np.nan
        rows.append((layer, name, penalty, steps, variance, len(sample), mean, *mean_interval(sample, 0)))
    return rows


def lens_of(ridge: Ridge, head: Head) -> MappedLens:
    """Returns the lens of a map, of whatever layer."""
    return MappedLens(head, lambda _: (ridge.weight.astype(np.float32), ridge.offset.astype(np.float32)))


def explained_variance(target: np.ndarray, reading: np.ndarray) -> float:
    """Returns 1 - Σ‖target - reading‖² / Σ‖target - its mean‖², of vectors [n, d] each; NaN if targets are all alike."""
    total = ((target - target.mean(0, dtype=np.float64)) ** 2).sum()
    return float(1 - ((target - reading.astype(np.float64)) ** 2).sum() / total) if total else float("nan")


def divergences(
    head: Head, final: np.ndarray, lenses: Mapping[str, Lens], states: np.ndarray, layer: int
) -> dict[str, np.ndarray]:
    """Returns KL(p‖q) in nats on some prefixes, by lens [prefix].

    p: what the head reads of `final`, as it does at the end of the model. q: what a lens reads of states of the layer. Both are
    [prefix, d].
    """
    known, read = torch.from_numpy(final), torch.from_numpy(states)
    found, step = {name: np.zeros(len(known)) for name in lenses}, max(1, CHUNK_BYTES // (8 * head.vocabulary))
    for start in range(0, len(known), step):
        part = slice(start, start + step)
        log_p = head.logits(known[part], head.read_as).double().log_softmax(-1)
        p = log_p.exp()
        for name, lens in lenses.items():
            log_q = lens.state(read[part], layer).double().log_softmax(-1)
            found[name][part] = (p * (log_p - log_q)).sum(-1).clamp(min=0).cpu().numpy()
    return found


STEPS = 300  # at most
BATCH = 64  # prefixes per step
RATE = 1e-3  # of Adam at the first step, in standard deviations of coordinates; it falls linearly to 0
EVERY = 25  # steps between two looks at the prefixes that are left out
PATIENCE = 3  # looks without a smaller divergence, after which the descent ends
HELD = 250  # prefixes that are left out and looked at, at most


def descend(
    head: Head, start: Ridge, x: np.ndarray, y: np.ndarray, fold: np.ndarray, generator: np.random.Generator
) -> Ridge:
    """Lets a map from x [n, d] to y [n, d] go on by gradient descent on KL(head(y)‖head(x W + b)).

    The last fold is left out. The map whose divergence there is the smallest counts, of all that were looked at and `start`.
    `fold`: as `fold_of` returns it [n]; with a single fold nothing is left out, and `start` stays. `generator`: of the batches.
    """
    own, held = np.flatnonzero(fold < fold.max(initial=0)), np.flatnonzero(fold == fold.max(initial=0))
    if not len(own):
        return start
    held = held[:: -(-len(held) // HELD)]

    def judge(ridge: Ridge) -> float:
        return float(divergences(head, y[held], {"": lens_of(ridge, head)}, x[held], 0)[""].mean())

    # A few coordinates of many models are a thousand times as large as the others: each is counted in its own deviations.
    mean, deviations = x[own].mean(0, dtype=np.float64), [each[own].std(0, dtype=np.float64) for each in (x, y)]
    unit, size = (np.where(found > 0, found, 1.0) for found in deviations)
    weight = torch.from_numpy((start.weight * unit[:, None] / size).astype(np.float32))
    offset = torch.from_numpy(((start.offset + mean @ start.weight) / size).astype(np.float32))
    optimizer = torch.optim.Adam([weight, offset], RATE)
    best, lowest = start, judge(start)
    for step in range(1, STEPS + 1):
        rows = generator.choice(own, min(BATCH, len(own)), replace=False)
        z, of_y = (torch.from_numpy(array.astype(np.float32)) for array in ((x[rows] - mean) / unit, size))
        gradient = _gradient(head, (z @ weight + offset) * of_y, torch.from_numpy(y[rows])) * of_y
        weight.grad, offset.grad = z.T @ gradient, gradient.sum(0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - (step - 1) / STEPS)
        optimizer.step()
        if step % EVERY == 0:
            w = weight.double().numpy() * size / unit[:, None]
            ridge = Ridge(w, offset.double().numpy() * size - mean @ w, start.penalty, step)
            if (found := judge(ridge)) < lowest:
                best, lowest = ridge, found
            elif step - best.steps >= PATIENCE * EVERY:
                break
    return best


def _gradient(head: Head, vectors: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient [n, d] of the mean of KL(head(y)‖head(vectors)) with respect to the vectors."""
    log_p = head.logits(y, head.read_as).log_softmax(-1)
    divergence = partial(torch.nn.functional.kl_div, target=log_p, reduction="batchmean", log_target=True)
    return head.gradient(vectors, head.read_as, lambda logits: divergence(logits.log_softmax(-1))).cpu()
