"""How sentences are cut into batches: fixed blocks, sorted by length inside, right-padded, without a mask.

A causal model never lets a token see what stands right of it, so padding there needs no mask. Blocks are fixed, whatever
the number of shards, because the last digits of a forward pass depend on the shape of its batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ffkv.parts import Part

CACHE = 2**20  # bytes that one core keeps at hand


def blocks(total: int, size: int, shard: int = 0, shards: int = 1) -> list[range]:
    """The blocks of `size` sentences that a shard works on.

    Args:
        total: number of sentences; the last block may be smaller.
        shard, shards: this process's part of all blocks, contiguous. A shard may have none.
    """
    count = -(-total // size)
    return [range(block * size, min((block + 1) * size, total)) for block in Part(shard, shards).of(count)]


def batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Cuts a block into batches of rows of similar length.

    Args:
        lengths: tokens of each row of the block [row].
        batch_tokens: most tokens a batch may hold, padding included. A longer row is a batch of its own.
    Returns:
        The rows of each batch, shortest first; rows of one length stay in order.
    """
    cut, batch = [], []
    for row in np.argsort(lengths, kind="stable"):
        if batch and (len(batch) + 1) * lengths[row] > batch_tokens:
            cut.append(np.asarray(batch))
            batch = []
        batch.append(row)
    return [*cut, np.asarray(batch)] if batch else cut


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
