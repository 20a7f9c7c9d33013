"""What the page shows and says about keys: figures 2 and 3, activity, ties, and what annotators say."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Units, by_layer
from ffkv.run.report.page_tables import agreement_of_annotators, data_table, scores_of_machines
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import both, course, goes, paper_line, rows, share_with_pattern, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import change, number, percent, visible

CATEGORIES = ["shallow", "shallow and semantic", "semantic", "none"]
SHARES, COUNTS = "figure_2_categories", "figure_2_pattern_counts"
BY_ANNOTATOR = "figure_2_by_annotator"
LONGEST_NAME = 24  # characters of the name of an annotator
REMOVAL = "figure_3_removal"
REMOVED = ("first", "random", "last")
FAR = 10  # % between mean and median over keys from which the caption names them


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
        panels.append(("the paper's, judged by a person", drawing.PAPER_LAYERS, paper))
    return drawing.stacked_panels(panels, paper=bool(paper), marks=("random prefixes with a pattern", by_chance))


def _caption_patterns(run: Run) -> Caption:
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
        f"{_average(in_triggers)} patterns on average. Marks: the share of random prefixes with a pattern, by the same "
        "search in equally many of them. These patterns arise by chance: "
        f"{_average(in_random)} on average."
    )
    if len(annotated := judged(run)):
        text += _judges(run, annotated)
    if run.settings.report.paper_curves:
        text += " The last panel is the paper's figure: 160 keys of a model with 16 layers, judged by a person."
    with_pattern = (1 - rows(examples, category="none").set_index("layer")["share"]).reset_index()
    own, by_chance = (_with_pattern(rows(run.table(SHARES), sample=sample)) for sample in ("trigger", "random"))
    shows = f"{percent(own)} of trigger examples have a pattern, and {percent(by_chance)} of random prefixes."
    description = (
        "Stacked bars per layer: shallow, shallow and semantic, semantic, none. Trigger examples with a pattern: "
        f"{course(with_pattern, 'share')}."
    )
    return Caption(shows, text, description)


def _with_pattern(shares: pd.DataFrame) -> float:
    """Returns the share of prefixes that have a pattern, over all layers; NaN without prefixes."""
    with_pattern = shares.loc[shares["category"] != "none", "prefixes"].sum()
    return with_pattern / total if (total := shares["prefixes"].sum()) else float("nan")


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
    told = []
    for annotator in annotated["annotator"].unique():
        keys, controls, rate = about.loc[annotator, ["keys", "controls", "false_positive_rate"]]
        by_chance = f"; a pattern in {percent(rate)} of {number(controls)} keys of random prefixes" if controls else ""
        told.append(f"{person_or_machine(annotator)} ({number(keys)} keys{by_chance})")
    others = "; ".join(told)
    return f" Further panels show who judged some of the same keys, without knowing layer and memory: {others}."


def draw_removal(run: Run, paper: Mapping[str, Sequence[float]] | None) -> Drawing:
    """Lines per layer, medians over keys: the first, a random and the last token removed. Bars are of the means."""
    removal = run.table(REMOVAL)
    figure, (axes,) = drawing.canvas()
    for style, removed in enumerate(REMOVED):
        drawing.curve(axes, rows(removal, removed=removed), "median", f"{removed} token", style, 3, bars_of="change")
        if paper:
            drawing.paper_curve(axes, paper[removed], len(run.anatomy.layers), f"the paper: {removed}", style)
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_ylabel("change of the coefficient (%)")
    drawing.layer_axis(axes, len(run.anatomy.layers))
    drawing.end_at_points(axes)
    drawing.legend(figure, axes)
    return figure


def _caption_removal(run: Run) -> Caption:
    table = run.table(REMOVAL)
    counts = []
    for removed in REMOVED:
        sums = rows(table, removed=removed)[["keys", "triggers", "skipped"]].sum()
        keys, triggers, skipped = map(number, sums)
        counts.append(
            f"{removed.capitalize()} token: {keys} keys with {triggers} trigger examples, {skipped} left out."
        )
    text = (
        "Relative change of a key's memory coefficient when the first, the last or another random token of its "
        f"trigger example is removed: the median over keys, of the mean of each key. A key has up to {run.settings.keys.removal_triggers} trigger examples. {' '.join(counts)} "
        f"Those that are too short to lose such a token are left out. Bars are 95 % intervals of the mean over keys.{_outliers(table)}"
    ) + paper_line(run, "Grey lines are the paper's.")
    courses = (course(rows(table, removed=removed), "median", change) for removed in REMOVED)
    told = "; ".join(f"{removed} token removed: {said}" for removed, said in zip(REMOVED, courses))
    first, last = (goes(rows(table, removed=removed), "median", change) for removed in ("first", "last"))
    shows = f"Without its last token, the change of a coefficient {last}; without its first token, it {first}."
    return Caption(shows, text, f"Lines per layer. {told}.")


def _outliers(table: pd.DataFrame) -> str:
    """Says where few keys make the mean, with a space in front; else ""."""
    apart = (table["change"] - table["median"]).abs()
    if not apart.max() > FAR:
        return ""
    far = table.loc[apart.idxmax()]
    return (
        f" The largest difference between mean and median over keys: {far['removed']} token, layer {far['layer']}, mean"
        f" {change(far['change'])}, median {change(far['median'])}. Where a coefficient is near 0, its relative change is"
        " large, and a few such keys make the mean."
    )


NO_PRECISION = "The model runs in {dtype}. What that does to trigger examples was not measured: keys.precision is off."
PRECISION = (
    "The coefficients of the sampled keys' trigger examples were computed again in float32, with the same weights "
    "({dtype}). The table shows the error of the coefficients relative to themselves, the share of keys whose first "
    "trigger example remains the first, and the share of trigger examples in the upper half of a key's list that remain "
    "there. It does not show the effect of rounding the weights themselves."
)
AGREEMENT = (
    "How far annotators agree about the same keys. Prefixes: whether both give a prefix the same category of figure 2. Patterns: "
    "how many prefixes the patterns of both share, of those that either has (Jaccard index, patterns matched one to one). “Raw” is "
    "the share of equal judgements. Kappa and alpha are 0 if annotators agree as often as by chance, and 1 if they always agree. "
    "The interval is over keys. People and machines saw neither the layer nor the memory, and some of their keys "
    "were random prefixes."
)
MACHINES = (
    "How good the labels are by which language models explain memories. A label is made from some trigger examples of a memory, "
    "and scored on others, beside prefixes on which the memory is silent. Detection and fuzzing: the mean of the shares of both "
    "kinds that were told rightly. Of “the same word”, both kinds end with the same word. Simulation: the correlation of expected "
    "and true coefficients. Intruder: the share of sets in which the silent prefix was found, without a label. The interval is "
    "over memories."
)
TIED = (
    "Coefficients that differ by less than 0.01 % are tied, and the prefix that comes first in the corpus counts. Ties are "
    "common where many prefixes reach the lowest point of an activation function such as GELU, and in the first layer of "
    "models whose attention and feed-forward layer run in parallel: it sees the last token only."
)
MANY_FIRST_TOKENS = 0.1  # share of a layer's trigger examples that have one token alone, above which the page warns


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Layers in which nothing fires, patterns, and the removal of tokens."""
    activity = run.table("activity")
    silent = activity.loc[activity["dead"] == activity["keys"], "layer"].tolist()
    where = "any layer" if len(silent) == len(activity) else f"layer {', '.join(map(str, silent))}"
    fires = f"No key of {where} fires: none has a trigger example, so all that follows about trigger examples is without them."
    keys = rows(run.table(COUNTS), sample="trigger")["keys"].sum()

    def with_pattern(sample: str) -> str:
        return both(lambda each: percent(share_with_pattern(rows(each.table(COUNTS), sample=sample))), run, control)

    def family(name: str) -> str:
        return both(lambda each: course(_shares_of(each, name), "share"), run, control)

    def removal(removed: str) -> str:
        return both(
            lambda each: change(weighted_mean(rows(each.table(REMOVAL), removed=removed), "change", "keys")),
            run,
            control,
        )

    return [
        *([fires] if silent else []),
        f"Of {number(keys)} keys, {with_pattern('trigger')} have a pattern in their trigger examples. In random prefixes, "
        f"{with_pattern('random')} have one. Share of trigger examples with a shallow pattern: {family('shallow')}. Share with "
        f"a semantic pattern: {family('semantic')}.",
        f"When the last token of a trigger example is removed, the coefficient of its key changes by {removal('last')} on "
        f"average. When the first token is removed, it changes by {removal('first')}.",
    ]


