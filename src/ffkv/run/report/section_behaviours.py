"""What the page shows and says about behaviours: where their memories are, how many carry them, and which ones."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import ScalarFormatter

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.report import drawing
from ffkv.run.report.graph_blocks import graph_blocks
from ffkv.run.report.page_tables import Named, PageTable, chip, data_table
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import rows
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import MINUS, column, number, percent, visible

SUMMARY, MEMORIES, SETS, STABILITY = (
    "behaviours",
    "behaviour_memories",
    "behaviour_sets",
    "behaviour_stability",
)
LAYERS, PROMPTS, SIDE = "behaviour_layers", "behaviour_prompts", "behaviour_side_effects"
SCREEN, RANDOM, ALL = "screen", "random", "all"  # choices of sets
POSITIONS = {"last": "at the last token", "all": "at all tokens"}
SHOWN = 25  # memories of each behaviour that the page shows


def _panels(run: Run) -> tuple[Drawing, list[tuple[str, Axes]]]:
    """Returns a figure with a panel per behaviour, three side by side, and the names of the behaviours."""
    names = run.table(SUMMARY)["behaviour"].tolist()
    across = min(len(names), drawing.PANELS_ACROSS)
    down = -(-len(names) // across)
    figure = Drawing(figsize=(8.4, 3.7 + 2.7 * (down - 1)), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for unused in panels[len(names) :]:
        unused.remove()
    for name, panel in zip(names, panels):
        drawing.small_title(panel, name)
    return figure, [*zip(names, panels)]


def _candidates(run: Run, name: str) -> tuple[pd.DataFrame, str, str]:
    """Returns the candidates of a behaviour, the column of their strength, and that of its q-values.

    Where no exact effect was measured, the contrast is their strength.
    """
    found = rows(run.table(MEMORIES), behaviour=name, reach="total")
    measured = found["effect"].notna().any()
    return found, *(("effect", "effect_q") if measured else ("estimate", "q_value"))


def draw_layers(run: Run, paper: Any) -> Drawing:
    """Draws a panel per behaviour: each candidate at its layer and strength, with the band of its controls."""
    figure, panels = _panels(run)
    dark, pale = drawing.colours(4)[0], drawing.colours(4)[2]
    for name, panel in panels:
        found, strength, q = _candidates(run, name)
        if strength == "effect":
            band = found.groupby("layer")["chance"].max()
            panel.bar(band.index, 2 * band, 0.9, -band, color=drawing.PALE, label="95 % of random memories")
        certain = found[q] <= SIGNIFICANT
        for own, look in ((found[certain], {"color": dark}), (found[~certain], {"edgecolor": pale, "color": "white"})):
            label = f"q ≤ {SIGNIFICANT}" if "edgecolor" not in look else f"q > {SIGNIFICANT}"
            panel.scatter(own["layer"], own[strength], s=22, zorder=3, label=label, **look)
        panel.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        drawing.layer_axis(panel, len(run.anatomy.layers))
        panel.set_ylabel("effect (logits)" if strength == "effect" else "contrast")
    drawing.legend(figure, panels[0][1])
    return figure


def _caption_layers(run: Run) -> Caption:
    told = []
    for name, summary in run.table(SUMMARY).set_index("behaviour").iterrows():
        found, strength, q = _candidates(run, str(name))
        certain = found[found[q] <= SIGNIFICANT]
        text = f"{name}: {number(len(certain))} of {number(len(found))} candidates are significant"
        if len(certain):
            best = certain.loc[certain[strength].abs().idxmax()]
            text += f", {memory_name(int(best['layer']), int(best['memory']))} most ({_logits(best[strength])})"
        told.append(f"{text}{'' if summary['explained'] else '; no exact effect was measured'}.")
    text = (
        "Candidates are the memories with the largest contrast and with the largest screen on one half of the prompts. Shown is "
        "their total effect on the other half: by how much the logit of the answer, minus that of the wrong answer, falls when the "
        f"memory's coefficient is patched ({_where(run)}) and the blocks after it run again. The band is as wide as the effects "
        "of 95 % of random memories of the layer: changes of the same length along their values. q-values count all candidates of a "
        "behaviour."
    )
    return Caption(" ".join(told), text, "Points by layer and effect, a panel per behaviour.")


def _where(run: Run) -> str:
    """Returns at which tokens memories are patched, by behaviour if they differ."""
    found = {name: POSITIONS[its.positions] for name, its in run.settings.behaviours.items()}
    if len({*found.values()}) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{name} {where}" for name, where in found.items())


def _logits(value: float) -> str:
    return f"{value:.3g} logits".replace("-", MINUS)


def draw_sets(run: Run, paper: Any) -> Drawing:
    """Draws a panel per behaviour: the share that is lost when n memories are patched, beside random sets."""
    figure, panels = _panels(run)
    table = run.table(SETS)
    styles = {SCREEN: "the n memories with the largest screen", RANDOM: "random sets of equal summed length"}
    for name, panel in panels:
        for style, (choice, label) in enumerate(styles.items()):
            own = rows(table, behaviour=name, choice=choice)
            look: dict[str, Any] = {
                "color": drawing.colours(3)[style],
                "ls": drawing.LINES[style],
                "label": label,
                "ms": 4,
            }
            panel.plot(own["size"], own["completeness"], drawing.MARKERS[style], **look)
            limits = own["completeness_low"], own["completeness_high"]
            panel.fill_between(own["size"], *limits, color=look["color"], alpha=0.2, linewidth=0)
        for whole in rows(table, behaviour=name, choice=ALL)["completeness"]:
            panel.axhline(whole, color="0.6", linewidth=0.9, linestyle=":", label="all memories", zorder=0)
        drawing.share_axis(panel, "share of the behaviour that is lost")
        panel.set_ylim(auto=True)
        sizes = rows(table, behaviour=name, choice=SCREEN)["size"]
        if len(sizes):  # none if the model does not do what the behaviour asks for: a logarithmic axis needs a number
            panel.set_xscale("log")
            panel.xaxis.set_major_formatter(ScalarFormatter())
            panel.set_xlim(max(1, sizes.min()) / 1.2, max(1, sizes.max()) * 1.2)
        panel.set_xlabel("n memories are patched")
    drawing.legend(figure, panels[0][1])
    return figure


def _caption_sets(run: Run) -> Caption:
    table, told = run.table(SETS), []
    for name in run.table(SUMMARY)["behaviour"]:
        own = rows(table, behaviour=name, choice=SCREEN)
        if not len(own):
            told.append(f"{name}: no set was measured.")
            continue
        largest = own.iloc[-1]
        chance = rows(table, behaviour=name, choice=RANDOM, size=int(largest["size"]))["completeness"]
        beside = "".join(f", random sets {percent(share)}" for share in chance)
        told.append(
            f"{name}: {number(largest['size'])} memories carry {percent(largest['completeness'])} of it "
            f"({percent(largest['completeness_low'])} to {percent(largest['completeness_high'])}){beside}."
        )
    text = (
        "The memories are chosen by their screen on one half of the prompts and patched on the other half, in all layers at "
        f"once ({_where(run)}). Shown is by how much the mean logit difference falls, as a share of its difference from the other "
        "prompts of the pairs. A share can be above 1 or below 0, because memories work against each other. Random sets have as many "
        "memories as make the same summed length of contributions. The dotted line is the share that is lost when all memories "
        "are patched: attention, and memories at tokens that are not patched, carry the rest. The bands are 95 % intervals over "
        "prompts. The data also has what is left when all memories but the set are patched."
    )
    return Caption(" ".join(told), text, "Lines by number of memories, a panel per behaviour.")


def _asked(run: Run) -> PageTable:
    """Returns what was asked, whether the model does it, and how much of it memories carry."""
    table, memories = run.table(SUMMARY), rows(run.table(MEMORIES), reach="total")
    effects = memories.groupby("behaviour")["effect_q"].agg(lambda q: (q <= SIGNIFICANT).sum())
    columns = {
        "prompts": table["prompts"].map(number),
        "patched": [POSITIONS[run.settings.behaviours[name].positions] for name in table["behaviour"]],
        "accuracy": table["accuracy"].map(_share),
        "logit difference": table["difference"].map(_plain),
        "memories with an effect": table["behaviour"].map(effects).fillna(0).map(number),
        "carried by all memories": table["by_memories"].map(_share),
        "screen and effect": table["pearson"].map(_plain),
    }
    cells = [[*map(visible, table["behaviour"])], *columns.values()]
    lines = [list(row) for row in zip(*cells, strict=True)]
    return PageTable(
        "behaviours asked", ["behaviour", *columns], [False, *[name != "patched" for name in columns]], lines
    )


def _share(value: float) -> str:
    return "–" if np.isnan(value) else percent(value)


def _plain(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3g}".replace("-", MINUS)


def _tables(run: Run) -> list[TableBlock]:
    """The behaviours; the candidates of each: what they detect, what they write, what they cause; how stable they are."""
    asked = [("Prompts that are not used", data_table(run, PROMPTS)), ("All columns", data_table(run, SUMMARY))]
    return [
        TableBlock("behaviours-asked", "Behaviours", ASKED_TEXT, _asked(run), asked),
        *(
            TableBlock(f"behaviour-{number}", f"Memories of {name}", table=_named(run, name))
            for number, name in enumerate(run.table(SUMMARY)["behaviour"])
        ),
        *graph_blocks(run),
        TableBlock("behaviour-side-effects", "Side effects", SIDE_TEXT, data_table(run, SIDE)),
        TableBlock("behaviour-stability", "Stability", STABILITY_TEXT, data_table(run, STABILITY)),
    ]


ASKED_TEXT = (
    "Patched: at which tokens of a prompt. Accuracy: the answer has a higher logit than the wrong answer. Memories with an "
    "effect: candidates whose exact total effect is larger than those of random memories. Screen and effect: the correlation of the two over candidates."
)
SIDE_TEXT = (
    "What else changes when the sets are patched: the KL divergence of the prediction, and the rise of the loss of the next token, in "
    "nats, on validation prefixes that have nothing to do with the behaviour."
)
STABILITY_TEXT = (
    "How alike the sets of memories are that other prompts give: prompts that are drawn again, the two halves, two labels; and "
    "sets of random memories. 1 means the same memories."
)


def _named(run: Run, name: str) -> PageTable:
    """Returns the candidates of a behaviour, those that are significant first."""
    found, strength, q = _candidates(run, name)
    certain = found[q] <= SIGNIFICANT
    found = found.assign(certain=certain, strength=found[strength].abs())
    found = found.sort_values(["certain", "strength"], ascending=False, kind="stable").head(SHOWN)
    numbers = {
        "effect": column(found["effect"]),
        "random memories": column(found["random_memories"], like=found["effect"]),
        "q": column(found[q], places=2),
        "screen": column(found["screen_estimate"]),
        "contrast": column(found["estimate"]),
    }
    names = [Named(memory_name(*each)) for each in zip(found["layer"], found["memory"], strict=True)]
    memories = [
        run.memory(int(layer), int(memory)) for layer, memory in zip(found["layer"], found["memory"], strict=True)
    ]
    patterns = [visible(memory.pattern) if memory.pattern else "–" for memory in memories]
    tokens = [chip(text) for text in found["token"]]
    columns = [names, patterns, tokens, *numbers.values()]
    return PageTable(
        name=f"memories of {name}",
        headers=["memory", "pattern", "top token", *numbers],
        numeric=[False, False, False, *[True] * len(numbers)],
        rows=[list(row) for row in zip(*columns, strict=True)],
        muted_from=int(found["certain"].sum()),
    )


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns whether the model has each behaviour, and how much of it memories carry."""
    told = []
    for row in run.table(SUMMARY).to_dict("records"):
        name = row["behaviour"]
        if row["kind"] == "lists":
            told.append(
                f"{name}: two lists of prompts, {number(row['prompts'])} in all. {number(row['significant'])} memories differ "
                f"between them (false discovery rate {SIGNIFICANT} per layer)."
            )
            continue
        accuracy = f"{percent(row['accuracy'])} of {number(row['prompts'])} prompts"
        if not row["explained"]:
            least = run.settings.behaviours[name].minimum_accuracy
            told.append(
                f"{name}: the answer has a higher logit than the wrong answer on {accuracy}. That is below {percent(least)}, so there "
                "is nothing to explain."
            )
            continue
        correlation = row["pearson"]
        agrees = (
            "" if np.isnan(correlation) else f" The screen agrees with exact effects (correlation {correlation:.2f})."
        )
        told.append(
            f"{name}: the answer has a higher logit than the wrong answer on {accuracy}. All memories together, patched "
            f"{POSITIONS[run.settings.behaviours[name].positions]}, carry {percent(row['by_memories'])} of it "
            f"({percent(row['by_memories_low'])} to {percent(row['by_memories_high'])}).{agrees}"
        )
    return told


SECTION = Section(
    {
        "behaviour_layers": Figure((MEMORIES, LAYERS), draw_layers, _caption_layers),
        "behaviour_sets": Figure((SETS,), draw_sets, _caption_sets),
    },
    summarize,
    after=_tables,
)
