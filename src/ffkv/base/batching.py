"""How rows of tokens become batches: rows of similar length together, padded on the right."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Tokens that take as long as a pass takes beside its tokens: measured on two cores, and on an H200 with 30 layers.
PER_BATCH, PER_BATCH_ON_GPU = 64, 3000


def batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Groups rows of similar length [row] into batches of at most `batch_tokens` tokens, with padding.

    A longer row is a batch of its own. Returns the rows of each batch, shortest first; rows of equal length stay in
    order [batch][row].
    """
    groups: list[np.ndarray] = []
    group: list[int] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if group and (len(group) + 1) * lengths[row] > batch_tokens:
            groups.append(np.asarray(group))
            group = []
        group.append(row)
    return [*groups, np.asarray(group)] if group else groups


def tight_batches(lengths: np.ndarray, batch_tokens: int, device: str = "cpu") -> list[np.ndarray]:
    """Groups rows as `batches` does, but with the least work: tokens, padding among them, and some more for each batch.

    It pays for a few rows of very different lengths, as it takes some time itself.
    """
    order, per_batch = np.argsort(lengths, kind="stable"), PER_BATCH if device == "cpu" else PER_BATCH_ON_GPU
    work, start = np.zeros(len(order) + 1), np.zeros(len(order) + 1, int)  # of the cheapest batches up to each row
    for stop, length in enumerate(lengths[order].tolist(), 1):
        first = np.arange(max(0, stop - max(1, batch_tokens // max(length, 1))), stop)
        each = work[first] + (stop - first) * length + per_batch
        start[stop], work[stop] = first[each.argmin()], each.min()
    groups, stop = list[np.ndarray](), len(order)
    while stop:
        groups.append(order[start[stop] : stop])
        stop = start[stop]
    return groups[::-1]


def pad(rows: Sequence[np.ndarray], device: str = "cpu", value: int = 0) -> Tensor:
    """Puts one row of ids or more [row][token] into one tensor [row, token], padded on the right with a value."""
    padded = np.full((len(rows), max(map(len, rows))), value, np.int64)
    for line, row in zip(padded, rows):
        line[: len(row)] = row
    return to_device(padded, device)


def to_device(array: np.ndarray, device: str) -> Tensor:
    """Brings an array to a device. Nothing waits for a GPU: it takes the array when it has done what it was told before."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.to(device)


def to_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Brings tensors to the processor. It waits for a GPU once, however many there are."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        torch.get_device_module(device).synchronize(device)
    return [copy.numpy() for copy in copies]
