"""The runs and their comparisons, and one run layer by layer."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from starlette.responses import HTMLResponse

from ffkv.apps.annotation.sheets import annotations_folder, sheet_names
from ffkv.apps.explorer.pages import LIVE, render, report_file
from ffkv.apps.explorer.shelf import Held, Shelf
from ffkv.base.errors import UserError
from ffkv.base.files.bounded import read_json
from ffkv.run.comparison.comparison_file import FACTS
from ffkv.run.comparison.links import with_links
from ffkv.run.results.text import number


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

    Returns:
        Name of a comparison: its report, and the names of the first and of the last run in the explorer.
    """
    found: dict[str, tuple[Path, str, str]] = {}
    opened = {held.run.folder.resolve(): name for name, held in shelf.runs.items()}
    for results in sorted({folder.parent for folder in opened}):
        for facts in sorted(results.glob(f"comparisons/*/tables/{FACTS}")):
            name = facts.parents[1].name
            runs = [opened.get(results / run) for run in _runs_of(facts)]
            page = results.parent / "reports/comparisons" / name / "index.html"
            if runs and runs[0] is not None and runs[-1] is not None and page.is_file():
                found.setdefault(name, (page, runs[0], runs[-1]))
    return found


def _runs_of(facts: Path) -> list[str]:
    """Returns the runs of a comparison; none if its file is damaged, which `ffkv comparison report` tells."""
    try:
        return list(read_json(facts)["settings"]["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def comparison(shelf: Shelf, name: str) -> str:
    """Returns the report of a comparison as HTML. Memories lead to their pages in the first and the last run.

    Raises UserError if there is no such comparison, or its runs are not open.
    """
    found = find_comparisons(shelf)
    if name not in found:
        raise UserError(
            "There is no comparison of this name whose first and last run are open and whose report is written."
        )
    page, first, last = found[name]
    return with_links(page.read_text(encoding="utf-8"), first, last)


def run(held: Held) -> HTMLResponse:
    """Returns the page of one run."""
    return render("run.html", held=held, **values(held))


def values(held: Held) -> dict[str, Any]:
    """Returns what the template of a run shows."""
    table = layers(held)
    return {
        "table": table,
        "columns": [column for column in COLUMNS if column.name in table],
        "terms": _terms(held),
        "report": LIVE.run(held, "report") if report_file(held).is_file() else "",
        "sheets": bool(sheet_names(annotations_folder(held.run))),
    }


def layers(held: Held) -> pd.DataFrame:
    """Returns one row per layer, with the columns of `COLUMNS` that the run has, and kind."""
    found = held.run.layers[["layer", "kind", "memories", "agreement", "dead"]]
    for column in COLUMNS:
        table, name = column.source or ("", "")
        if table in held.run.tables and name in (values := held.run.table(table).set_index("layer")):
            found = found.assign(**{column.name: found["layer"].map(values[name])})
    return found


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
