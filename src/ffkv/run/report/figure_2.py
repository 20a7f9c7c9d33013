"""Figure 2: the shares of trigger examples that have shallow patterns, semantic patterns, both or none."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, by_layer
from ffkv.run.report.drawing import PAPER_LAYERS, Panel, shares_by, stacked_panels
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.wording import course, rows, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

CATEGORIES = ["shallow", "shallow and semantic", "semantic", "none"]
SHARES, COUNTS = "figure_2_categories", "figure_2_pattern_counts"
BY_ANNOTATOR = "figure_2_by_annotator"
LONGEST_NAME = 24


def draw(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Stacked bars per layer: trigger examples, random prefixes, what each annotator says, and the paper's figure."""
    categories, annotated, layers = run.table(SHARES), judged(run), len(run.anatomy.layers)
    by_tests = ", by tests" if len(annotated) else ""
    panels: list[Panel] = [
        (title + by_tests, layers, shares_by(rows(categories, sample=sample), "category", CATEGORIES, layers))
        for sample, title in (("trigger", "trigger examples"), ("random", "random prefixes"))
    ]
    panels += [
        (person_or_machine(annotator), layers, shares_by(own, "category", CATEGORIES, layers))
        for annotator, own in annotated.groupby("annotator", sort=False)
    ]
    if paper:
        panels.append(("the paper's, judged by a person", PAPER_LAYERS, paper))
    return stacked_panels(panels, paper=bool(paper))


def caption(run: Run) -> Caption:
    """Names the samples, their sizes and the definition of a pattern."""
    keys, counts = run.settings.keys, run.table(COUNTS)
    examples = rows(run.table(SHARES), sample="trigger")
    in_triggers, in_random = rows(counts, sample="trigger"), rows(counts, sample="random")
    text = (
        f"Patterns in the {keys.pattern_triggers} strongest trigger examples of {number(in_triggers['keys'].sum())} "
        f"random keys: up to {number(keys.per_layer)} keys per layer, {number(examples['prefixes'].sum())} trigger "
        f"examples in all. A pattern is a feature that at least {keys.minimum_prefixes} of a key's trigger examples "
        f"share, and that is more frequent in them than in {number(keys.background_prefixes)} random prefixes of the "
        f"corpus, at a false discovery rate of {percent(keys.false_discovery_rate)} per layer and family. Shallow "
        "patterns concern the form of the text, semantic patterns its subject. A key has "
        f"{_average(in_triggers)} patterns on average. The next panel shows the "
        "same search in equally many random prefixes, which gives the patterns that arise by chance: "
        f"{_average(in_random)} on average."
    )
    if len(annotated := judged(run)):
        text += _judges(run, annotated)
    if run.settings.report.paper_curves:
        text += " The last panel is the paper's figure: 160 keys of a model with 16 layers, judged by a person."
    return Caption(text, _description(examples))


def _average(counts: pd.DataFrame) -> str:
    """Returns the mean number of patterns per key; a dash if there is no key."""
    return f"{weighted_mean(counts, 'patterns_per_key', 'keys'):.1f}" if counts["keys"].sum() else "–"


def judged(run: Run) -> pd.DataFrame:
    """Shares of prefixes of each category, as people and then machines judged them; no rows if nobody did.

    Layers without a judged key have shares of 0.
    """
    if BY_ANNOTATOR not in run.tables:
        return pd.DataFrame(columns=["annotator"])
    table = run.table(BY_ANNOTATOR)
    table = table[table["annotator"] != "tests"].assign(share=lambda table: table["share"].fillna(0))
    return table.sort_values("annotator", key=lambda names: names.str.startswith("machine:"), kind="stable")


def person_or_machine(annotator: str) -> str:
    """Returns an annotator as a title: "anna, a person". A long name shows only its end."""
    kind, _, name = annotator.partition(":")
    return f"{name if len(name) <= LONGEST_NAME else '…' + name[-LONGEST_NAME:]}, a {kind}"


def _judges(run: Run, annotated: pd.DataFrame) -> str:
    """Says who judged how many keys, and how often random prefixes."""
    about = run.table("annotators").set_index("annotator")
    told = [
        f"{person_or_machine(annotator)} ({number(about.loc[annotator, 'keys'])} keys"
        + (
            f"; a pattern in {percent(about.loc[annotator, 'false_positive_rate'])} of"
            f" {number(about.loc[annotator, 'controls'])} keys of random prefixes)"
            if about.loc[annotator, "controls"]
            else ")"
        )
        for annotator in annotated["annotator"].unique()
    ]
    return (
        f" Further panels show who judged some of the same keys, without knowing layer and memory: {'; '.join(told)}."
    )


def _description(examples: pd.DataFrame) -> str:
    with_pattern = (1 - rows(examples, category="none").set_index("layer")["share"]).reset_index()
    return (
        "Stacked bars per layer: shallow, shallow and semantic, semantic, none. Trigger examples with a pattern: "
        f"{course(with_pattern, 'share')}."
    )


CURVES = [
    Curve(category, by_layer(SHARES, "share", sample="trigger", category=category), stacked=True)
    for category in CATEGORIES[:-1]
]
FIGURE = Figure((SHARES, COUNTS), draw, caption, curves=(*CURVES,), more_tables=(BY_ANNOTATOR, "annotators"))
