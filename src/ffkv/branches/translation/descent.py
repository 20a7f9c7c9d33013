"""Maps that go on from ridge regression by the divergence of predictions, as the tuned lens fits them (Belrose et al. 2023)."""

import numpy as np
import torch
from torch import Tensor

from ffkv.branches.translation.maps import TranslatedHead
from ffkv.branches.translation.readings import divergences
from ffkv.branches.translation.ridge import Ridge
from ffkv.model.head.head import Head

STEPS = 300  # at most
BATCH = 64  # prefixes per step
RATE = 1e-3  # of Adam at the first step, in standard deviations of coordinates; it falls linearly to 0
EVERY = 25  # steps between two looks at the prefixes that are left out
PATIENCE = 3  # looks without a smaller divergence, after which the descent ends
HELD = 250  # prefixes that are left out and looked at, at most


def descend(
    head: Head,
    read_as: int | None,
    start: Ridge,
    x: np.ndarray,
    y: np.ndarray,
    fold: np.ndarray,
    generator: np.random.Generator,
) -> Ridge:
    """Lets a map from x [n, d] to y [n, d] go on by gradient descent on KL(head(y)‖head(x W + b)).

    The last fold is left out. The map whose divergence there is the smallest counts, of all that were looked at and `start`.

    Args:
        read_as: the layer that y is read out as, see `Head.logits`.
        fold: as `fold_of` returns it [n]. With a single fold nothing can be left out, and `start` stays.
        generator: of the batches.
    """
    own, held = np.flatnonzero(fold < fold.max(initial=0)), np.flatnonzero(fold == fold.max(initial=0))
    if not len(own):
        return start
    held = held[:: -(-len(held) // HELD)]

    def judge(ridge: Ridge) -> float:
        reader = TranslatedHead(head, ridge.weight.astype(np.float32), ridge.offset.astype(np.float32), read_as)
        return float(divergences(head, y[held], read_as, {"": reader}, x[held], 0)[""].mean())

    # A few coordinates of many models are a thousand times as large as the others: each is counted in its own deviations.
    mean, unit, size = x[own].mean(0, dtype=np.float64), _deviation(x[own]), _deviation(y[own])
    weight = torch.from_numpy((start.weight * unit[:, None] / size).astype(np.float32))
    offset = torch.from_numpy(((start.offset + mean @ start.weight) / size).astype(np.float32))
    optimizer = torch.optim.Adam([weight, offset], RATE)
    best, lowest = start, judge(start)
    for step in range(1, STEPS + 1):
        rows = generator.choice(own, min(BATCH, len(own)), replace=False)
        z, of_y = (torch.from_numpy(array.astype(np.float32)) for array in ((x[rows] - mean) / unit, size))
        gradient = _gradient(head, read_as, (z @ weight + offset) * of_y, torch.from_numpy(y[rows])) * of_y
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


def _gradient(head: Head, read_as: int | None, vectors: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient [n, d] of the mean of KL(head(y)‖head(vectors)) with respect to the vectors."""
    log_p = head.logits(y, read_as).log_softmax(-1)

    def divergence(logits: Tensor) -> Tensor:
        return torch.nn.functional.kl_div(logits.log_softmax(-1), log_p, reduction="batchmean", log_target=True)

    return head.gradient(vectors, read_as, divergence).cpu()
