"""What the page shows about concepts: the AUC against the number of memories, beside four controls, and each task."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.report import drawing
from ffkv.run.report.curve import LOOK, Line, Panel
from ffkv.run.report.page_tables import Cell, Named, PageTable, data_table, of_columns
from ffkv.run.report.section import Figure, Section, TableBlock, caption, figure_of_lines, name_control, open_control
from ffkv.run.report.wording import note, number, rows, short_name
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import decimals, visible

CURVES, TASKS, MIXTURE = "concept_curves", "concept_tasks", "concept_mixture"
LABELS = {"memories": "memories", "residual": "coordinates of the residual", "directions": "random directions"}
NUMBERS = {  # columns of `TASKS`: what the page calls them
    "auc": "its AUC",
    "shuffled": "shuffled labels",
    "q": "q",
    "one": "smallest k",
    "many": "largest k",
    "whole": "all of the residual",
    "length_auc": "length",
}
MORE = (
    ("All columns, and tasks without texts", TASKS),
    ("Layers and sizes", "concept_layers"),
    ("Best features, and shuffled labels", "concept_nulls"),
    ("Ranking", "concept_memories"),
)
MIXED = [
    Line(label, MIXTURE, column, curve=label)
    for column, label in {"any": "separate one task or more", "several": "separate two or more"}.items()
]
MOST_ROWS = 5000  # of a table that the page shows: a longer one makes it slow


def _control(run: Run) -> Run | None:
    """Returns the control if it was asked for the same concepts."""
    control = open_control(run)
    return control if control is not None and control.settings.concepts.keys() == run.settings.concepts.keys() else None


def draw_curves(run: Run, paper: Any) -> Drawing:
    """Draws the AUC against k: memories, coordinates and directions; the control's memories in grey, the whole residual as a line."""
    (figure, (panel,)), table, control = drawing.canvas(), run.table(CURVES), _control(run)
    for style, (features, label) in enumerate(LABELS.items()):
        own, colour = rows(table, features=features), drawing.colours(4)[style]
        look: Any = {"ls": drawing.LINES[style], "label": label, "ms": 4}
        panel.plot(own["size"], own["auc"], drawing.MARKERS[style], color=colour, **look)
        panel.fill_between(own["size"], own["low"], own["high"], color=colour, alpha=0.2, linewidth=0)
    if control is not None:
        own = rows(control.table(CURVES), features="memories")
        panel.plot(own["size"], own["auc"], **LOOK, label=f"memories, {short_name(control)}")
    for whole in rows(table, features="whole")["auc"]:
        panel.axhline(whole, color="0.5", linewidth=0.9, linestyle=":", label="all of the residual", zorder=0)
    sizes = sorted({*rows(table, features="memories")["size"]})
    panel.set_xscale("log")
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.minorticks_off()
    panel.set_xlabel("number k of features")
    panel.set_ylabel("AUC on the test half")
    drawing.legend(figure, panel)
    return figure


def _curves(run: Run) -> dict[str, Any]:
    """Returns what the caption of the curves has: the curves, how the page calls and writes them, and the control."""
    control, table = _control(run), run.table(CURVES)
    found = {name: rows(table, features=name) for name in ("memories", "whole")}
    beside = "" if control is None else f" In grey {name_control(control)}."
    return found | {"curves": table, "named": LABELS, "auc": decimals, "beside": beside}


def _found(run: Run) -> pd.DataFrame:
    """Returns the tasks that have texts."""
    table = run.table(TASKS)
    return table[table["train"] > 0]


def _tasks(run: Run) -> PageTable:
    found = _found(run)
    columns: dict[str, Iterable[Cell]] = {
        "task": map(visible, found["task"]),
        "with the label": map(visible, found["positive"]),
        "best of all layers": map(
            Named, map(memory_name, found["best_layer"].astype(int), found["best_memory"].astype(int))
        ),
        "texts": map(number, found["train"] + found["test"]),
    }
    texts = [*columns][:3]
    columns |= {heading: map(decimals, found[name]) for name, heading in NUMBERS.items()}
    return of_columns("tasks of concepts", columns, texts)


def _tables(run: Run) -> list[TableBlock]:
    folded = [(what, data_table(run, name)) for what, name in MORE if len(run.table(name)) <= MOST_ROWS]
    return [TableBlock("concept-tasks", "Tasks", note(__package__, "tasks"), _tasks(run), folded)]


def _numbers(run: Run) -> dict[str, str]:
    """Returns the main numbers."""
    table, found = run.table(CURVES), _found(run)
    memories = rows(table, features="memories").iloc[0]
    return {
        "tasks of concepts that a memory separates": f"{(found['q'] <= SIGNIFICANT).sum()} of {len(found)}",
        f"AUC of the first {number(memories['size'])} of the memories, over tasks": decimals(memories["auc"]),
        "AUC of all of the residual, over tasks": decimals(rows(table, features="whole")["auc"].iloc[0]),
    }


SECTION = Section(
    {
        CURVES: Figure((CURVES,), draw_curves, caption(__package__, "curves", _curves)),
        MIXTURE: figure_of_lines([Panel(MIXED, "memories", percentages=True)], caption(__package__, "mixture")),
    },
    _numbers,
    after=_tables,
)