def _shares_of(run: Run, family: str) -> pd.DataFrame:
    """Share of the trigger examples of each layer that have a pattern of a family."""
    examples = rows(run.table(SHARES), sample="trigger")
    found = examples[examples["category"].isin([family, "shallow and semantic"])]
    return found.groupby("layer", as_index=False)["share"].sum()


def _key_tables(run: Run) -> list[TableBlock]:
    activity = [("How often keys fire, per layer", data_table(run, "activity"))]
    blocks = [TableBlock(text=describe_first_tokens(run)), TableBlock(text=describe_ties(run), folded=activity)]
    if "precision" in run.tables:
        folded = [("Effect of the weights' type on trigger examples, per layer", data_table(run, "precision"))]
        blocks.append(TableBlock(text=PRECISION.format(dtype=run.anatomy.dtype), folded=folded))
    elif run.settings.model.dtype != "float32":
        blocks.append(TableBlock(text=NO_PRECISION.format(dtype=run.anatomy.dtype)))
    return blocks


def describe_first_tokens(run: Run) -> Markup:
    """Says how many trigger examples have one token alone, and warns if these are many."""
    activity = run.table("activity")
    many = activity[activity["one_token"] > MANY_FIRST_TOKENS]
    text = f"Trigger examples of one token alone: {course(activity, 'one_token')}."
    if len(many):
        layers = ", ".join(map(str, many["layer"]))
        text += (
            f" Warning: they are more than {percent(MANY_FIRST_TOKENS)} in layer{'s' * (len(many) > 1)} {layers}. Many"
            " models treat the first position apart, whatever token is there. Then these keys detect the position, not"
            " the word."
        )
    return Markup("{} {}").format(text, visible(run.files.corpora["train"]["beginning"]))


