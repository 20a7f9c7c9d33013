"""Quantities at the last token of rows of tokens."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import blocks
from ffkv.base.batching import batches, tight_batches, to_device, to_host
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.identities import TOLERANCE
from ffkv.model.tap.hooks import attention_mask, relative_error, tried
from ffkv.model.tap.tap import tap

ROWS_PER_SORT = 4096  # rows that are sorted by length together
ROOM = 1.5  # tokens of all rows per token that is read, at least: prefixes and shared beginnings are read once
LONGEST_LINE = 1024  # tokens, or two rows: the mask grows with the square of a line
WIDTH = 256  # tokens of a line on a GPU, where batches are large and padding costs more than attention to so few tokens
LEAST_SHARED = 4  # tokens that a row must share with another one to stand behind it, BOS among them


class Lines(NamedTuple):
    """Rows of tokens on lines, on which what several rows begin with lies once."""

    # Of each token, line by line: its id, its run, its position, and between which places of the line lies the beginning that its
    # run has on another one. Behind all lines is a token of padding [5, token + 1].
    tokens: np.ndarray
    starts: np.ndarray  # where each line begins among the tokens [line]
    sizes: np.ndarray  # tokens of each line [line]
    runs: np.ndarray  # runs on each line [line]
    line: np.ndarray  # on which each row ends [row]
    end: np.ndarray  # where it ends among the tokens [row]


class Pass(NamedTuple):
    """Rows that the model reads together."""

    numbers: np.ndarray  # of the rows, ascending [row]
    ends: np.ndarray  # sentence of the batch, and token of this, at which each row ends [2, row]
    ids: Tensor  # token ids, padded with 0 [sentence, token]
    arguments: dict[str, Tensor]  # mask and positions, if a line has several runs


def passes(
    loaded: LoadedModel, rows: Sequence[np.ndarray], batch_tokens: int, branching: bool = False
) -> Iterator[Pass]:
    """Yields the forward passes that read the last token of each row. Nothing waits for a GPU.

    A row that is a prefix of a longer row is read from the longer row's pass. `rows`, `batch_tokens` and `branching` are as
    for `for_each_last_token`.
    """
    if not len(rows):
        return
    most = min(batch_tokens, max(LONGEST_LINE, 2 * max(map(len, rows)))) if branching else 0
    laid = _lay(rows, most, branching and loaded.device != "cpu")
    cut = partial(tight_batches, device=loaded.device) if branching else batches
    place = np.zeros(len(laid.sizes), np.int64)  # of each line in its batch
    for block in blocks(len(laid.sizes), ROWS_PER_SORT):
        for batch in cut(laid.sizes[block.start : block.stop], batch_tokens):
            lines = batch + block.start
            place[lines] = np.arange(len(lines))
            sizes = laid.sizes[lines][:, None]
            column = np.arange(sizes.max())
            # -1: padding, the last one of all.
            tokens = np.where(column < sizes, column + laid.starts[lines][:, None], -1)
            several = bool((laid.runs[lines] > 1).any())
            ids, *others = to_device(laid.tokens[: 5 if several else 1].take(tokens, axis=1), loaded.device)
            numbers = np.flatnonzero(np.isin(laid.line, lines))
            line = laid.line[numbers]
            ends = np.stack([place[line], laid.end[numbers] - laid.starts[line]])
            yield Pass(numbers, ends, ids, _see_beginnings(loaded, *others) if several else {})


def _lay(rows: Sequence[np.ndarray], most: int, dense: bool) -> Lines:
    """Lays rows on lines. `most`: see `lines_of`; 0: one line per run. `dense`: runs that do not begin alike share lines, too."""
    lengths = np.array([len(row) for row in rows], np.int64)
    longest, run_of = rows_to_run(rows)
    group, shared = np.arange(len(longest)), np.zeros(len(longest), np.int64)
    if most:
        group, shared = lines_of([rows[number] for number in longest], most)
    own = lengths[longest] - shared  # tokens of each run that are its own
    line = group
    if dense:
        line = side_by_side(np.bincount(group, own).astype(np.int64), min(most, WIDTH))[group]
        order = np.argsort(line, kind="stable")  # runs of a line are neighbours
        longest, group, shared, line, own = (each[order] for each in (longest, group, shared, line, own))
        run_of = np.argsort(order)[run_of]
    before = np.append(0, np.cumsum(own))  # tokens on all lines before each run
    first = np.append(np.flatnonzero(np.diff(line, prepend=-1)), len(line))  # run of each line
    starts = before[first[:-1]]
    _, trunk, of_run = np.unique(group, return_index=True, return_inverse=True)
    begin = before[trunk[of_run]]  # of the first run of each one's group
    shift = before[:-1] - shared  # from a position of a run to its place among the tokens
    run = np.repeat(np.arange(len(own)), own)
    ids = np.concatenate([rows[number][n:] for number, n in zip(longest.tolist(), shared.tolist(), strict=True)])
    begin_on_line = begin - starts[line]
    seen = np.stack([begin_on_line, begin_on_line + shared])[:, run]
    tokens = np.stack([ids, run, np.arange(len(run)) - shift[run], *seen]).astype(np.int64)
    return Lines(
        np.append(tokens, [[0], [-1], [0], [0], [0]], axis=1),
        starts,
        np.diff(before[first]),
        np.diff(first),
        line[run_of],
        np.where(lengths > shared[run_of], shift[run_of], begin[run_of]) + lengths - 1,
    )


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

    `quantities`: some of "xmsyoe", see `ffkv.model.tap.tap`. `rows`: token ids, BOS among them, each at least one token long.
    `batch_tokens`: the most tokens per batch, padding included. `on_tensor` is called with the numbers of some rows [row], the
    layer, the quantity and its values [row, d or d_m], and `on_batch` after each batch. `branching`: whether the model reads
    what rows begin with once, see `can_branch`.
    """

    def at_ends(numbers: np.ndarray, ends: Callable, layer: Layer, quantity: str, tensor: Tensor) -> None:
        line, end = ends(str(tensor.device))
        on_tensor(numbers, layer, quantity, tensor[line, end])

    with tap(loaded.model, layers, quantities) as run:
        for each in passes(loaded, rows, batch_tokens, branching):
            ends = cache(partial(to_device, each.ends))
            run(each.ids, partial(at_ends, each.numbers, ends), **each.arguments)
            on_batch()


