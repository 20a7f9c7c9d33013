"""The map of the run's page: a row per layer with its memories in cells, from pale to dark, that lead to memories."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ffkv.apps.explorer.drawing import STEPS
from ffkv.apps.explorer.pages import with_query
from ffkv.apps.explorer.shelf import Held, NoSuch
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import RunFiles
from ffkv.run.results.text import MINUS, number, percent, signed

CELLS = 1400  # of all rows, so that the map takes some 300 kB of the page
FINEST, COARSEST = 100, 10  # cells of a row
ORDERS = {"value": "from low to high", "number": "by number"}


class Quantity(NamedTuple):
    """A number of each memory that has one."""

    title: str
    column: str  # its column in `Run.memories`
    about: str  # what it is, and which memories have it
    write: Callable[[float], str]
    has: Mapping[str, int]  # what a search asks for, to find only memories that have it


QUANTITIES = {
    "firing": Quantity("firing rate", "firing_rate", "The share of prefixes with a positive coefficient.", percent, {}),
    "norm": Quantity("norm", "norm", "The length of the value.", number, {}),
    "agreement": Quantity(
        "agreement", "agrees",
        "100 % if the top token of the value follows the strongest trigger example, else 0 %. Dead keys have no number.",
        percent, {"min_trigger_examples": 1},
    ),
    "effect": Quantity(
        "effect", "effect",
        "What the removal of a memory does to the log-probabilities of its top tokens, in nats, on its trigger examples."
        " Only memories that the run removed have a number.", signed, {},
    ),
}  # fmt: skip


class Cell(NamedTuple):
    """Neighbours in a row."""

    span: int  # how many columns it takes
    first: int  # lowest number of its memories
    last: int  # highest one
    known: int  # how many of its memories have a value
    one: int  # number of a memory that has a value; -1 if none has
    low: Any  # lowest value
    mean: float  # NaN if none has a value
    high: Any  # highest value


def cut_by_value(values: np.ndarray, columns: int) -> list[Cell]:
    """Cuts the memories of a layer that have a value, from the lowest to the highest, into cells of equal size.

    Memories of the same value share a cell, which then takes several columns.

    Args:
        values: NaN for those that have none [memory].
        columns: number of columns that the cells fill.
    """
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    if not len(order):
        return []
    ends = -(-np.arange(1, columns + 1) * len(order) // columns)
    return _cells(order, values[order], *_unique(np.searchsorted(values[order], values[order][ends - 1], "right")))


def cut_by_number(values: np.ndarray, size: int) -> list[Cell]:
    """Cuts the memories of a layer into cells of `size` neighbours. values: NaN for those that have none [memory]."""
    ends = np.minimum(np.arange(size, len(values) + size, size), len(values))
    return _cells(np.arange(len(values)), values, *_unique(ends))


def _unique(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(ends, return_counts=True)


def _cells(memory: np.ndarray, values: np.ndarray, ends: np.ndarray, spans: np.ndarray) -> list[Cell]:
    """memory, values: in the order of the row; ends: of the cells, exclusive; spans: in columns [cell]."""
    starts, known = np.concatenate([[0], ends[:-1]]), ~np.isnan(values)
    counts = np.add.reduceat(known.astype(int), starts)
    sums = np.add.reduceat(np.where(known, values, 0).astype(float), starts)
    mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    first, last = np.minimum.reduceat(memory, starts), np.maximum.reduceat(memory, starts)
    one = np.maximum.reduceat(np.where(known, memory, -1), starts)
    return list(map(Cell, *(each.tolist() for each in (spans, first, last, counts, one)), low, mean.tolist(), high))


class Shades(NamedTuple):
    """The colours of a map: each of them colours about as many cells, and 0 has one of its own."""

    bounds: np.ndarray  # lowest size of each colour [colour]
    both: bool  # whether values have a sign

    def look(self, mean: float) -> str:
        """Returns the class of a cell in the style sheet, by its mean."""
        if math.isnan(mean):
            return "unknown"
        if mean == 0:
            return "zero" if self.both else "q0"
        place = int(np.searchsorted(self.bounds, abs(mean), "right"))
        return f"{('p' if mean > 0 else 'n') if self.both else 'q'}{math.ceil(STEPS * place / len(self.bounds))}"

    @property
    def legend(self) -> list[float]:
        """The mean from which each colour counts, from the lowest to the highest."""
        below = [-bound for bound in self.bounds[::-1].tolist()] if self.both else []
        return [*below, 0.0, *self.bounds.tolist()]


def shades(means: Iterable[float], both: bool) -> Shades:
    """Chooses the colours for the means of cells. both: whether they have a sign."""
    sizes = np.sort([abs(mean) for mean in means if mean and not math.isnan(mean)])
    return Shades(np.unique(sizes[np.arange(STEPS if len(sizes) else 0) * len(sizes) // STEPS]), both)


def values(files: RunFiles, quantity: str) -> np.ndarray:
    """Returns a quantity of all memories, as searches compare it; NaN where there is none [memory in flat arrays]."""
    if quantity == "firing":
        with files.open_triggers() as file:
            return indexes.firing_rate(file)
    if quantity == "effect":
        return indexes.effects(files).reindex(range(files.anatomy.layer_offset[-1])).to_numpy(float)
    table = indexes.values_by_memory(files)
    return (
        table["norm"].to_numpy() if quantity == "norm" else np.where(table["next_token"] >= 0, table["agrees"], np.nan)
    )


def layer_map(held: Held, quantity: str, order: str) -> dict[str, Any]:
    """Returns what the page of a run shows as its map.

    Args:
        quantity: of `QUANTITIES`; "" for the first.
        order: of the memories in a row, of `ORDERS`; "" for the first.
    Raises:
        NoSuch: there is no such quantity or order; says which there are.
    """
    quantity, order = quantity or next(iter(QUANTITIES)), order or next(iter(ORDERS))
    for asked, known in ((quantity, QUANTITIES), (order, ORDERS)):
        if asked not in known:
            raise NoSuch(f"There is no map {asked!r}. There are: {', '.join(known)}.")
    about, largest = QUANTITIES[quantity], max(held.sizes)
    columns = min(FINEST, max(COARSEST, CELLS // len(held.sizes)))
    size = -(-largest // columns)

    def cut() -> list[list[Cell]]:
        layers = np.split(values(held.run.files, quantity), held.run.anatomy.layer_offset[1:-1])
        if order == "number":
            return [cut_by_number(layer, size) for layer in layers]
        return [cut_by_value(layer, columns) for layer in layers]

    cells = held.maps.get((quantity, order), cut)
    colours = shades((cell.mean for row in cells for cell in row), quantity == "effect")
    looks = {colours.look(cell.mean) for row in cells for cell in row}
    return {
        "quantity": quantity, "order": order, "about": about, "quantities": QUANTITIES, "orders": ORDERS,
        "columns": -(-largest // size) if order == "number" else columns, "size": size, "write": about.write,
        "rows": [_row(layer, row, about, order, colours, held.asks) for layer, row in enumerate(cells)],
        "known": sum(cell.known for row in cells for cell in row), "memories": sum(held.sizes),
        "legend": [(look, _short(mean, about)) for mean in colours.legend if (look := colours.look(mean)) in looks],
    }  # fmt: skip


def _row(
    layer: int, cells: Sequence[Cell], about: Quantity, order: str, colours: Shades, asks: dict[str, str]
) -> dict[str, Any]:
    return {
        "cells": [(colours.look(cell.mean), cell.span, *_link(layer, cell, about, order, asks)) for cell in cells],
        "known": sum(cell.known for cell in cells),
        "columns": sum(cell.span for cell in cells),
        "address": with_query("memories", {**asks, "layer": layer, "sort": about.column}),
    }


def _short(value: float, about: Quantity) -> str:
    return about.write(value) if about.write is percent else f"{value:.3g}".replace("-", MINUS)


def _link(layer: int, cell: Cell, about: Quantity, order: str, asks: dict[str, str]) -> tuple[str, str]:
    """Returns the address of a cell's memories, from the page of the run, and what the cell says; empty if unknown.

    `asks`: what the address asks in any case.
    """
    if not cell.known:
        return "", ""
    low, mean, high = map(about.write, (cell.low, cell.mean, cell.high))
    if cell.known == 1:
        return with_query(f"m/{layer}/{cell.one}", asks), f"{memory_name(layer, cell.one)}: {low}"
    column, ends = (about.column, (cell.low, cell.high)) if order == "value" else ("memory", (cell.first, cell.last))
    asked = {
        **asks,
        "layer": layer,
        "sort": about.column,
        f"min_{column}": ends[0],
        f"max_{column}": ends[1],
        **about.has,
    }
    said = f"{number(cell.known)} memories: {low}" + (f" to {high}, mean {mean}" if cell.low != cell.high else "")
    return with_query("memories", asked), said
