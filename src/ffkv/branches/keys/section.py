"""What the page shows and says about keys: figures 2 and 3, activity, ties, and what annotators say."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Line, Panel, Units, by_layer
from ffkv.run.report.page_tables import agreement_of_annotators, data_table, scores_of_machines
from ffkv.run.report.section import Figure, Section, TableBlock, caption, figure_of_lines, numbers
from ffkv.run.report.wording import PAPER_LAYERS, note, rows, written
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent, visible

CATEGORIES = ["shallow", "shallow and semantic", "semantic", "none"]
SHARES, COUNTS = "figure_2_categories", "figure_2_pattern_counts"
BY_ANNOTATOR = "figure_2_by_annotator"
LONGEST_NAME = 24  # characters of the name of an annotator
REMOVAL = "figure_3_removal"
REMOVED = ("first", "random", "last")


def draw_patterns(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Stacked bars per layer: trigger examples, what each annotator says, and the paper's. Marks: random prefixes."""
    categories, annotated, layers = run.table(SHARES), judged(run), len(run.anatomy.layers)
    of_triggers, of_random = (
        drawing.shares_by(rows(categories, sample=sample), "category", CATEGORIES, layers)
        for sample in ("trigger", "random")
    )
    by_chance = np.sum([of_random[name] for name in CATEGORIES[:-1]], 0)
    panels: list[drawing.Panel] = [
        ("trigger examples, by tests" if len(annotated) else "trigger examples", layers, of_triggers)
    ]
    panels += [
        (person_or_machine(annotator), layers, drawing.shares_by(own, "category", CATEGORIES, layers))
        for annotator, own in annotated.groupby("annotator", sort=False)
    ]
    if paper:
        panels.append(("the paper's, judged by a person", PAPER_LAYERS, paper))
    return drawing.stacked_panels(panels, paper=bool(paper), marks=("random prefixes with a pattern", by_chance))


def _patterns(run: Run) -> dict[str, Any]:
    """Returns what the caption has beside tables: which categories are patterns, their shares by layer, who judged."""
    table = run.table(SHARES)
    none = rows(table, sample="trigger", category="none").set_index("layer")["share"]
    found = table.assign(found=table["category"] != "none")
    told = []  # of each annotator how many keys it judged, and how often it found a pattern in random prefixes
    for annotator in judged(run)["annotator"].unique():
        about = rows(run.table("annotators"), annotator=annotator).iloc[0]
        rate, controls = percent(about["false_positive_rate"]), about["controls"]
        by_chance = f"; a pattern in {rate} of {number(controls)} keys of random prefixes" if controls else ""
        told.append(f"{person_or_machine(annotator)} ({number(about['keys'])} keys{by_chance})")
    return {"categories": found, "with_pattern": (1 - none).reset_index(), "judges": told}


def judged(run: Run) -> pd.DataFrame:
    """Shares of categories as people, then machines judged prefixes: 0 of a layer not judged; no rows if nobody did."""
    if BY_ANNOTATOR not in run.tables:
        return pd.DataFrame(columns=["annotator"])
    table = run.table(BY_ANNOTATOR)
    table = table[table["annotator"] != "tests"].assign(share=lambda table: table["share"].fillna(0))
    return table.sort_values("annotator", key=lambda names: names.str.startswith("machine:"), kind="stable")


def person_or_machine(annotator: str) -> str:
    """Returns an annotator as a title: "anna, a person". A long name shows only its end."""
    kind, _, name = annotator.partition(":")
    return f"{name if len(name) <= LONGEST_NAME else '…' + name[-LONGEST_NAME:]}, a {kind}"


def _family(run: Run, name: str) -> str:
    """Returns the share of the trigger examples of all layers that have a pattern of a family, "shallow" or "semantic"."""
    examples = rows(run.table(SHARES), sample="trigger")
    found = examples[examples["category"].isin([name, "shallow and semantic"])]
    all_of = examples["prefixes"].sum()
    return percent(found["prefixes"].sum() / all_of) if all_of else "–"


def _key_tables(run: Run) -> list[TableBlock]:
    activity = [("How often keys fire, per layer", data_table(run, "activity"))]
    words, beginning = written(__package__, "activity", run), visible(run.files.corpora["train"]["beginning"])
    first_tokens = Markup("{} {}").format(words["first_tokens"], beginning)
    blocks = [TableBlock(text=first_tokens), TableBlock(text=words["ties"], folded=activity)]
    if "precision" in run.tables:
        folded = [("Effect of the weights' type on trigger examples, per layer", data_table(run, "precision"))]
        blocks.append(TableBlock(text=note(__package__, "precision", dtype=run.anatomy.dtype), folded=folded))
    elif run.settings.model.dtype != "float32":
        blocks.append(TableBlock(text=note(__package__, "no_precision", dtype=run.anatomy.dtype)))
    return blocks


def _agreement(run: Run) -> list[TableBlock]:
    blocks = [
        ("agreement", "agreement", "Agreement between annotators", agreement_of_annotators),
        ("machine_scores_by_layer", "machines", "Labels of machines", scores_of_machines),
    ]
    return [
        TableBlock(anchor, heading, note(__package__, anchor), shown(run), [("All columns", data_table(run, table))])
        for table, anchor, heading, shown in blocks
        if table in run.tables and len(run.table(table))
    ]


def _removal_line(removed: str) -> Line:
    def numbers(run: Run) -> pd.DataFrame:
        found = rows(run.files.details("keys/removal"), removed=removed).dropna(subset=["change"])
        return pd.DataFrame({"layer": found["layer"], "unit": found["memory"], "value": found["change"]})

    return Line(
        f"{removed} token", REMOVAL, "median", {"removed": removed}, bars_of="change",
        curve=f"{removed} token removed, median (%)", share=False, units=Units("memories", numbers, median=True), paper=removed,
    )  # fmt: skip


PATTERN_CURVES = [
    Curve(category, by_layer(SHARES, "share", sample="trigger", category=category), stacked=True)
    for category in CATEGORIES[:-1]
]
REMOVAL_PANEL = Panel(
    [*map(_removal_line, REMOVED)], "change of the coefficient (%)", zero={"color": "0.3", "linewidth": 0.8}
)
OF_ANNOTATORS = (BY_ANNOTATOR, "annotators")
SECTION = Section(
    {
        "figure_2": Figure(
            (SHARES, COUNTS), draw_patterns, caption(__package__, "figure_2", _patterns), PATTERN_CURVES, OF_ANNOTATORS
        ),
        "figure_3": figure_of_lines([REMOVAL_PANEL], caption(__package__, "figure_3"), one_axis=True),
    },
    numbers(__package__, family=_family),
    _key_tables,
    _agreement,
)