def describe_ties(run: Run) -> str:
    """Says for how many keys the corpus decides which trigger example is the first, of both signs."""
    activity = run.table("activity")
    of_signs = {"trigger example": "tied", "negative trigger example": "negative_tied"}
    told = [
        f"The first {which} is tied with the second for {number(activity[column].sum())} of"
        f" {number(activity['keys'].sum())} keys: {course(activity.assign(tied=activity[column] / activity['keys']), 'tied')}."
        for which, column in of_signs.items()
        if column in activity
    ]
    return " ".join([*told, TIED])


def _agreement(run: Run) -> list[TableBlock]:
    """Returns how far annotators agree, and how good the labels of machines are, if there are any."""
    found = []
    if "agreement" in run.tables and len(run.table("agreement")):
        folded = [("All columns", data_table(run, "agreement"))]
        table = agreement_of_annotators(run)
        found.append(TableBlock("agreement", "Agreement between annotators", AGREEMENT, table, folded))
    if "machine_scores_by_layer" in run.tables and len(run.table("machine_scores_by_layer")):
        folded = [("All columns", data_table(run, "machine_scores_by_layer"))]
        found.append(TableBlock("machines", "Labels of machines", MACHINES, scores_of_machines(run), folded))
    return found


def _removal_curve(removed: str) -> Curve:
    def numbers(run: Run) -> pd.DataFrame:
        found = rows(run.files.details("keys/removal"), removed=removed).dropna(subset=["change"])
        return pd.DataFrame({"layer": found["layer"], "unit": found["memory"], "value": found["change"]})

    points, units = by_layer(REMOVAL, "median", removed=removed), Units("memories", numbers, median=True)
    return Curve(f"{removed} token removed, median (%)", points, share=False, units=units)


PATTERN_CURVES = [
    Curve(category, by_layer(SHARES, "share", sample="trigger", category=category), stacked=True)
    for category in CATEGORIES[:-1]
]
REMOVAL_CURVES = [_removal_curve(removed) for removed in REMOVED]
OF_ANNOTATORS = (BY_ANNOTATOR, "annotators")
SECTION = Section(
    {
        "figure_2": Figure((SHARES, COUNTS), draw_patterns, _caption_patterns, PATTERN_CURVES, OF_ANNOTATORS),
        "figure_3": Figure((REMOVAL,), draw_removal, _caption_removal, REMOVAL_CURVES),
    },
    summarize,
    _key_tables,
    _agreement,
)
