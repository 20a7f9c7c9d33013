"""The report of a comparison and its words, as one HTML file that opens from disk, without network."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.base.files.atomic import write_text
from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.branches.behaviours.told import POSITIONS
from ffkv.run.report import drawing, page_tables, svg
from ffkv.run.report.claims import CLAIMS
from ffkv.run.report.curve import LAYER
from ffkv.run.report.registry import FIGURES, excused, load_figure
from ffkv.run.report.section import Caption, Exhibit, heading_of
from ffkv.run.report.wording import make_environment, note, rows
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.text import column, decimals, number, percent, percents, points, rounded, visible
from ffkv_comparison import drawings
from ffkv_comparison.comparison_file import FILES, Measured
from ffkv_comparison.same_memories import FEWEST, TIED
from ffkv_comparison.tables import APART, COMPARED, ENDS


def describe_differences(measured: Measured, name: str) -> str:
    """Returns the caption of a figure with a curve per run."""
    found, curves = rows(measured.differences, figure=name), load_figure(name).curves
    known = found.dropna(subset=["low", "high"])
    apart = (known["low"] > 0) | (known["high"] < 0)
    return note(
        __package__,
        "differences",
        labels="; ".join(curve.label for curve in curves),
        first=measured.runs["label"].iloc[0],
        paired=[*dict.fromkeys(found["paired_by"].fillna(""))],
        by_depth=curves[0].x == LAYER and not measured.same_depth,
        known=number(len(known)) if len(known) else "",
        apart=number(apart.sum()),
    )


def note_behaviours(measured: Measured) -> list[str]:
    """Says of each behaviour which runs do not have it, and which have it with other settings."""
    notes, labels = [], measured.labels
    for name, found in measured.behaviours.groupby("behaviour", sort=False):
        if lacking := [label for run, label in labels.items() if run not in {*found["run"]}]:
            notes.append(f"{name}: left out because they do not have it: {', '.join(lacking)}.")
        for row in found[found["other_settings"].fillna("") != ""].itertuples():
            others = f"has other settings than {labels[found['run'].iloc[0]]}: {row.other_settings}"
            notes.append(f"{name}: {labels[row.run]} {others}.")
    return notes


def summarize(measured: Measured) -> list[str]:
    """Says what the comparison found, a sentence or two per item."""
    first, last = measured.runs.iloc[0], measured.runs.iloc[-1]
    labels = measured.labels
    sentences = [f"{len(labels)} runs: {', '.join(labels.values())}."]
    if len(measured.by_layer):
        found = rows(measured.by_layer, run=last["run"], reference=first["run"])
        of = {"found": found, "first": first["label"], "last": last["label"]}
        sentences += [note(__package__, name, **of) for name in ("shared", "agreement")]
    for name, own in measured.behaviours.groupby("behaviour", sort=False):
        sentences.append(note(__package__, "behaviour", name=name, found=own, labels=labels))
    if len(measured.matches):
        of = {"tried": min(measured.settings.sampled_memories, first["memories"])}
        of |= {"rate": SIGNIFICANT, "fewest": FEWEST, "tied_below": TIED}
        for run, label in [*labels.items()][1:]:
            sentences.append(note(__package__, "partners", label=label, found=rows(measured.matches, run=run), **of))
    elif measured.memories == "by_correlation":
        sentences.append(note(__package__, "no_partners"))
    return sentences


def write_page(measured: Measured, output: Path | str) -> None:
    """Writes the report of a comparison, from `compare_runs` or `read_comparison`, as an HTML file."""
    write_text(output, render(measured))


def render(measured: Measured) -> str:
    """Returns the page as HTML."""
    environment = make_environment(("ffkv_comparison", "."), ("ffkv.run.report", "."))
    environment.filters["linked"] = lambda cell: (
        page_tables.mark(cell.memory) if isinstance(cell, page_tables.Named) else cell
    )
    with drawing.look():  # also while they are written, because matplotlib makes some texts only then
        draws = {"curves": draw_all_curves, "memories": draw_all_memories, "behaviours": draw_all_behaviours}
        exhibits = {name: draw(measured) for name, draw in draws.items()}
    return environment.get_template("comparison.html").render(
        measured=measured,
        claims=claims_table(measured) if len(measured.claims) else None,
        claims_told=note(__package__, "claims", found=measured.claims, labels=[*measured.labels.items()])
        if len(measured.claims)
        else "",
        summary=summarize(measured),
        introduction=note(__package__, f"memories_{measured.memories}"),
        runs=_table("runs", "runs", measured.runs),
        **exhibits,
        kinds=kind_tables(measured),
        behaviour_notes=note_behaviours(measured),
        behaviour_tables=behaviour_tables(measured),
        costs=cost_tables(measured),
        tables=[_table(name, name, found) for name in ("by_layer", "matches") if len(found := measured.table(name))],
    )


def claims_table(measured: Measured) -> page_tables.PageTable:
    """Returns a row per claim: each run with its verdict, then what the others differ by from the first one."""
    claims, first, *others = {each.name: each for each in CLAIMS}, *measured.labels.items()
    of = {run: found.set_index("claim") for run, found in measured.claims.groupby("run", sort=False)}
    shown = [name for name in claims if name in of[first[0]].index]

    def cells(run: str, apart: bool = False) -> Iterable[page_tables.Cell]:
        for name in shown:
            row, claim = of[run].loc[name], claims[name]
            write = points if claim.is_trend or (apart and claim.write is percent) else claim.write
            value, low, high = row[APART if apart else ENDS]
            exact = partial(percent, digits=3) if write is percent else write  # because a limit may be near
            within = "" if pd.isna(low) else f"{exact(low).split()[0]} to {exact(high)}"
            verdict = Markup(' <b class="{}">{}</b>').format(row["verdict"].replace(" ", "-"), row["verdict"])
            yield Markup('{}<br><span class="note">{}</span>{}').format(write(value), within, "" if apart else verdict)

    columns: dict[str, Iterable[page_tables.Cell]] = {"claim": [claims[name].words for name in shown]}
    columns |= {visible(label): [*cells(run)] for run, label in (first, *others)}
    less = Markup(" less ") + visible(first[1])
    columns |= {visible(label) + less: [*cells(run, apart=True)] for run, label in others}
    return page_tables.of_columns("claims", columns, {"claim"})


def draw_all_curves(measured: Measured) -> list[Exhibit]:
    """Draws the figures with a curve per run; and, where the comparison has an axis, over the axis."""
    exhibits = []
    for name in [name for name in FIGURES if name in set(measured.curves["figure"])]:
        with excused(FIGURES[name].section, f"the figure {name}"):
            frames = {each: rows(measured.table(each), figure=name) for each in ("curves", "differences")}
            curves = [each for each in load_figure(name).curves if each.label in {*frames["curves"]["curve"]}]
            if not curves:  # an earlier ffkv called them otherwise
                continue
            heading = heading_of(name)
            tables = [_table(each, f"{name}_{each}", frame) for each, frame in frames.items()]
            drawn = drawings.draw_curves(measured, name, curves)
            exhibits.append(_exhibit(name, heading, drawn, describe_differences(measured, name), tables))
            of_layers = [curve for curve in curves if curve.x == LAYER]
            if (axis := measured.settings.axis) and of_layers:
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
    return [_own_exhibit(measured, name, heading, draw) for name, heading, draw, applies in figures if applies]


def draw_all_behaviours(measured: Measured) -> list[Exhibit]:
    """Draws the behaviours that several runs have, if there are any."""
    if not len(found := measured.behaviours):
        return []
    heading, table = "Accuracy, and what memories carry", _table("behaviours", "behaviours", found)
    return [_own_exhibit(measured, "behaviours", heading, drawings.draw_behaviours, table)]


def _own_exhibit(
    measured: Measured, name: str, heading: str, draw: Callable[[Measured], Drawing], *tables: page_tables.PageTable
) -> Exhibit:
    """Returns a figure that no run has alone, with its caption from `texts.toml`."""
    labels, its = measured.runs["label"], measured.settings
    counts = {"permutations": number(its.permutations), "sampled": number(its.sampled_memories)}
    words = {"first": labels.iloc[0], "last": labels.iloc[-1], "axis": its.axis, **counts}
    return _exhibit(name, heading, draw(measured), note(__package__, name, **words), tables)


def _exhibit(
    name: str, heading: str, drawn: Drawing, caption: str, tables: Sequence[page_tables.PageTable] = ()
) -> Exhibit:
    element = svg.write_svg(drawn, name, heading, caption)
    return Exhibit(name, heading, Caption("", caption, caption), element, [*tables])


def cost_tables(measured: Measured) -> list[tuple[str, page_tables.PageTable]]:
    """Returns a table of each layer that a run reads through a dictionary, with headings: its figures at the cost of each run."""
    writes: dict[str, Callable[[float], str]] = {"units": number, "active": rounded, "explained": percent}
    made, labels = [], measured.labels
    shares = {(name, curve.label) for name in COMPARED for curve in load_figure(name).curves if curve.share}
    for layer, own in measured.costs.groupby("layer") if len(measured.costs) else ():
        curves = [*dict.fromkeys(own["curve"])]
        columns: dict[str, Iterable[page_tables.Cell]] = {
            "": ["units", "active at a token", "variance explained", *curves]
        }
        for run, of_run in own.groupby("run", sort=False):
            said = {
                row.curve: (percent if (row.figure, row.curve) in shares else rounded)(row.value)
                if isnan(row.per_thousand)
                else f"{rounded(row.per_thousand)} per 1,000"
                for row in of_run.itertuples()
            }
            told = [write(of_run[name].iloc[0]) for name, write in writes.items()]
            columns[visible(labels[str(run)])] = told + [said.get(curve, "–") for curve in curves]
        made.append((f"Layer {layer}", page_tables.of_columns(f"costs of layer {layer}", columns, {""})))
    return made


def behaviour_tables(measured: Measured) -> list[tuple[str, page_tables.PageTable]]:
    """Returns the tables of behaviours, with headings: all of them by run; the memories of each; their overlaps."""
    if not len(found := measured.behaviours):
        return []
    labels = measured.labels

    def named(runs: pd.Series) -> list[Markup]:
        return [visible(labels[run]) for run in runs]

    columns: dict[str, Iterable[page_tables.Cell]] = {
        "behaviour": found["behaviour"],
        "run": named(found["run"]),
        "patched": [POSITIONS[each] for each in found["positions"]],
        "prompts": column(found["prompts"]),
        "groups": column(found["groups"]),
        "accuracy": _with_intervals(found, "accuracy", percent),
        "logit difference": _with_intervals(found, "difference", decimals),
        "n": column(found["size"]),
        "lost with n": _with_intervals(found, "lost", percent),
        "random sets": _with_intervals(found, "random_lost", percent),
        "lost with all": _with_intervals(found, "all_lost", percent),
    }
    by_run = page_tables.of_columns("behaviours by run", columns, {"behaviour", "run", "patched"})
    tables = [("Each behaviour in each run", page_tables.without_same(by_run))]
    for name, own in measured.behaviour_memories.groupby("behaviour", sort=False):
        tables.append((f"Memories of {name}: the effect in each run", _memories_table(own, str(name), labels)))
    if len(overlaps := measured.behaviour_overlaps):
        columns = {
            "behaviour": overlaps["behaviour"],
            "run": named(overlaps["run"]),
            "next run": named(overlaps["next_run"]),
            "candidates": column(overlaps["candidates"]),
            "in the next run": column(overlaps["next_candidates"]),
            "in both": column(overlaps["shared"]),
            "Jaccard": column(overlaps["jaccard"], places=3),
            "chance": column(overlaps["chance"], places=3),
        }
        own = page_tables.of_columns("overlaps of candidates", columns, {"behaviour", "run", "next run"})
        tables.append(("Candidates in a run and in the next one", own))
    return tables


def _memories_table(own: pd.DataFrame, name: str, labels: Mapping[str, str]) -> page_tables.PageTable:
    runs = own["run"].drop_duplicates().tolist()
    effects = own.pivot(index=["layer", "memory"], columns="run", values="effect")[runs]
    order = effects.abs().max(axis=1).sort_values(ascending=False, kind="stable").index
    effects, tokens = effects.loc[order], own.groupby(["layer", "memory"])["token"].last().loc[order]
    columns: dict[str, Iterable[page_tables.Cell]] = {
        "memory": [page_tables.Named(memory_name(*place)) for place in order],
        "promotes": map(page_tables.chip, tokens),
        **{visible(labels[run]): column(effects[run], like=effects.to_numpy().ravel()) for run in runs},
    }
    return page_tables.of_columns(f"memories of {name}", columns, {"memory", "promotes"})


def _with_intervals(found: pd.DataFrame, name: str, write: Callable[[float], str]) -> list[str]:
    numbers = found[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
    return [page_tables.with_interval(value, low, high, write) for value, low, high in numbers]


def kind_tables(measured: Measured) -> list[tuple[str, str, page_tables.PageTable]]:
    """Returns the clearest memories of each kind between the first and the last run: name, heading and table."""
    if not len(measured.by_memory):
        return []
    first, last = measured.runs["run"].iloc[[0, -1]]
    found = rows(measured.by_memory, run=last, reference=first)
    found = found.assign(since=since(measured).reindex(pd.MultiIndex.from_frame(found[["layer", "memory"]])).to_numpy())
    made = []
    for kind, heading in drawings.KINDS.items():
        of_kind = rows(found, kind=kind).sort_values("top_probability", ascending=False, kind="stable")
        shown = of_kind.head(measured.settings.shown_memories)
        columns: dict[str, Iterable[page_tables.Cell]] = {
            "memory": page_tables.memories_of(shown),
            "prediction before": map(page_tables.chip, shown["reference_token"]),
            "prediction after": map(page_tables.chip, shown["top_token"]),
            "probability": percents(shown["top_probability"]),
            "since": shown["since"],
            "shared triggers": percents(shown["jaccard"]),
            "key": column(shown["key_cosine"], places=3),
            "value": column(shown["value_cosine"], places=3),
        }
        table = page_tables.of_columns(kind, columns, {"memory", "prediction before", "prediction after", "since"})
        made.append((kind, f"{heading}: {len(of_kind):,} memories", table))
    return made


def since(measured: Measured) -> pd.Series:
    """Returns the label of the first run from which on a value has the top token of the last run [layer, memory]."""
    last, labels = measured.runs["run"].iloc[-1], measured.runs["label"]
    table = rows(measured.by_memory, reference=last)
    same = table.pivot(index=["layer", "memory"], columns="run", values="same_top_token")[measured.runs["run"]] > 0
    settled = same.iloc[:, ::-1].cummin(axis=1).sum(axis=1)  # number of runs at the end that have it; the last one does
    return (len(labels) - settled).map(labels)


def _table(file: str, name: str, frame: pd.DataFrame) -> page_tables.PageTable:
    return replace(page_tables.whole_table(name, frame), file=FILES[file])
