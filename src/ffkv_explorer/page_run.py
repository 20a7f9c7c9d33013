"""The runs, their reports and comparisons, and one run layer by layer, with its map.

The map has a row per layer with its memories in cells, from pale to dark, that lead to memories.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from starlette.responses import HTMLResponse, Response

from ffkv.base.lookup import is_file, read_json
from ffkv.run.report import facts
from ffkv.run.report.page_tables import FACTS, with_links
from ffkv.run.report.registry import FIGURES
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import RunFiles
from ffkv.run.results.text import MINUS, number, percent, signed
from ffkv_explorer.pages import LIVE, STEPS, drawn, judging, render, static, with_query, write
from ffkv_explorer.shelf import Held, NoSuch, Shelf, import_page_code

DRAWING = threading.Lock()  # matplotlib has one look at a time


class Column(NamedTuple):
    """A column of the table of layers."""

    name: str  # in the frame
    heading: str  # on the page
    form: str  # "percent" or "number"
    report: str  # the place in the report that draws it
    source: tuple[str, str] | None = None  # its table and its name there; None for a column of `Run.layers`


COLUMNS = (
    Column("memories", "memories", "number", ""),
    Column("agreement", "agreement", "percent", "figure_4"),
    Column("firing", "firing rate, median", "percent", "keys", ("activity", "firing_median")),
    Column("dead", "dead keys", "number", "keys"),
    Column(
        "effective", "effective number, median", "number", "figure_7",
        ("figure_7_effective_number", "effective_median"),
    ),
    Column("residual_agreement", "residual agreement", "percent", "figure_9", ("figure_9_residual_agreement", "share")),
)  # fmt: skip


def runs(shelf: Shelf) -> HTMLResponse:
    """Returns the page of all open runs."""
    return render("runs.html", runs=list(shelf.runs.values()), comparisons=[*find_comparisons(shelf)])


def find_comparisons(shelf: Shelf) -> dict[str, tuple[Path, str, str]]:
    """Finds the comparisons whose first and last run are open, as far as the workflow has written their reports.

    Name of a comparison: its report, and the names of the first and of the last run in the explorer.
    """
    found: dict[str, tuple[Path, str, str]] = {}
    opened = {held.run.folder.resolve(): name for name, held in shelf.runs.items()}
    for results in sorted({folder.parent for folder in opened}):
        # Not `find`: a comparison that somebody else may not read blocks no page.
        for file in sorted(results.glob(f"comparisons/*/tables/{FACTS}")):
            name, runs = file.parents[1].name, []
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # `ffkv comparison report` tells it
                runs = [opened.get(results / run) for run in read_json(file)["settings"]["runs"]]
            page = results.parent / "reports/comparisons" / name / "index.html"
            if runs and runs[0] is not None and runs[-1] is not None and is_file(page):
                found.setdefault(name, (page, runs[0], runs[-1]))
    return found


def comparison(shelf: Shelf, name: str) -> Response:
    """Sends the report of a comparison. Memories lead to their pages in the first and the last run.

    Raises NoSuch if there is no such comparison, or its runs are not open.
    """
    found = find_comparisons(shelf)
    if name not in found:
        raise NoSuch(
            "No comparison of this name has a report that is written, and a first and a last run that are open."
        )
    page, first, last = found[name]
    return drawn(with_links(_read_report(page, page.parent).decode(errors="replace"), first, last))


def report_file(held: Held) -> Path:
    """Returns the path where the workflow writes the report of a run."""
    folder = held.run.folder.resolve()
    return folder.parent.parent / "reports" / folder.name / "index.html"


def report(held: Held) -> Response:
    """Sends the report of a run. Raises NoSuch if it is not written."""
    file = report_file(held)
    if not is_file(file):
        raise NoSuch(f"{file} does not exist. The workflow writes it: `snakemake`.")
    return drawn(_read_report(file, file.parent))


def figure(held: Held, name: str) -> Response:
    """Sends a drawing that lies beside the report, to which the report links. Raises NoSuch if there is none."""
    folder = report_file(held).parent
    file = folder / "figures" / name
    if name.removesuffix(".svg") not in FIGURES or not is_file(file):
        raise NoSuch("There is no such figure.")
    return drawn(_read_report(file, folder), "image/svg+xml")


def _read_report(file: Path, folder: Path) -> bytes:
    """Reads a file of the folder of a report. Raises NoSuch if it is a link that leads out: reports may be of strangers."""
    if not file.resolve().is_relative_to(folder.resolve()):
        raise NoSuch(f"{file} is a link to {file.resolve()}, which is not in the folder of the report. It is not read.")
    return file.read_bytes()


def run(held: Held, query: Mapping[str, str]) -> HTMLResponse:
    """Returns the page of one run, which is kept. Raises NoSuch if the address asks for a map that there is not."""
    asked, now = (query.get("map", ""), query.get("order", "")), changing(held)

    def make() -> str:
        return write("run.html", held=held, map=layer_map(held, *asked), **values(held))

    return HTMLResponse(held.maps.get((*asked, *now.values(), LIVE.at("")), make))


def claims(held: Held) -> Response:
    """Returns the small drawings of the report's first screen, in the colours of the explorer.

    Raises UserError if the run lacks a table, or the folder of its control.
    """
    import_page_code()
    from ffkv.run.report import claims, overview, section, svg

    def draw() -> str:
        with DRAWING:
            other = section.open_control(held.run)
            element = overview.overview_svg(claims.judge_claims(held.run, other), held.run, other)
        colours, _, _ = static("explorer.css").partition("* {")
        style = '<style type="text/css">'
        return svg.in_colours_of_page(element).replace(style, style + colours, 1)

    image = held.maps.get("claims", draw)
    return drawn(image, "image/svg+xml", **{"Cache-Control": "private, max-age=3600"})


def values(held: Held) -> dict[str, Any]:
    """Returns what the template of a run shows."""
    table, run = layers(held), held.run
    triggers = "trigger examples", f"{run.settings.triggers.per_key} per key"
    terms = [*facts.model(run), *facts.corpus(run), *facts.earlier(run), triggers]
    columns = [column for column in COLUMNS if column.name in table]
    return {"table": table, "columns": columns, "terms": terms, **changing(held)}


def changing(held: Held) -> dict[str, Any]:
    """Returns what of the page of a run may be another thing while the run is open: whether it has a report, and sheets."""
    return {
        "report": LIVE.run(held, "report", reading="") if is_file(report_file(held)) else "",
        "sheets": bool((sheets := judging()) and sheets.sheet_names(held.run.files.annotations)),
    }


def layers(held: Held) -> pd.DataFrame:
    """Returns one row per layer, with the columns of `COLUMNS` that the run has, and kind."""
    found = held.run.layers[["layer", "kind", "memories", "agreement", "dead"]]
    for column in COLUMNS:
        table, name = column.source or ("", "")
        if table in held.run.tables and name in (values := held.run.table(table).set_index("layer")):
            found = found.assign(**{column.name: found["layer"].map(values[name])})
    return found


# The map

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
    "agreement": Quantity(
        "agreement", "agrees",
        "100 % if the top token of the value follows the strongest trigger example, else 0 %. Dead keys have no number.",
        percent, {"min_trigger_examples": 1},
    ),
    "firing": Quantity("firing rate", "firing_rate", "The share of prefixes with a positive coefficient.", percent, {}),
    "norm": Quantity("norm", "norm", "The length of the value.", number, {}),
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

    Memories of the same value share a cell, which then takes several of the `columns`. values: as of `cut_by_number`.
    """
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    if not len(order):
        return []
    ends = -(-np.arange(1, columns + 1) * len(order) // columns)
    return _cells(order, values[order], np.searchsorted(values[order], values[order][ends - 1], "right"))


def cut_by_number(values: np.ndarray, size: int) -> list[Cell]:
    """Cuts the memories of a layer into cells of `size` neighbours. values: NaN for those that have none [memory]."""
    ends = np.minimum(np.arange(size, len(values) + size, size), len(values))
    return _cells(np.arange(len(values)), values, ends)


def _cells(memory: np.ndarray, values: np.ndarray, columns: np.ndarray) -> list[Cell]:
    """memory, values: in the order of the row; columns: where each ends, exclusive. Those that end together are a cell."""
    ends, spans = np.unique(columns, return_counts=True)
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


def quantity_of(files: RunFiles, quantity: str) -> np.ndarray:
    """Returns a quantity of all memories, as searches compare it; NaN where there is none [memory in flat arrays]."""
    if quantity == "firing":
        with files.open_triggers() as file:
            return indexes.firing_rate(file)
    if quantity == "effect":
        return indexes.effects(files).reindex(range(files.anatomy.layer_offset[-1])).to_numpy(float)
    table = indexes.values_by_memory(files)
    if quantity == "norm":
        return table["norm"].to_numpy()
    return np.where(table["next_token"] >= 0, table["agrees"], np.nan)


def layer_map(held: Held, quantity: str, order: str) -> dict[str, Any]:
    """Returns what the page of a run shows as its map. Raises NoSuch, which says which quantities or orders there are.

    `quantity`: of `QUANTITIES`; "" for the first. `order`: of the memories in a row, of `ORDERS`; "" for the one that
    tells most of the quantity.
    """
    quantity, asked_order = quantity or next(iter(QUANTITIES)), order
    # What every memory has rises in each row by value: only by number do the rows differ.
    order = order or ("number" if quantity in ("firing", "norm") else "value")
    for name, asked, known in (("map", quantity, QUANTITIES), ("order", order, ORDERS)):
        if asked not in known:
            raise NoSuch(f"There is no {name} {asked!r}. Choose one of: {', '.join(known)}.")
    about, largest = QUANTITIES[quantity], max(held.sizes)
    columns = min(FINEST, max(COARSEST, CELLS // len(held.sizes)))
    size = -(-largest // columns)

    layers = np.split(quantity_of(held.run.files, quantity), held.run.anatomy.layer_offset[1:-1])
    by_number = order == "number"
    cells = [cut_by_number(layer, size) if by_number else cut_by_value(layer, columns) for layer in layers]
    colours = shades((cell.mean for row in cells for cell in row), quantity == "effect")
    looks = {colours.look(cell.mean) for row in cells for cell in row}
    short = percent if about.write is percent else lambda mean: f"{mean:.3g}".replace("-", MINUS)
    rows = [
        {
            "cells": [
                (colours.look(cell.mean), cell.span, *_link(layer, cell, about, order, held.asks)) for cell in row
            ],
            "known": sum(cell.known for cell in row),
            "columns": sum(cell.span for cell in row),
            "address": with_query("memories", {**held.asks, "layer": layer, "sort": about.column}),
        }
        for layer, row in enumerate(cells)
    ]
    return {
        "quantity": quantity, "order": order, "about": about, "quantities": QUANTITIES, "orders": ORDERS,
        "asked_order": asked_order,
        "columns": -(-largest // size) if by_number else columns, "size": size, "write": about.write,
        "rows": rows,
        "known": sum(cell.known for row in cells for cell in row), "memories": sum(held.sizes),
        "legend": [(look, short(mean)) for mean in colours.legend if (look := colours.look(mean)) in looks],
    }  # fmt: skip


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
    limits = {f"min_{column}": ends[0], f"max_{column}": ends[1], **about.has}
    asked = {**asks, "layer": layer, "sort": about.column, **limits}
    said = f"{number(cell.known)} memories: {low}" + (f" to {high}, mean {mean}" if cell.low != cell.high else "")
    return with_query("memories", asked), said