def side_by_side(sizes: np.ndarray, width: int) -> np.ndarray:
    """Puts parts of some tokens on lines of `width` tokens, the largest first, each where least room remains.

    A larger part has a line of its own. Returns the line of each part.
    """
    line, rooms, lines = np.zeros(len(sizes), np.int64), list[tuple[int, int]](), 0
    for number in np.argsort(-sizes, kind="stable").tolist():
        at = bisect_left(rooms, (sizes[number], 0))
        room, line[number] = rooms.pop(at) if at < len(rooms) else (width, lines)
        lines = max(lines, line[number] + 1)
        insort(rooms, (room - sizes[number], int(line[number])))
    return line


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


def _see_beginnings(
    loaded: LoadedModel, run: Tensor, positions: Tensor, begin: Tensor, end: Tensor
) -> dict[str, Tensor]:
    """Returns mask and positions with which a run sees nothing on its line but its beginning, on another run, and itself.

    `run`: number of each token's run, -1 for padding. `begin`, `end`: between which places its beginning lies. All are
    [line, token].
    """
    place = torch.arange(run.shape[1], device=run.device)
    own = (run[:, :, None] == run[:, None]) & (place <= place[:, None])
    seen = own | (place >= begin[:, :, None]) & (place < end[:, :, None])
    dtype = next(loaded.model.parameters()).dtype
    return {"attention_mask": attention_mask(seen, dtype), "position_ids": positions}


