"""How sentences are cut into batches: fixed blocks, sorted by length inside, with the least padding, without a mask.

A causal model never lets a token see what stands right of it, so padding there needs no mask. Blocks are fixed, whatever
the number of shards, because the last digits of a forward pass depend on the shape of its batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ffkv.commands import part

CACHE = 2**20  # bytes that one core keeps at hand
START = 64  # tokens of padding that are worth one batch less


def blocks(total: int, size: int, shard: int = 0, shards: int = 1) -> list[range]:
    """The blocks of `size` sentences that a shard works on.

    Args:
        total: number of sentences; the last block may be smaller.
        shard, shards: this process's part of all blocks, contiguous. A shard may have none.
    """
    count = -(-total // size)
    return [range(block * size, min((block + 1) * size, total)) for block in part(count, shard, shards)]


def batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Cuts a block, sorted by length, into batches where padding and starts of batches cost least.

    Args:
        lengths: tokens of each row of the block [row].
        batch_tokens: most tokens a batch may hold, padding included. A longer row is a batch of its own.
    Returns:
        The rows of each batch, shortest first; rows of one length stay in order.
    """
    order = np.argsort(lengths, kind="stable")
    cost = np.zeros(len(order) + 1)  # of the best cut of so many rows
    begins = np.zeros(len(order) + 1, np.int64)  # where its last batch begins
    for end, longest in enumerate(lengths[order].tolist(), 1):
        first = max(0, end - max(1, batch_tokens // longest))
        costs = cost[first:end] + START + longest * np.arange(end - first, 0, -1)
        best = costs.argmin()
        cost[end], begins[end] = costs[best], first + best
    cut, end = [], len(order)
    while end:
        cut.append(order[begins[end] : end])
        end = begins[end]
    return cut[::-1]


def pad(rows: Sequence[np.ndarray], device: str) -> Tensor:
    """Rows of ids as one tensor [row, token], padded on the right with id 0."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded).to(device)


def padding(lengths: np.ndarray, device: str) -> Tensor | None:
    """Flat positions of the padding in a batch of rows of these lengths; None where there is none."""
    width = lengths.max()
    flat = np.flatnonzero(np.arange(width)[None] >= lengths[:, None])
    return torch.from_numpy(flat).to(device) if len(flat) else None


def in_cache(m: Tensor) -> list[slice]:
    """Cuts the sentences of a batch [sentence, ...] into parts that a core's cache holds from one operation to the next.

    On a GPU they are one part.
    """
    if m.device.type != "cpu":
        return [slice(None)]
    size = max(1, CACHE // max(1, m[:1].numel() * m.element_size()))
    return [slice(start, start + size) for start in range(0, len(m), size)]
