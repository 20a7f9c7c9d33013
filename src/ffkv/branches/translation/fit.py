"""Fits the map of each layer: by ridge regression in closed form, and from there on by descent if that is asked for.

The descent is on the divergence of predictions, as the tuned lens fits its maps (Belrose et al. 2023). Maps are judged on validation
prefixes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

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
from ffkv.branches.translation.ridge import Ridge, fit, fold_of
from ffkv.branches.translation.settings import Translation
from ffkv.branches.translation.tables import FIT, READINGS
from ffkv.model.head.head import Head
from ffkv.model.head.lens import CHUNK_BYTES, Lens, MappedLens

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
    `fold`: as `fold_of` returns it [n]; with a single fold nothing can be left out, and `start` stays. `generator`: of the
    batches.
    """
    own, held = np.flatnonzero(fold < fold.max(initial=0)), np.flatnonzero(fold == fold.max(initial=0))
    if not len(own):
        return start
    held = held[:: -(-len(held) // HELD)]

    def judge(ridge: Ridge) -> float:
        return float(divergences(head, y[held], {"": lens_of(ridge, head)}, x[held], 0)[""].mean())

    # A few coordinates of many models are a thousand times as large as the others: each is counted in its own deviations.
    mean, unit, size = x[own].mean(0, dtype=np.float64), _deviation(x[own]), _deviation(y[own])
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


def _deviation(vectors: np.ndarray) -> np.ndarray:
    """Returns the standard deviation of each coordinate [d]; 1 where it is 0."""
    found = vectors.std(0, dtype=np.float64)
    return np.where(found > 0, found, 1.0)


def _gradient(head: Head, vectors: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient [n, d] of the mean of KL(head(y)‖head(vectors)) with respect to the vectors."""
    log_p = head.logits(y, head.read_as).log_softmax(-1)
    divergence = partial(torch.nn.functional.kl_div, target=log_p, reduction="batchmean", log_target=True)
    return head.gradient(vectors, head.read_as, lambda logits: divergence(logits.log_softmax(-1))).cpu()
