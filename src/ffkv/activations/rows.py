"""Single rows of tokens, read at their last position."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import batches, blocks, pad
from ffkv.model.anatomy import Layer
from ffkv.model.load import LoadedModel
from ffkv.model.tap import tap

TOGETHER = 4096  # rows that are sorted by length together


def at_last_position(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    quantities: str,
    rows: Sequence[np.ndarray],
    batch_tokens: int,
    take: Callable[[np.ndarray, Layer, str, Tensor], None],
) -> None:
    """Runs rows and hands on what stands at the last token of each.

    Args:
        quantities: some of "xmsyoe", see `ffkv.model.tap`.
        rows: token ids, BOS among them, each at least one token long.
        take: called with the numbers of the rows [row], the layer, the quantity and its values [row, d or d_m].
    """
    batch: dict[str, np.ndarray] = {}

    def last(layer: Layer, quantity: str, tensor: Tensor) -> None:
        chosen = tensor[
            torch.arange(len(tensor), device=tensor.device), torch.from_numpy(batch["last"]).to(tensor.device)
        ]
        take(batch["rows"], layer, quantity, chosen)

    lengths = np.array([len(row) for row in rows], np.int64)
    with tap(loaded.model, layers, quantities, last) as run:
        for numbers in batches(lengths, batch_tokens):
            batch.update(rows=numbers, last=lengths[numbers] - 1)
            run(pad([rows[number] for number in numbers], loaded.device))


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

    for block in blocks(len(rows), TOGETHER):
        part = slice(block.start, block.stop)

        def take_part(numbers: np.ndarray, at: Layer, quantity: str, m: Tensor, start: int = block.start) -> None:
            take(numbers + start, at, quantity, m)

        at_last_position(model, [model.anatomy.layers[layer]], "m", rows[part], batch_tokens, take_part)
    return found
