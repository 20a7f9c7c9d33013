"""The report of a comparison, as one HTML file that opens from disk, without scripts and without network."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.base.files.atomic import atomic
from ffkv.run.comparison import drawings
from ffkv.run.comparison.comparison_file import FILES, Measured
from ffkv.run.comparison.links import mark
from ffkv.run.comparison.summary import (
    MEMORIES,
    describe_behaviours,
    describe_differences,
    describe_memories,
    note_behaviours,
    summarize,
)
from ffkv.run.report import drawing
from ffkv.run.report.curve import LAYER
from ffkv.run.report.page_tables import Cell, Named, PageTable, chip, whole_table, without_same
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.section import Caption, Exhibit
from ffkv.run.report.section_behaviours import POSITIONS
from ffkv.run.report.sections import heading_of
from ffkv.run.report.svg import write_svg
from ffkv.run.report.templates import make_environment
from ffkv.run.report.wording import rows
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.text import column, decimals, percent, percents, visible


def write_page(measured: Measured, output: Path | str) -> None:
    """Writes the report of a comparison, from `compare_runs` or `read_comparison`, as an HTML file."""
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
        runs=_table("runs", "runs", measured.runs),
        curves=curves,
        memories=memories,
        kinds=kind_tables(measured),
        behaviours=draw_all_behaviours(measured),
        behaviour_notes=note_behaviours(measured),
        behaviour_tables=behaviour_tables(measured),
        tables=[_table(name, name, found) for name in ("by_layer", "matches") if len(found := getattr(measured, name))],
        style=Markup(files("ffkv.run.report").joinpath("style.css").read_text(encoding="utf-8")),
    )


def draw_all_curves(measured: Measured) -> list[Exhibit]:
    """Draws the figures with a curve per run; and, where the comparison has an axis, over the axis."""
    exhibits = []
    for name in [name for name in FIGURES if name in set(measured.curves["figure"])]:
        curves = load_figure(name).curves
        tables = [
            _table(frame, f"{name}_{frame}", rows(getattr(measured, frame), figure=name))
            for frame in ("curves", "differences")
        ]
        heading, caption = heading_of(name), describe_differences(measured, name)
        exhibits.append(_exhibit(name, heading, drawings.draw_curves(measured, name, curves), caption, tables))
        of_layers = [curve for curve in curves if curve.x == LAYER]
        if measured.settings.axis and of_layers:
            axis = measured.settings.axis
            text = f"The same by {axis}, for layers from the first to the last one. Bars are 95 % intervals."
            drawn = drawings.draw_over_axis(measured, name, of_layers)
            exhibits.append(_exhibit(f"{name}_axis", f"{heading}, by {axis}", drawn, text))
    return exhibits


def draw_all_memories(measured: Measured) -> list[Exhibit]:
    """Draws the figures about memories that are found in several runs."""
    by_number, by_correlation = len(measured.by_layer) > 0, len(measured.matches) > 0
    figures = [
        ("formation", "How memories form", drawings.draw_formation, by_number and measured.settings.axis),
        ("overlaps", "The same memory in the last run", drawings.draw_overlaps, by_number),
        ("kinds", "Agreement that appears, stays, changes", drawings.draw_kinds, by_number),
        ("matches", "Memories with a partner in another run", drawings.draw_matches, by_correlation),
    ]
    return [
        _exhibit(name, heading, draw(measured), describe_memories(measured, name))
        for name, heading, draw, applies in figures
        if applies
    ]


def draw_all_behaviours(measured: Measured) -> list[Exhibit]:
    """Draws the behaviours that several runs have, if there are any."""
    if not len(measured.behaviours):
        return []
    heading, caption = "Accuracy, and what memories carry", describe_behaviours(measured)
    tables = [_table("behaviours", "behaviours", measured.behaviours)]
    return [_exhibit("behaviours", heading, drawings.draw_behaviours(measured), caption, tables)]


def behaviour_tables(measured: Measured) -> list[tuple[str, PageTable]]:
    """Returns the tables of behaviours, with headings: all of them by run; the memories of each; their overlaps."""
    if not len(found := measured.behaviours):
        return []
    labels = dict(zip(measured.runs["run"], measured.runs["label"], strict=True))
    columns: dict[str, Iterable[Cell]] = {
        "behaviour": found["behaviour"],
        "run": [visible(labels[run]) for run in found["run"]],
        "patched": [POSITIONS[each] for each in found["positions"]],
        "prompts": column(found["prompts"]),
        "accuracy": _with_intervals(found, "accuracy", percent),
        "logit difference": _with_intervals(found, "difference", decimals),
        "n": column(found["size"]),
        "lost with n": _with_intervals(found, "lost", percent),
        "random sets": _with_intervals(found, "random_lost", percent),
        "lost with all": _with_intervals(found, "all_lost", percent),
    }
    tables = [("Each behaviour in each run", without_same(_of_columns("behaviours by run", columns, 3)))]
    for name, own in measured.behaviour_memories.groupby("behaviour", sort=False):
        tables.append((f"Memories of {name}: the effect in each run", _memories_table(own, str(name), labels)))
    if len(overlaps := measured.behaviour_overlaps):
        columns = {
            "behaviour": overlaps["behaviour"],
            "run": [visible(labels[run]) for run in overlaps["run"]],
            "next run": [visible(labels[run]) for run in overlaps["next_run"]],
            "candidates": column(overlaps["candidates"]),
            "in the next run": column(overlaps["next_candidates"]),
            "in both": column(overlaps["shared"]),
            "Jaccard": column(overlaps["jaccard"], places=3),
            "chance": column(overlaps["chance"], places=3),
        }
        tables.append(("Candidates in a run and in the next one", _of_columns("overlaps of candidates", columns, 3)))
    return tables


def _memories_table(own: pd.DataFrame, name: str, labels: Mapping[str, str]) -> PageTable:
    """Returns the candidates of a behaviour, those with the largest effect in any run first: a column per run."""
    runs = own["run"].drop_duplicates().tolist()
    effects = own.pivot(index=["layer", "memory"], columns="run", values="effect")[runs]
    order = effects.abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    effects, tokens = effects.loc[order], own.groupby(["layer", "memory"])["token"].last().loc[order]
    columns: dict[str, Iterable[Cell]] = {
        "memory": [Named(memory_name(*place)) for place in order],
        "promotes": map(chip, tokens),
        **{visible(labels[run]): column(effects[run], like=effects.to_numpy().ravel()) for run in runs},
    }
    return _of_columns(f"memories of {name}", columns, 2)


def _of_columns(name: str, columns: Mapping[str, Iterable[Cell]], texts: int) -> PageTable:
    """Returns a table of columns; the first `texts` hold texts, the others numbers."""
    numeric = [place >= texts for place in range(len(columns))]
    return PageTable(name, [*columns], numeric, [list(row) for row in zip(*columns.values(), strict=True)])


def _with_intervals(found: pd.DataFrame, name: str, write: Callable[[float], str]) -> list[str]:
    """Writes the numbers of a column, with the ends of their intervals where they are known."""
    values = found[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
    return [
        write(value) if math.isnan(low) else f"{write(value)} ({write(low)} to {write(high)})"
        for value, low, high in values
    ]


def _exhibit(name: str, heading: str, drawn: Drawing, caption: str, tables: Sequence[PageTable] = ()) -> Exhibit:
    svg = write_svg(drawn, name, heading, caption)
    return Exhibit(name, heading, Caption("", caption, caption), svg, [*tables])


def kind_tables(measured: Measured) -> list[tuple[str, str, PageTable]]:
    """Returns the clearest memories of each kind between the first and the last run: name, heading and table."""
    if not len(measured.by_memory):
        return []
    first, last = measured.runs["run"].iloc[[0, -1]]
    found = rows(measured.by_memory, run=last, reference=first)
    found = found.assign(since=since(measured).reindex(pd.MultiIndex.from_frame(found[["layer", "memory"]])).to_numpy())
    headers = ["memory", "prediction before", "prediction after", "probability", "since", "shared triggers"]
    headers += ["key", "value"]
    made = []
    for kind, heading in drawings.KINDS.items():
        of_kind = rows(found, kind=kind).sort_values("top_probability", ascending=False, kind="stable")
        shown = of_kind.head(measured.settings.shown_memories)
        cosines = (column(shown[name], places=3) for name in ("key_cosine", "value_cosine"))
        columns = [percents(shown["top_probability"]), percents(shown["jaccard"]), *cosines]
        cells: list[list[Cell]] = [
            [
                Named(memory_name(row.layer, row.memory)),
                chip(row.reference_token),
                chip(row.top_token),
                probability,
                row.since,
                *others,
            ]
            for row, probability, *others in zip(shown.itertuples(), *columns, strict=True)
        ]
        table = PageTable(kind, headers, [False, False, False, True, False, True, True, True], cells)
        made.append((kind, f"{heading}: {len(of_kind):,} memories", table))
    return made


def since(measured: Measured) -> pd.Series:
    """Returns the label of the first run from which on a value has the top token of the last run [layer, memory]."""
    last, labels = measured.runs["run"].iloc[-1], measured.runs["label"]
    table = rows(measured.by_memory, reference=last)
    same = table.pivot(index=["layer", "memory"], columns="run", values="same_top_token")[measured.runs["run"]] > 0
    settled = same.iloc[:, ::-1].cummin(axis=1).sum(axis=1)  # number of runs at the end that have it; the last one does
    return (len(labels) - settled).map(labels)


def _table(file: str, name: str, frame: pd.DataFrame) -> PageTable:
    return replace(whole_table(name, frame), file=FILES[file])
