"""The report of a comparison, as one HTML file that opens from disk, without scripts and without network."""

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from ffkv.base.files.atomic import atomic
from ffkv.run.comparison.comparison_file import FRAMES, Measured
from ffkv.run.comparison.drawings import (
    KINDS,
    draw_curves,
    draw_formation,
    draw_kinds,
    draw_matches,
    draw_over_axis,
    draw_overlaps,
)
from ffkv.run.comparison.links import mark
from ffkv.run.comparison.summary import MEMORIES, describe_differences, describe_memories, summarize
from ffkv.run.report import drawing
from ffkv.run.report.curve import LAYER
from ffkv.run.report.figure import Caption
from ffkv.run.report.page_tables import Named, PageTable, chip, whole_table
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.section import Exhibit
from ffkv.run.report.sections import heading_of
from ffkv.run.report.templates import make_environment
from ffkv.run.report.text import signed
from ffkv.run.report.wording import rows
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.text import percent


def write_page(measured: Measured, output: Path | str) -> None:
    """Writes the report of a comparison.

    Args:
        measured: from `compare_runs` or `read_comparison`.
        output: the HTML file to write.
    """
    page = render(measured)
    with atomic(output, summed=False) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(measured: Measured) -> str:
    """Returns the page as HTML."""
    environment = make_environment(("ffkv.run.comparison", "."), ("ffkv.run.report", "."))
    environment.filters["linked"] = lambda cell: mark(cell.memory) if isinstance(cell, Named) else cell
    with drawing.look():
        curves, memories = draw_all_curves(measured), draw_all_memories(measured)
    return environment.get_template("comparison.html").render(
        measured=measured,
        summary=summarize(measured),
        introduction=MEMORIES[measured.memories],
        runs=_frame_table(measured, "runs"),
        curves=curves,
        memories=memories,
        kinds=kind_tables(measured),
        tables=[_frame_table(measured, name) for name in ("by_layer", "matches") if len(getattr(measured, name))],
        style=Markup(files("ffkv.run.report").joinpath("style.css").read_text()),
    )


def draw_all_curves(measured: Measured) -> list[Exhibit]:
    """Draws the figures with a curve per run; and, where the comparison has an axis, over the axis."""
    exhibits = []
    for name in [name for name in FIGURES if name in set(measured.curves["figure"])]:
        curves = load_figure(name).curves
        tables = [
            _table(measured, frame, f"{name}_{frame}", rows(getattr(measured, frame), figure=name))
            for frame in ("curves", "differences")
        ]
        draw = lambda name=name, curves=curves: draw_curves(measured, name, curves)  # noqa: E731
        caption = describe_differences(measured, name)
        exhibits.append(_exhibit(name, heading_of(name), draw, caption, tables))
        of_layers = [curve for curve in curves if curve.x == LAYER]
        if measured.settings.axis and of_layers:
            over = lambda name=name, curves=of_layers: draw_over_axis(measured, name, curves)  # noqa: E731
            text = f"The same by {measured.settings.axis}, for layers from the first to the last one. Bars are 95 % intervals."
            exhibits.append(_exhibit(f"{name}_axis", f"{heading_of(name)}, by {measured.settings.axis}", over, text))
    return exhibits


def draw_all_memories(measured: Measured) -> list[Exhibit]:
    """Draws the figures about memories that are found in several runs."""
    exhibits = []
    if len(measured.by_layer):
        if measured.settings.axis:
            exhibits.append(_memory_exhibit(measured, "formation", "How memories form", draw_formation))
        exhibits.append(_memory_exhibit(measured, "overlaps", "The same memory in the last run", draw_overlaps))
        exhibits.append(_memory_exhibit(measured, "kinds", "Agreement that appears, stays, changes", draw_kinds))
    if len(measured.matches):
        exhibits.append(_memory_exhibit(measured, "matches", "Memories with a partner in another run", draw_matches))
    return exhibits


def _memory_exhibit(measured: Measured, name: str, heading: str, draw: Callable) -> Exhibit:
    return _exhibit(name, heading, lambda: draw(measured), describe_memories(measured, name))


def _exhibit(name: str, heading: str, draw: Callable, caption: str, tables: list[PageTable] | None = None) -> Exhibit:
    svg = drawing.svg(draw(), name, heading, caption)
    return Exhibit(name, heading, Caption(caption, caption), Markup(svg), tables or [])


def kind_tables(measured: Measured) -> list[tuple[str, str, PageTable]]:
    """Returns the clearest memories of each kind between the first and the last run: name of the kind, its heading, and
    a table.
    """
    if not len(measured.by_memory):
        return []
    first, last = measured.runs["run"].iloc[[0, -1]]
    found = rows(measured.by_memory, run=last, reference=first)
    found = found.assign(since=since(measured).reindex(pd.MultiIndex.from_frame(found[["layer", "memory"]])).to_numpy())
    made = []
    for kind, heading in KINDS.items():
        of_kind = rows(found, kind=kind).sort_values("top_probability", ascending=False, kind="stable")
        shown = of_kind.head(measured.settings.shown_memories)
        made.append((kind, f"{heading}: {len(of_kind):,} memories", _memory_table(kind, shown)))
    return made


def since(measured: Measured) -> pd.Series:
    """Returns the label of the first run from which on a memory's value has the top token of the last run, by layer and
    memory.
    """
    last, labels = measured.runs["run"].iloc[-1], measured.runs["label"]
    table = rows(measured.by_memory, reference=last)
    same = table.pivot(index=["layer", "memory"], columns="run", values="same_top_token")[measured.runs["run"]] > 0
    settled = same.iloc[:, ::-1].cummin(axis=1).sum(axis=1)  # number of runs at the end that have it; the last one does
    return (len(labels) - settled).map(labels)


def _memory_table(kind: str, shown: pd.DataFrame) -> PageTable:
    cells: list[list[Markup | str | Named]] = [
        [
            Named(memory_name(row.layer, row.memory), memory_name(row.layer, row.memory)),
            chip(row.reference_token),
            chip(row.top_token),
            percent(row.top_probability),
            row.since,
            "–" if pd.isna(row.jaccard) else percent(row.jaccard),
            *("–" if pd.isna(cosine) else signed(cosine) for cosine in (row.key_cosine, row.value_cosine)),
        ]
        for row in shown.itertuples()
    ]
    headers = [
        "memory",
        "prediction before",
        "prediction after",
        "probability",
        "since",
        "shared triggers",
        "key",
        "value",
    ]
    return PageTable(kind, headers, [False, False, False, True, False, True, True, True], cells)


def _frame_table(measured: Measured, name: str) -> PageTable:
    return _table(measured, name, name, getattr(measured, name))


def _table(measured: Measured, file: str, name: str, frame: pd.DataFrame) -> PageTable:
    return replace(whole_table(name, frame), file=f"{file}{FRAMES[file]}")
