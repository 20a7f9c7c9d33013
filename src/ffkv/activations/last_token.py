"""Rows of tokens, each read at its last position."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import batches, blocks, pad
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.tap import tap

TOGETHER = 4096  # rows that are sorted by length together


def at_last_position(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    quantities: str,
    rows: Sequence[np.ndarray],
    batch_tokens: int,
    take: Callable[[np.ndarray, Layer, str, Tensor], None],
) -> None:
    """Hands on what stands at the last token of each row. Rows that another one begins with are read in that one's run.

    Args:
        quantities: some of "xmsyoe", see `ffkv.model.tap.tap`.
        rows: token ids, BOS among them, each at least one token long.
        take: called with the numbers of the rows [row], the layer, the quantity and its values [row, d or d_m].
    """
    batch: dict[str, np.ndarray] = {}

    def last(layer: Layer, quantity: str, tensor: Tensor) -> None:
        lines, ends = (torch.from_numpy(batch[name]).to(tensor.device) for name in ("lines", "ends"))
        take(batch["rows"], layer, quantity, tensor[lines, ends])

    lengths = np.array([len(row) for row in rows], np.int64)
    longest, within = covers(rows)
    readers = np.argsort(within, kind="stable")  # rows, those read within one run side by side
    bounds = np.searchsorted(within[readers], np.arange(len(longest) + 1))
    with tap(loaded.model, layers, quantities, last) as run:
        for block in blocks(len(longest), TOGETHER):
            for numbers in batches(lengths[longest[block.start : block.stop]], batch_tokens):
                runs = numbers + block.start
                found = np.concatenate([readers[bounds[number] : bounds[number + 1]] for number in runs])
                lines = np.repeat(np.arange(len(runs)), bounds[runs + 1] - bounds[runs])
                batch.update(rows=found, lines=lines, ends=lengths[found] - 1)
                run(pad([rows[number] for number in longest[runs]], loaded.device))


def covers(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are enough to run, and within which of them each row is read: a causal model gives the beginning of a row
    what it gives to that beginning alone.

    Returns:
        The rows that are no beginning of another one [run], and for each row the number of its run [row].
    """
    written = [np.asarray(row, np.int32).tobytes() for row in rows]
    order = sorted(range(len(rows)), key=written.__getitem__)
    longest, within = [], np.zeros(len(rows), np.int64)
    # What begins with a row stands right behind it in this order.
    for place in range(len(order) - 1, -1, -1):
        row = order[place]
        if place + 1 == len(order) or not written[order[place + 1]].startswith(written[row]):
            longest.append(row)
        within[row] = len(longest) - 1
    return np.array(longest, np.int64), within


def last_coefficients(
    model: LoadedModel, layer: int, rows: Sequence[np.ndarray], memories: np.ndarray, batch_tokens: int
) -> np.ndarray:
    """The coefficient of one memory at the last token of each row. The pass ends after that layer.

    Args:
        layer: from 0.
        rows: token ids, BOS among them.
        memories: which memory of the layer, by row [row].
    Returns:
        Coefficients [row], float32.
    """
    found = np.zeros(len(rows), np.float32)
    memories = np.asarray(memories)

    def take(numbers: np.ndarray, at: Layer, quantity: str, m: Tensor) -> None:
        wanted = torch.from_numpy(memories[numbers].astype(np.int64)).to(m.device)
        found[numbers] = m.gather(1, wanted[:, None])[:, 0].float().cpu().numpy()

    at_last_position(model, [model.anatomy.layers[layer]], "m", rows, batch_tokens, take)
    return found
