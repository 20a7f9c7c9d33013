"""The runs, and one run layer by layer."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from starlette.responses import HTMLResponse

from ffkv.apps.annotation.sheets import annotations_folder, sheet_names
from ffkv.apps.explorer.page_comparison import find_comparisons
from ffkv.apps.explorer.pages import LIVE, Live, render, write
from ffkv.apps.explorer.shelf import Held, Shelf
from ffkv.run.results.text import number

# Name of a column on the page: its table, and its name there.
LAYER_COLUMNS = {
    "firing": ("activity", "firing_median"),
    "effective": ("figure_7_effective_number", "effective_median"),
    "residual_agreement": ("figure_9_residual_agreement", "share"),
}


@dataclass(frozen=True)
class Column:
    """A column of the table of layers.

    Attributes:
        name: in the frame.
        heading: on the page.
        form: "percent" or "number".
        report: the place in the report that draws it.
    """

    name: str
    heading: str
    form: str
    report: str


COLUMNS = (
    Column("memories", "memories", "number", ""),
    Column("agreement", "agreement", "percent", "figure_4"),
    Column("firing", "firing rate, median", "percent", "keys"),
    Column("dead", "dead keys", "number", "keys"),
    Column("effective", "effective number, median", "number", "figure_7"),
    Column("residual_agreement", "residual agreement", "percent", "figure_9"),
)


def runs(shelf: Shelf) -> HTMLResponse:
    """Returns the page of all open runs."""
    return render("runs.html", runs=list(shelf.runs.values()), comparisons=[*find_comparisons(shelf)])


def layers(held: Held) -> pd.DataFrame:
    """Returns one row per layer, with the columns of `COLUMNS` that the run has, and kind."""
    found = held.run.layers[["layer", "kind", "memories", "agreement", "dead"]]
    for name, (table, column) in LAYER_COLUMNS.items():
        if table in held.run.tables and column in (values := held.run.table(table).set_index("layer")):
            found = found.assign(**{name: found["layer"].map(values[column])})
    return found


def run(held: Held) -> HTMLResponse:
    """Returns the page of one run."""
    return render("run.html", held=held, **_values(held))


def write_run(held: Held, links: Live) -> str:
    """Returns the same page as a file."""
    return write("run.html", held=held, links=links, **_values(held))


def _values(held: Held) -> dict[str, Any]:
    table = layers(held)
    return {
        "table": table,
        "columns": [column for column in COLUMNS if column.name in table],
        "terms": _terms(held),
        "report": LIVE.report(held),
        "sheets": bool(sheet_names(annotations_folder(held.run))),
    }


def _terms(held: Held) -> list[tuple[str, str]]:
    """Describes the run in a few lines. The report says more."""
    run, anatomy = held.run, held.run.anatomy
    train, validation = run.files.corpora["train"], run.files.corpora["validation"]
    kinds = ", ".join(sorted({layer.kind for layer in anatomy.layers}))
    return [
        ("model", anatomy.checkpoint),
        ("architecture", f"{anatomy.architecture}, {number(anatomy.parameters)} parameters"),
        ("feed-forward layers", f"{len(anatomy.layers)}, {kinds}; activation {anatomy.activation}"),
        ("memories", number(anatomy.layer_offset[-1])),
        ("vocabulary", f"{number(anatomy.vocabulary)} tokens"),
        ("corpus", run.settings.corpus.dataset),
        ("train split", f"{number(train['sentences'])} sentences of {number(train['tokens'])} tokens"),
        ("validation split", f"{number(validation['sentences'])} sentences of {number(validation['tokens'])} tokens"),
        ("trigger examples", f"{run.settings.triggers.per_key} per key"),
        ("first token", train["beginning"]),
    ]
