"""The runs and their comparisons, one run layer by layer, and two runs side by side by relative depth."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from starlette.responses import HTMLResponse, Response

from ffkv.apps.annotation.sheets import sheet_names
from ffkv.apps.explorer import page_memory
from ffkv.apps.explorer.layer_map import layer_map
from ffkv.apps.explorer.pages import DRAWING_POLICY, LIVE, render, report_file, static
from ffkv.apps.explorer.shelf import Held, NoSuch, Shelf
from ffkv.base.files.bounded import read_json
from ffkv.base.lookup import is_file
from ffkv.run.comparison.comparison_file import FACTS
from ffkv.run.comparison.links import with_links
from ffkv.run.report import facts
from ffkv.run.results.depth import pair_layers

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
            name = file.parents[1].name
            runs = [opened.get(results / run) for run in _runs_of(file)]
            page = results.parent / "reports/comparisons" / name / "index.html"
            if runs and runs[0] is not None and runs[-1] is not None and is_file(page):
                found.setdefault(name, (page, runs[0], runs[-1]))
    return found


def _runs_of(file: Path) -> list[str]:
    """Returns the runs of a comparison; none if its file is damaged, which `ffkv comparison report` tells."""
    try:
        return list(read_json(file)["settings"]["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def comparison(shelf: Shelf, name: str) -> str:
    """Returns the report of a comparison as HTML. Memories lead to their pages in the first and the last run.

    Raises NoSuch if there is no such comparison, or its runs are not open.
    """
    found = find_comparisons(shelf)
    if name not in found:
        raise NoSuch(
            "There is no comparison of this name whose first and last run are open and whose report is written."
        )
    page, first, last = found[name]
    return with_links(page.read_text(encoding="utf-8"), first, last)


def run(held: Held, query: Mapping[str, str]) -> HTMLResponse:
    """Returns the page of one run. Raises NoSuch if the address asks for a map that there is not."""
    shown = layer_map(held, query.get("map", ""), query.get("order", ""))
    return render("run.html", held=held, map=shown, **values(held))


def claims(held: Held) -> Response:
    """Returns the small drawings of the report's first screen, in the colours of the explorer.

    Raises UserError if the run lacks a table, or the folder of its control.
    """
    from ffkv.run.report import claims, control, overview, svg  # with matplotlib

    with DRAWING:
        other = control.open_control(held.run)
        element = overview.overview_svg(claims.judge_claims(held.run, other), held.run, other)
    colours, _, _ = static("explorer.css").partition("* {")
    style = '<style type="text/css">'
    drawn = svg.in_colours_of_page(element).replace(style, style + colours, 1)
    headers = {"Content-Security-Policy": DRAWING_POLICY, "Cache-Control": "private, max-age=3600"}
    return Response(drawn, 200, headers, "image/svg+xml")


def values(held: Held) -> dict[str, Any]:
    """Returns what the template of a run shows."""
    table, run = layers(held), held.run
    return {
        "table": table,
        "columns": [column for column in COLUMNS if column.name in table],
        "terms": [
            *facts.model(run),
            *facts.corpus(run),
            ("trigger examples", f"{run.settings.triggers.per_key} per key"),
        ],
        "report": LIVE.run(held, "report", reading="") if is_file(report_file(held)) else "",
        "sheets": bool(sheet_names(run.files.annotations)),
    }


def layers(held: Held) -> pd.DataFrame:
    """Returns one row per layer, with the columns of `COLUMNS` that the run has, and kind."""
    found = held.run.layers[["layer", "kind", "memories", "agreement", "dead"]]
    for column in COLUMNS:
        table, name = column.source or ("", "")
        if table in held.run.tables and name in (values := held.run.table(table).set_index("layer")):
            found = found.assign(**{column.name: found["layer"].map(values[name])})
    return found


def compare(names: list[str], runs: list[Held], memories: list[str]) -> HTMLResponse:
    """Returns the page of two runs.

    Memory L3.17 is the same unit in two runs of one model: at another training step or on another corpus. In models of
    another size or seed it is not.

    `names`: of all open runs; `memories`: a memory of each. An empty one is the first run's memory, or L0.0.
    """
    asked = [memories[0] or "L0.0", memories[1] or memories[0] or "L0.0"]
    columns, problems = [], []
    for held, name in zip(runs, asked):
        try:
            place = held.place(name)
        except NoSuch as error:
            problems.append(f"Run {held.name}: {error}")
        else:
            columns.append({"held": held} | page_memory.values(held, *place))
    if len(columns) == 2:
        for one, other in (columns, columns[::-1]):
            one["also"] = {row.token for row in other["top"]} | {row.label for row in other["card"].patterns}
    tables = [layers(held).set_index("layer", drop=False).to_dict("index") for held in runs]
    pairs = pair_layers(*(len(held.sizes) for held in runs))  # at the same relative depth
    depths: list[dict[str, Any]] = [
        {"depth": depth, "layers": [table[at] for table, at in zip(tables, pair)]} for depth, *pair in pairs
    ]
    return render(
        "compare.html",
        status=400 if problems else 200,
        names=names,
        runs=runs,
        asked=asked,
        problems=problems,
        columns=[] if problems else columns,
        alike=runs[0].run.anatomy.architecture == runs[1].run.anatomy.architecture and runs[0].sizes == runs[1].sizes,
        depths=depths,
        statistics=[each for each in COLUMNS if any(each.name in row for row in depths[0]["layers"])],
    )
