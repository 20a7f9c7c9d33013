"""Quantities at the last token of rows of tokens."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import blocks
from ffkv.base.batching import batches, pad
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.tap import tap

ROWS_PER_SORT = 4096  # rows that are sorted by length together


def for_each_last_token(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    quantities: str,
    rows: Sequence[np.ndarray],
    batch_tokens: int,
    on_tensor: Callable[[np.ndarray, Layer, str, Tensor], None],
) -> None:
    """Passes the requested quantities at each row's last token to `on_tensor`.

    A row that is a prefix of a longer row is read from the longer row's forward pass. `quantities`: some of "xmsyoe", see
    `ffkv.model.tap.tap`. `rows`: token ids, BOS among them, each at least one token long. `batch_tokens`: the most tokens
    per batch, padding included. `on_tensor` is called with the numbers of some rows [row], the layer, the quantity and its
    values [row, d or d_m].
    """
    lengths = np.array([len(row) for row in rows], np.int64)

    def at_ends(numbers: np.ndarray, lines: np.ndarray, layer: Layer, quantity: str, tensor: Tensor) -> None:
        line, end = (torch.from_numpy(index).to(tensor.device) for index in (lines, lengths[numbers] - 1))
        on_tensor(numbers, layer, quantity, tensor[line, end])

    longest, run_of = rows_to_run(rows)
    readers = np.argsort(run_of, kind="stable")  # rows, those read from one forward pass side by side
    bounds = np.searchsorted(run_of[readers], np.arange(len(longest) + 1))
    with tap(loaded.model, layers, quantities) as run:
        for block in blocks(len(longest), ROWS_PER_SORT):
            for batch in batches(lengths[longest[block.start : block.stop]], batch_tokens):
                runs = batch + block.start
                numbers = np.concatenate([readers[bounds[number] : bounds[number + 1]] for number in runs])
                lines = np.repeat(np.arange(len(runs)), bounds[runs + 1] - bounds[runs])
                run(pad([rows[number] for number in longest[runs]], loaded.device), partial(at_ends, numbers, lines))


def rows_to_run(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that are not a prefix of another row [run]; and for each row, the run that it is read from [row].

    A causal model computes the same states for a prefix whatever follows it, so prefixes of other rows need none.
    """
    written = [np.asarray(row, np.int32).tobytes() for row in rows]
    order = sorted(range(len(rows)), key=written.__getitem__)
    longest: list[int] = []
    run_of = np.zeros(len(rows), np.int64)
    # In this order a row is followed directly by the rows that it is a prefix of.
    for place in range(len(order) - 1, -1, -1):
        row = order[place]
        if place + 1 == len(order) or not written[order[place + 1]].startswith(written[row]):
            longest.append(row)
        run_of[row] = len(longest) - 1
    return np.array(longest, np.int64), run_of


def last_coefficients(
    model: LoadedModel, layer: int, rows: Sequence[np.ndarray], memories: np.ndarray, batch_tokens: int
) -> np.ndarray:
    """Returns the coefficient of one memory at the last token of each row, float32 [row].

    Each forward pass ends after that layer. `memories`: number of the memory in its layer, for each row [row]. Rows and
    batches are as for `for_each_last_token`.
    """
    coefficients = np.zeros(len(rows), np.float32)
    memories = np.asarray(memories)

    def on_tensor(numbers: np.ndarray, at: Layer, quantity: str, m: Tensor) -> None:
        wanted = torch.from_numpy(memories[numbers].astype(np.int64)).to(m.device)
        coefficients[numbers] = m.gather(1, wanted[:, None])[:, 0].float().cpu().numpy()

    for_each_last_token(model, [model.anatomy.layers[layer]], "m", rows, batch_tokens, on_tensor)
    return coefficients