def can_branch(loaded: LoadedModel, row: np.ndarray) -> bool:
    """Tells whether the model gives the same where it reads once what two rows begin with.

    It is tried on a row and on the same row without a token in the middle: o of the last layer. A model whose window is
    shorter than the row, or that mixes tokens in other ways than by attention, gives something else; so does rounding in
    low precision.
    """
    row = np.resize(row, max(len(row), 2 * LEAST_SHARED))
    rows, found = [row, np.delete(row, len(row) // 2)], list[Tensor]()

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, o: Tensor) -> None:
        found.append(o.float())  # of both rows: twice as many tokens are room for them

    for way in (False, True):
        last = loaded.anatomy.layers[-1:]
        if tried(for_each_last_token, loaded, last, "o", rows, 2 * len(row), on_tensor, way):
            return False  # the model's own code takes no mask or no positions
    plain, branched = map(torch.from_numpy, to_host(found))
    return relative_error(branched, plain) < TOLERANCE["float32"]


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
    loaded: LoadedModel,
    rows: Sequence[np.ndarray],
    memories: np.ndarray,
    batch_tokens: int,
    branching: bool = False,
    on_rows: Callable[[int], object] = lambda count: None,
) -> np.ndarray:
    """Returns the coefficient of one memory at the last token of each row, float32 [row].

    Layers share their passes if a pass has room for them. It ends after the last of them. A GPU is waited for once, at the end.
    `memories`: number of the memory among those of all layers, for each row. Rows, batches and `branching` are as for
    `for_each_last_token`. `on_rows` is called after each pass, with its number of rows.
    """
    offset = np.asarray(loaded.anatomy.layer_offset)
    layer_of = np.searchsorted(offset, memories, "right") - 1
    found = list[tuple[np.ndarray, Tensor]]()

    def at_ends(bounds: np.ndarray, where: Callable, parts: list[Tensor], at: Layer, quantity: str, m: Tensor) -> None:
        of_layer = slice(bounds[at.index], bounds[at.index + 1])
        parts.append(m[tuple(where(str(m.device))[:, of_layer])].to(loaded.device))

    for chosen in _layers_together(layer_of, rows, ROOM * batch_tokens):
        read = [layer for layer in loaded.anatomy.layers if layer.index in chosen]
        band, parts = np.flatnonzero(np.isin(layer_of, chosen)), list[Tensor]()
        with tap(loaded.model, read, "m") as run:
            for each in passes(loaded, [rows[number] for number in band.tolist()], batch_tokens, branching):
                order = np.argsort(layer_of[band[each.numbers]], kind="stable")
                numbers = band[each.numbers][order]
                bounds = np.searchsorted(layer_of[numbers], np.arange(len(offset)))
                memory = memories[numbers] - offset[layer_of[numbers]]
                where = cache(partial(to_device, np.stack([*each.ends[:, order], memory])))
                run(each.ids, partial(at_ends, bounds, where, parts), **each.arguments)
                found.append((numbers, torch.cat(parts).float()))
                parts.clear()
                on_rows(len(numbers))
    coefficients = np.zeros(len(rows), np.float32)
    for (numbers, _), values in zip(found, to_host([values for _, values in found]), strict=True):
        coefficients[numbers] = values
    return coefficients


def _layers_together(layer_of: np.ndarray, rows: Sequence[np.ndarray], most: float) -> list[list[int]]:
    """Puts layers that follow each other together, as long as their rows have at most `most` tokens. `layer_of`: of each row."""
    groups, room = list[list[int]](), 0.0
    for layer, tokens in enumerate(np.bincount(layer_of, [len(row) for row in rows]).tolist()):
        if tokens > room:
            groups, room = [*groups, []], most
        if tokens:
            groups[-1].append(layer)
            room -= tokens
    return groups
