"""What the page shows about behaviours: where their memories are, how many carry them, which ones, and their graphs.

All of it stands beside what the run's control gives, if it was asked for the behaviour. `told` has the words.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.branches.behaviours import told as words
from ffkv.branches.behaviours.told import EXPERTS, MEMORIES, POSITIONS, SETS, SUMMARY, WRITERS
from ffkv.branches.behaviours.words import (
    ALL,
    ALL_EXPERTS,
    ALL_MEMORIES,
    ATTENTION,
    BY_SCREEN,
    BY_SIZE,
    CHANGES,
    ERROR,
    FIRST_EXPERTS,
    RANDOM,
    RANDOM_EXPERTS,
    REMOVED,
)
from ffkv.run.graph.drawing import draw
from ffkv.run.graph.result import behaviour_graph
from ffkv.run.report import drawing
from ffkv.run.report.curve import GREY, LOOK
from ffkv.run.report.page_tables import Cell, Named, PageTable, data_table, of_columns, pushed, whole_table
from ffkv.run.report.section import Figure, Section, TableBlock, open_control
from ffkv.run.report.wording import note, rows, short_name
from ffkv.run.results.indexes import pushed_tokens
from ffkv.run.results.memory_name import expert_name, memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import column, number, percent, rounded, visible

LABEL = 0.1  # the share of a logarithmic axis that a label takes
MORE = (  # tables below the graphs: anchor, heading, text and name
    ("areas", "Areas", "areas", "behaviour_areas"),
    ("missed", "What the screen missed", "missed", "behaviour_missed"),
    ("side-effects", "Side effects", "side", "behaviour_side_effects"),
    ("stability", "Stability", "stability", "behaviour_stability"),
)


def _of_behaviours(draw: Callable[[Run, str, Axes, Run | None], None]) -> Callable[[Run, Any], Drawing]:
    """Returns what draws a panel per behaviour, three side by side, and one legend: what a panel shows, another one may lack.

    `draw`: draws the panel of a run and a behaviour; beside it the control, if that was asked for the behaviour.
    """

    def drawn(run: Run, paper: Any) -> Drawing:
        names, control = words.asked(run)["behaviour"].tolist(), open_control(run)
        figure, panels = drawing.grid(len(names))
        by_label = dict[str, Any]()
        for name, panel in zip(names, panels, strict=True):
            drawing.small_title(panel, name)
            draw(run, name, panel, words.having(control, name))
            by_label |= zip(*panel.get_legend_handles_labels()[::-1])
        drawing.fit_legend(figure, [*by_label.values()], [*by_label])
        return figure

    return drawn


@_of_behaviours
def draw_layers(run: Run, name: str, panel: Axes, control: Run | None) -> None:
    """Draws a behaviour's candidates at layer and strength, with a band of random memories; the control's are grey."""
    dark, _, pale, _ = drawing.colours(4)
    looks: dict[str, dict[str, Any]] = {"≤": {"color": dark}, ">": {"edgecolor": pale, "color": "white"}}
    found, strength, q = words.candidates(run, name)
    if strength == "effect":
        band = found.groupby("layer")["chance"].max()
        panel.bar(band.index, 2 * band, 0.9, -band, color=drawing.PALE, label="95 % of random memories")
    certain = found[q] <= SIGNIFICANT
    for sign, own in (("≤", found[certain]), (">", found[~certain])):
        panel.scatter(own["layer"], own[strength], s=22, zorder=3, label=f"q {sign} {SIGNIFICANT}", **looks[sign])
    if control:
        untrained, the_same, _ = words.candidates(control, name)
        if the_same == strength:
            crosses: dict[str, Any] = {"c": GREY, "marker": "x", "linewidth": 1, "label": f"control: {control.name}"}
            panel.scatter(untrained["layer"], untrained[strength], s=18, **crosses)
    panel.axhline(0, label="_zero", color="0.6", linewidth=0.8, zorder=0)
    drawing.layer_axis(panel, len(run.anatomy.layers))
    panel.set_ylabel("effect (logits)" if strength == "effect" else "contrast")


@_of_behaviours
def draw_sets(run: Run, name: str, panel: Axes, control: Run | None) -> None:
    """Draws the share of a behaviour that is lost when n memories are patched, beside random sets and the control."""
    table = rows(run.table(SETS), behaviour=name)
    styles = {
        BY_SCREEN: "the n memories with the largest screen",
        BY_SIZE: "the n memories with the longest change",
        RANDOM: "random sets of equal summed length",
    }
    for style, (choice, label) in enumerate(styles.items()):
        own = rows(table, choice=choice)
        colour, look = drawing.colours(3)[style], drawing.MARKERS[style]
        panel.plot(own["size"], own["completeness"], look, color=colour, ls=drawing.LINES[style], label=label, ms=4)
        panel.fill_between("size", "completeness_low", "completeness_high", data=own, color=colour, alpha=0.2, lw=0)
    if control and len(own := rows(control.table(SETS), behaviour=name, choice=BY_SCREEN)):
        panel.plot(own["size"], own["completeness"], **LOOK, label=f"control: {control.name}")
    for whole in rows(table, choice=ALL)["completeness"].dropna():
        panel.axhline(whole, color="0.6", linewidth=0.9, linestyle=":", label="all memories", zorder=0)
    _share_axis(panel, "share of the behaviour that is lost")
    panel.set_xlabel("n memories are patched")
    sizes = sorted({max(1, size) for size in rows(table, choice=BY_SCREEN)["size"]})
    if sizes:  # else the model does not do what the behaviour asks for: a logarithmic axis needs a number
        panel.set_xscale("log")
        panel.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
        labelled = sizes[:1]  # of labels that would touch, the smaller size has one
        for size in sizes:
            if size / labelled[-1] > (1.44 * sizes[-1] / sizes[0]) ** LABEL:
                labelled.append(size)
        panel.set_xticks(sizes, [f"{size:,}" if size in labelled else "" for size in sizes])
        panel.minorticks_off()


@_of_behaviours
def draw_writers(run: Run, name: str, panel: Axes, control: Run | None) -> None:
    """Draws what attention and memories of each layer carry of a behaviour, beside the control at the last token."""
    if words.writers(run, name).empty:  # of another behaviour there are some
        panel.text(0.5, 0.5, "nothing was measured", transform=panel.transAxes, ha="center")
        panel.set_axis_off()
        return
    styles = {("total", "last"): "last token", ("total", "all"): "all tokens", ("direct", "last"): "direct"}
    kinds = [each for each in (ATTENTION, ALL_MEMORIES, ERROR) if each in {*words.writers(run, name)["writer"]}]
    for colour, writer in zip(drawing.colours(len(kinds)), kinds, strict=True):
        for look, ((reach, positions), where) in zip(("-", "--", ":"), styles.items(), strict=True):
            which = {"writer": writer, "reach": reach, "positions": positions}
            own = rows(words.writers(run, name), **which).query("layer >= 0")
            panel.plot(own["layer"], own["share"], color=colour, ls=look, label=f"{writer}, {where}", lw=1.3)
            if look == "-":
                panel.fill_between(own["layer"], own["share_low"], own["share_high"], color=colour, alpha=0.2, lw=0)
                if control and len(its := rows(words.writers(control, name), **which).query("layer >= 0")):
                    grey = LOOK | {"marker": "x" if writer == ATTENTION else "."}
                    panel.plot(its["layer"], its["share"], **grey, label=f"control: {control.name}, {writer}")
    panel.axhline(0, label="_zero", color="0.6", linewidth=0.8, zorder=0)
    drawing.layer_axis(panel, len(run.anatomy.layers))
    _share_axis(panel, "share of the behaviour")


def _share_axis(panel: Axes, label: str) -> None:
    """Sets up a vertical axis of shares that can be below 0."""
    drawing.share_axis(panel, label)
    panel.set_ylim(auto=True)
    panel.autoscale_view()


def _asked(run: Run) -> PageTable:
    """Returns what was asked, whether the model does it, and how much of it memories carry; then the same of the control."""
    found = []
    for each in filter(None, (run, open_control(run))):
        of_control = "" if each is run else f", {short_name(each)}"
        for name in (name for name in run.settings.behaviours if name in each.settings.behaviours):
            row = words.row_of(each, name)
            effects = words.significant(each, name) if row["explained"] else None
            its: dict[str, Cell] = {
                "behaviour": visible(f"{name}{of_control}"),
                "patched": POSITIONS[each.settings.behaviours[name].positions],
                "prompts": number(row["prompts"]),
                "groups": number(row["groups"]),
                "accuracy": percent(row["accuracy"]),
                "logit difference": rounded(row["difference"]),
                "contrast": number(row["significant"]),
                "screen": number(row["screened"]),
                "effect": "–" if effects is None else number(len(effects)),
                "carried by all memories": percent(row["by_memories"]),
                "screen and effect": rounded(row["pearson"]),
            }
            found.append(its)
    columns = {header: [each[header] for each in found] for header in found[0]}
    return of_columns("behaviours asked", columns, {"behaviour", "patched"})


def _tables(run: Run) -> list[TableBlock]:
    """The behaviours; the candidates of each: what they detect, what they write, what they cause; how stable they are."""
    folded = [
        ("Prompts that are not used", data_table(run, "behaviour_prompts")),
        ("All columns", data_table(run, SUMMARY)),
    ]
    return [
        TableBlock("behaviours-asked", "Behaviours", note(__package__, "asked"), _asked(run), folded),
        *(
            TableBlock(f"behaviour-{number}", f"Memories of {name}", note(__package__, "pushes"), _named(run, name))
            for number, name in enumerate(words.asked(run)["behaviour"])
        ),
        *_graphs(run),
        *_experts(run),
        *(
            TableBlock(f"behaviour-{anchor}", heading, note(__package__, text), data_table(run, table))
            for anchor, heading, text, table in MORE
            if table in run.tables and len(run.table(table))  # earlier runs lack some
        ),
    ]


def _graphs(run: Run) -> list[TableBlock]:
    """The graph of each behaviour that has one: what was found, the drawing, and its memories."""
    blocks = []
    for place, name in enumerate(run.table("behaviour_graph_sets")["behaviour"].unique()):
        graph = behaviour_graph(run, name)
        nodes, table, drawn = graph.nodes, None, None
        if len(nodes):
            numbers = {
                "coefficient": column(nodes["coefficient"]),
                "effect": column(nodes["effect"]),
                "from": column(nodes["low"], like=nodes["effect"]),
                "to": column(nodes["high"], like=nodes["effect"]),
                **{each: [percent(share) for share in nodes[each]] for each in ("loss", "stability")},
            }
            table, drawn = _memories(f"graph of {name}", nodes, numbers), draw(graph)
        folded = [
            (f"{what} of the graph", whole_table(f"{what} of the graph of {name}", frame))
            for what, frame in (("Edges", graph.edges), ("Direct edges", graph.paths), ("Sets", graph.sets))
            if len(frame)
        ]
        anchor, more = f"behaviour-graph-{place}", note(__package__, "graph")
        blocks.append(TableBlock(anchor, f"Graph of {name}", graph.told, table, folded, drawn, more))
    return blocks


def _experts(run: Run) -> list[TableBlock]:
    """Returns the experts of each behaviour, or that there are none; nothing of a run that an earlier ffkv made."""
    every = run.table(EXPERTS) if EXPERTS in run.tables else None
    if every is None or not len(every):
        return [] if every is None else [TableBlock("behaviour-experts", "Experts", note(__package__, "no_experts"))]
    blocks, place = list[TableBlock](), ["layer", "expert"]
    for which, (name, own) in enumerate(every.groupby("behaviour", sort=False)):
        effects = own.pivot(index=place, columns=["reach", "change"], values="effect")
        found = rows(own, reach="total", change=REMOVED).sort_values(["effect_q", "q_value"], kind="stable")
        found = found.head(words.SHOWN).set_index(place)
        shown = {change: effects["total", change] for change in CHANGES}
        shown |= {"others": found["beside"], "direct": effects["direct", REMOVED]}
        columns: dict[str, Iterable[Cell]] = {
            "expert": [expert_name(*at) for at in found.index],
            "sent there": map(percent, found["clean"]),
            "other prompts": map(percent, found["patch"]),
            "q, sent": column(found["q_value"], places=2),
            "q, effect": column(found["effect_q"], places=2),
            **{title: column(its.loc[found.index], like=found["effect"]) for title, its in shown.items()},
        }
        table = of_columns(f"experts of {name}", columns, ["expert"], int((found["effect_q"] <= SIGNIFICANT).sum()))
        anchor, heading = f"behaviour-experts-{which}", f"Experts of {name}"
        blocks.append(TableBlock(anchor, heading, note(__package__, "experts"), table))
        if sets := _sets_of_experts(run, name):
            anchor, heading = f"behaviour-sets-of-experts-{which}", f"Sets of experts of {name}"
            blocks.append(TableBlock(anchor, heading, note(__package__, "sets_of_experts"), sets))
    return blocks


def _sets_of_experts(run: Run, name: str) -> PageTable | None:
    """Returns what is lost when sets of experts are patched, and what else changes, beside random sets; None if none was measured."""
    of_sets, aside = (rows(run.table(table), behaviour=name) for table in (SETS, "behaviour_side_effects"))
    found = of_sets.merge(aside, "left", ["choice", "size"]).groupby(["choice", "size"], sort=False).first()
    own = found.loc[found.index.isin([FIRST_EXPERTS, ALL_EXPERTS], "choice")]
    if not len(own):
        return None
    beside = found.reindex(own.rename({FIRST_EXPERTS: RANDOM_EXPERTS, ALL_EXPERTS: ""}, level="choice").index)
    columns: dict[str, Iterable[Cell]] = {
        "experts": own.index.map(lambda each: "all" if each[0] == ALL_EXPERTS else number(each[1]))
    }
    for title, of in (("", own), (", random", beside)):
        columns |= {f"lost{title}": map(percent, of["completeness"]), f"left{title}": map(percent, of["faithfulness"])}
        columns |= {f"KL{title}": column(of["divergence"], like=own["divergence"])}
    return of_columns(f"sets of experts of {name}", columns, ())


def _named(run: Run, name: str) -> PageTable:
    found, strength, q = words.candidates(run, name)
    found = found.assign(certain=found[q] <= SIGNIFICANT, strength=found[strength].abs())
    found = found.sort_values(["certain", "strength"], ascending=False, kind="stable").head(words.SHOWN)
    numbers = {
        "coefficient": column(found["coefficient"]),
        "effect": column(found["effect"]),
        "random memories": column(found["random_memories"], like=found["effect"]),
        "q": column(found[q], places=2),
        "screen": column(found["screen_estimate"]),
        "contrast": column(found["estimate"]),
    }
    names = [*map(memory_name, found["layer"], found["memory"])]
    patterns, pushes = [run.memory(each).pattern for each in names], pushed_tokens(run.files, found)["pushes"]
    named = found.assign(name=names, pattern=patterns, pushes=pushes)
    return _memories(f"memories of {name}", named, numbers, int(found["certain"].sum()))


def _memories(name: str, found: pd.DataFrame, numbers: Mapping[str, list[str]], muted: int | None = None) -> PageTable:
    """Returns a table of memories. `numbers`: its other columns. `muted`: the row from which on memories are not significant."""
    columns: dict[str, Iterable[Cell]] = {
        "memory": map(Named, found["name"]),
        "pattern": (visible(each) if each else "–" for each in found["pattern"]),
        "pushes towards": map(pushed, found["pushes"], found["coefficient"]),
    }
    return of_columns(name, {**columns, **numbers}, columns, muted)


SECTION = Section(
    {
        "behaviour_layers": Figure((MEMORIES, "behaviour_layers"), draw_layers, words.caption_layers),
        "behaviour_sets": Figure((SETS,), draw_sets, words.caption_sets, applies=lambda run: len(run.table(SETS)) > 0),
        "behaviour_writers": Figure(
            (WRITERS,),
            draw_writers,
            words.caption_writers,
            applies=lambda run: any(len(words.writers(run, name)) for name in run.settings.behaviours),
        ),
    },
    words.main_numbers,
    after=_tables,
    summary=words.summarize,
)
