"""Quantities at the last token of rows of tokens."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import blocks
from ffkv.base.batching import batches, pad, tight_batches, to_device
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.identities import TOLERANCE
from ffkv.model.tap.hooks import attention_mask, relative_error, tried
from ffkv.model.tap.tap import tap

ROWS_PER_SORT = 4096  # rows that are sorted by length together
LEAST_SHARED = 4  # tokens that a row must share with another one to stand behind it, BOS among them


def for_each_last_token(
    loaded: LoadedModel,
    layers: Sequence[Layer],
    quantities: str,
    rows: Sequence[np.ndarray],
    batch_tokens: int,
    on_tensor: Callable[[np.ndarray, Layer, str, Tensor], None],
    branching: bool = False,
    on_batch: Callable[[], None] = lambda: None,
) -> None:
    """Passes the requested quantities at each row's last token to `on_tensor`.

    A row that is a prefix of a longer row is read from the longer row's forward pass. `quantities`: some of "xmsyoe", see
    `ffkv.model.tap.tap`. `rows`: token ids, BOS among them, each at least one token long. `batch_tokens`: the most tokens
    per batch, padding included. `on_tensor` is called with the numbers of some rows [row], the layer, the quantity and its
    values [row, d or d_m], and `on_batch` after each batch. `branching`: whether the model reads what rows begin with once,
    see `branches`.
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    longest, run_of = rows_to_run(rows)
    runs = [rows[number] for number in longest]
    line, shared = lines_of(runs, batch_tokens) if branching else (np.arange(len(runs)), np.zeros(len(runs), np.int64))
    first = np.searchsorted(line, np.arange(line.max(initial=-1) + 2))  # run of each line
    own = lengths[longest] - shared  # tokens of each run that are its own
    before = np.cumsum(own) - own
    before -= before[first[line]]  # tokens on the run's line
    line_of, shift = line[run_of], np.where(lengths > shared[run_of], (before - shared)[run_of], 0)

    def at_ends(numbers: np.ndarray, ends: Callable, layer: Layer, quantity: str, tensor: Tensor) -> None:
        row, end = ends(str(tensor.device))
        on_tensor(numbers, layer, quantity, tensor[row, end])

    cut = partial(tight_batches, device=loaded.device) if branching else batches
    readers = np.argsort(line_of, kind="stable")  # rows, those read from one line side by side
    bounds = np.searchsorted(line_of[readers], np.arange(len(first)))
    sizes = np.add.reduceat(own, first[:-1]) if len(own) else own
    with tap(loaded.model, layers, quantities) as run:
        for block in blocks(len(sizes), ROWS_PER_SORT):
            for batch in cut(sizes[block.start : block.stop], batch_tokens):
                lines = batch + block.start
                numbers = np.concatenate([readers[bounds[each] : bounds[each + 1]] for each in lines])
                row = np.repeat(np.arange(len(lines)), bounds[lines + 1] - bounds[lines])
                ends = cache(partial(to_device, np.stack([row, (shift + lengths - 1)[numbers]])))
                parts = [[(runs[n], shared[n]) for n in range(first[each], first[each + 1])] for each in lines]
                ids = pad([np.concatenate([row[begin:] for row, begin in of_line]) for of_line in parts], loaded.device)
                arguments = _see_beginnings(loaded, parts) if shared[np.isin(line, lines)].any() else {}
                run(ids, partial(at_ends, numbers, ends), **arguments)
                on_batch()


def lines_of(runs: Sequence[np.ndarray], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts runs that begin alike on one line of at most `most` tokens; runs in an order in which these are neighbours.

    Returns the line of each run, and how many tokens it shares with the first run of its line [run].
    """
    line, shared = np.zeros(len(runs), np.int64), np.zeros(len(runs), np.int64)
    trunk, tokens, lines = np.zeros(0, np.int64), 0, 0
    for number, row in enumerate(runs):
        both = min(len(trunk), len(row))
        equal = np.append(np.equal(trunk[:both], row[:both]), False)
        begin = int(equal.argmin())
        if begin >= LEAST_SHARED and tokens + len(row) - begin <= most:
            shared[number], tokens = begin, tokens + len(row) - begin
        else:
            trunk, tokens, lines = row, len(row), lines + 1
        line[number] = lines - 1
    return line, shared


def _see_beginnings(loaded: LoadedModel, parts: Sequence[Sequence[tuple[np.ndarray, int]]]) -> dict[str, Tensor]:
    """Returns mask and positions with which a run sees nothing on its line but its beginning, on the first run, and itself.

    `parts`: the runs of each line, and how many tokens each one shares with the first [line][run].
    """

    def padded(values: Callable[[int, np.ndarray, int], np.ndarray], value: int = 0) -> Tensor:
        return pad(
            [np.concatenate([values(n, *part) for n, part in enumerate(line)]) for line in parts], loaded.device, value
        )

    number = padded(lambda n, row, begin: np.full(len(row) - begin, n), -1)
    shared = padded(lambda n, row, begin: np.full(len(row) - begin, begin))
    positions = padded(lambda n, row, begin: np.arange(begin, len(row)))
    place = torch.arange(number.shape[1], device=number.device)
    seen = (number[:, :, None] == number[:, None]) & (place <= place[:, None]) | (place < shared[:, :, None])
    dtype = next(loaded.model.parameters()).dtype
    return {"attention_mask": attention_mask(seen, dtype), "position_ids": positions}


def branches(loaded: LoadedModel, row: np.ndarray) -> bool:
    """Tells whether the model gives the same where it reads once what two rows begin with.

    It is tried on a row and on the same row without a token in the middle: o of the last layer. A model whose window is
    shorter than the row, or that mixes tokens in other ways than by attention, gives something else; and so does rounding in
    low precision.
    """
    row = np.resize(row, max(len(row), 2 * LEAST_SHARED))
    rows, found = [row, np.delete(row, len(row) // 2)], torch.zeros(2, 2, loaded.anatomy.width)
    for way in (False, True):

        def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, o: Tensor, way: bool = way) -> None:
            found[int(way), numbers] = o.float().cpu()

        last = loaded.anatomy.layers[-1:]
        if tried(for_each_last_token, loaded, last, "o", rows, 2 * len(row), on_tensor, way):
            return False  # the model's own code takes no mask or no positions
    return relative_error(found[1], found[0]) < TOLERANCE["float32"]


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
    model: LoadedModel,
    layer: int,
    rows: Sequence[np.ndarray],
    memories: np.ndarray,
    batch_tokens: int,
    branching: bool = False,
) -> np.ndarray:
    """Returns the coefficient of one memory at the last token of each row, float32 [row].

    Each forward pass ends after that layer. `memories`: number of the memory in its layer, for each row [row]. Rows,
    batches and `branching` are as for `for_each_last_token`.
    """
    coefficients = np.zeros(len(rows), np.float32)
    memories = np.asarray(memories)

    def on_tensor(numbers: np.ndarray, at: Layer, quantity: str, m: Tensor) -> None:
        wanted = torch.from_numpy(memories[numbers].astype(np.int64)).to(m.device)
        coefficients[numbers] = m.gather(1, wanted[:, None])[:, 0].float().cpu().numpy()

    for_each_last_token(model, [model.anatomy.layers[layer]], "m", rows, batch_tokens, on_tensor, branching)
    return coefficients
