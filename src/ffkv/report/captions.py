"""What each figure shows, on how much data, by which definition. Each caption can be understood alone."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from ffkv.report.drawing import PAPER_LAYERS
from ffkv.report.figures import CASES
from ffkv.report.results import TRAINING, Results
from ffkv.report.text import change, number, percent

INTERVALS = "Bars are 95 % intervals."
BOX = "A box spans the quartiles, its line is the median; whiskers reach the last points within 1.5 box heights."
PROJECTIONS = {
    "head": "A vector's prediction is the top token of the model's own head, final norm included.",
    "unembedding": "A vector's prediction is the top token of its product with the output embedding, without the norm.",
}


@dataclass(frozen=True)
class Caption:
    """The words around a figure.

    title: one line. text: the caption. description: what there is to see, in words, for those who do not see it.
    """

    title: str
    text: str
    description: str


def course(table: pd.DataFrame, value: str, written: Callable[[float], str] = percent) -> str:
    """How a value runs over the layers: from the first to the last, and where it is lowest and highest in between."""
    known = table.dropna(subset=[value])
    if known.empty:
        return "nothing to show"
    first, last = known.iloc[0], known.iloc[-1]
    extremes = {"lowest": known.loc[known[value].idxmin()], "highest": known.loc[known[value].idxmax()]}

    def at(row: pd.Series) -> str:
        return f"{written(row[value])} in layer {int(row['layer']) + 1}"

    if len(known) == 1:
        return at(first)
    if known[value].nunique() == 1:
        return f"{written(first[value])} in every layer"
    between = [f"{name} {at(row)}" for name, row in extremes.items() if row[value] not in (first[value], last[value])]
    return f"from {at(first)} to {at(last)}" + (f" ({', '.join(between)})" if between else "")


def rows(table: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    """The rows of a table whose columns have the given values."""
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def weighted_mean(table: pd.DataFrame, value: str, weight: str) -> float:
    """The mean of a column, each row counting as often as `weight` says; NaN where none counts."""
    total = table[weight].sum()
    return (table[value] * table[weight]).sum() / total if total else float("nan")


def paper_line(results: Results, text: str) -> str:
    """A sentence on what is drawn of the paper; empty where nothing is."""
    if not results.settings.report.paper_curves or results.layers == 1:
        return ""
    return f" {text}" + (" Its layers stand at the same relative depth." if results.layers != PAPER_LAYERS else "")


def figure_2(results: Results) -> Caption:
    """Patterns in trigger examples."""
    keys, summary = results.settings.keys, results.tables["keys/patterns"]
    examples = rows(results.tables["keys/categories"], sample="trigger")
    covered = (1 - rows(examples, category="none").set_index("layer")["share"]).reset_index()
    found, chance = (rows(summary, sample=sample) for sample in ("trigger", "random"))
    each, random = (weighted_mean(table, "patterns_per_key", "keys") for table in (found, chance))
    text = (
        f"What the {keys.pattern_triggers} strongest trigger examples of {number(found['keys'].sum())} random keys "
        f"have in common (up to {number(keys.per_layer)} keys a layer, {number(examples['prefixes'].sum())} trigger "
        f"examples). A pattern stands in at least {keys.minimum_prefixes} of a key's prefixes and is more frequent "
        f"there than in {number(keys.background_prefixes)} random prefixes of the corpus, at a false discovery rate "
        f"of {percent(keys.false_discovery_rate)} by layer and family. Shallow patterns are about the form of the "
        f"text, semantic ones about its subject. A key has {each:.1f} patterns on average. Beside it, the same search "
        f"in as many random prefixes: what chance alone gives, {random:.1f} patterns on average."
    )
    if results.settings.report.paper_curves:
        text += " At the right the paper's figure: 160 keys of a 16-layer model, judged by a person."
    description = (
        "Stacked bars by layer: shallow, shallow and semantic, semantic, none. Trigger examples with a pattern: "
        f"{course(covered, 'share')}."
    )
    return Caption("Patterns in trigger examples", text, description)


def figure_3(results: Results) -> Caption:
    """Removal of tokens."""
    table = results.tables["keys/removal"]
    last = rows(table, removed="last")
    text = (
        "Mean relative change of a key's memory coefficient when the first, the last or a random other token of its "
        f"trigger example is removed: {number(last['keys'].sum())} keys, up to "
        f"{results.settings.keys.removal_triggers} trigger examples each, {number(last['triggers'].sum())} in all "
        f"({number(last['skipped'].sum())} left out, too short to lose a token). {INTERVALS}"
    )
    text += paper_line(results, "Grey lines are the paper's.")
    runs = {removed: course(rows(table, removed=removed), "change", change) for removed in ("first", "random", "last")}
    described = "; ".join(f"{removed} token removed: {run}" for removed, run in runs.items())
    return Caption("Removing a token from trigger examples", text, f"Lines by layer. {described}.")


def figure_4(results: Results) -> Caption:
    """Agreement of values with their keys' triggers."""
    table = results.tables["values/agreement"]
    own, permuted = (rows(table, source=source) for source in ("trigger", "permuted"))
    text = (
        "How often the token that a value predicts is the token that follows its key's strongest trigger example in "
        f"the corpus: {number(own['agreeing'].sum())} of {number(own['keys'].sum())} values. Left out are "
        f"{number(own['dead'].sum())} keys without a trigger example. "
        f"{PROJECTIONS[results.settings.values.projection]} Three baselines: the keys of a layer permuted (mean and "
        "middle 95 % of 1,000 permutations), and in place of the trigger's next token one drawn from the corpus, or "
        f"any token (1 in {number(results.anatomy.vocabulary)}). Bars are 95 % intervals."
    )
    negative = rows(table, source="negative")
    if len(negative):
        text += (
            " A negative coefficient promotes the bottom of its value, the token that the value predicts least: how often "
            "that is what follows the key's most negative trigger example, "
            f"{number(negative['agreeing'].sum())} of {number(negative['keys'].sum())} values."
        )
    text += paper_line(results, "The grey line is the paper's.")
    description = f"Lines by layer. Agreement: {course(own, 'rate')}. With keys permuted: {course(permuted, 'rate')}."
    if len(negative):
        description += f" Bottom of values and negative trigger examples: {course(negative, 'rate')}."
    return Caption("Agreement between values and trigger examples", text, description)


def figure_5(results: Results) -> Caption:
    """Rank of the trigger's next token."""
    table = results.tables["values/rank"]
    text = (
        "Where the next token of a key's strongest trigger example stands in its value's prediction: the number of "
        f"tokens with a higher logit, so that 0 is best. {number(table['keys'].sum())} keys with a trigger example; "
        f"the vocabulary has {number(results.anatomy.vocabulary)} tokens. {BOX} The paper's ranks are of another "
        "vocabulary (267,744 tokens, in classes) and are not drawn: their median fell from 9,611 in its first layer "
        "to 5,139 in its last."
    )
    description = f"Boxes by layer. Median rank: {course(table, 'median', number)}."
    return Caption("Rank of the next token in the value's prediction", text, description)


def figure_6(results: Results) -> Caption:
    """Agreement by top probability."""
    table = results.tables["values/probability"]
    text = (
        f"The agreement of figure 4 by how sure a value is of its prediction: {number(table['values'].sum())} values "
        f"of all layers in {len(table)} bins of their top probability, equally wide, with the number of values above "
        f"each bar. {INTERVALS}"
    )
    if results.settings.report.paper_curves:
        text += (
            " At the right the paper's bins, of unknown size; its probabilities are of another head, on another scale."
        )
    filled = table[table["values"] > 0]
    description = "Bars by top probability; no value to show." if filled.empty else _highest_bin(filled.iloc[-1])
    return Caption("Agreement by the value's top probability", text, description)


def _highest_bin(row: pd.Series) -> str:
    edges = f"from {number(row['low'])} to {number(row['high'])}"
    agreeing = f"{percent(row['rate'])} of {number(row['values'])} values agree"
    return f"Bars by top probability. In the highest bin, {edges}, {agreeing}."


def figure_7(results: Results) -> Caption:
    """Active memories."""
    active, effective = results.tables["composition/active"], results.tables["composition/effective"]
    activation, mass = results.anatomy.activation, percent(results.settings.composition.mass)
    text = (
        f"Left: the share of a layer's memories with a positive coefficient, in {number(active['prefixes'].max())} "
        f"validation prefixes. {BOX} Right: the effective number of memories, the fewest that carry {mass} of the "
        "summed contribution |m|·‖v‖ (median, and quartiles as a band), and the participation ratio of the "
        f"contributions (median), of {number(effective['memories'].max())} memories."
    )
    if "relu" not in activation.lower():
        text += f" Under this model's activation, {activation}, hardly any coefficient is zero; small ones count too."
    if any(matrix.experts for layer in results.anatomy.layers for matrix in layer.second_matrices):
        text += " The coefficients of an expert that a prefix is not sent to are zero, its memories not active."
    if results.signed_layers:
        text += (
            " Memories with a negative coefficient are not active, but they carry: the effective number counts them."
        )
    text += paper_line(results, "Grey is the median of the paper's model, which has ReLU.")
    description = (
        f"Boxes by layer. Median share of active memories: {course(active, 'median')}. Median effective number of "
        f"memories: {course(effective, 'effective_median', number)}."
    )
    return Caption("Active memories", text, description)


def figure_8(results: Results) -> Caption:
    """Prefixes without an agreeing memory."""
    table, cases = results.tables["composition/agreement"], results.tables["composition/cases"]
    pooled = rows(cases, layer=-1).iloc[0]
    stop_word, stop_word_base, short, short_base = (
        percent(pooled[name]) for name in ("stop_word_share", "base_stop_word_share", "short_share", "base_short_share")
    )
    text = (
        f"Share of {number(table['prefixes'].max())} validation prefixes in which no memory's prediction is the "
        "layer's, so that the layer's is composed: among active memories (m > 0), and among all. "
        f"{PROJECTIONS[results.settings.values.projection]} {INTERVALS} In {number(pooled['cases'])} cases of prefix "
        f"and layer an active memory does agree. The next token is then a stop word in {stop_word} (in all prefixes: "
        f"{stop_word_base}; the paper: 60 %), and the prefix has fewer than "
        f"{results.settings.composition.short_prefix} words in {short} (in all prefixes: {short_base}; the paper: 43 "
        "%)."
    )
    text += paper_line(results, "The grey line is the paper's.")
    active, everything = (course(rows(table, reading=reading), "share") for reading in ("active", "all"))
    description = f"Lines by layer. No active memory agrees: {active}. No memory at all: {everything}."
    return Caption("Predictions that no memory made", text, description)


def figure_9(results: Results) -> Caption:
    """Residual and final prediction."""
    table = results.tables["refinement/residual"]
    text = (
        "How often the residual stream, before a layer's feed-forward output is added, already predicts what the "
        f"model will predict: {number(table['prefixes'].max())} validation prefixes, read out by the model's own "
        f"head. {INTERVALS}"
    )
    text += paper_line(results, "The grey line is the paper's.")
    return Caption("The residual's prediction and the model's", text, f"A line by layer: {course(table, 'share')}.")


def figure_10(results: Results) -> Caption:
    """Probability of the final prediction."""
    table = results.tables["refinement/probability"]
    text = (
        "The probability that the residual stream, read out by the model's head before a layer's feed-forward output "
        f"is added, gives to the token that the model will predict: {number(table['prefixes'].max())} validation "
        f"prefixes. {BOX}"
    )
    text += paper_line(results, "Grey is the paper's median.")
    return Caption("Probability of the model's prediction", text, f"Boxes by layer. Median: {course(table, 'median')}.")


def figure_11(results: Results) -> Caption:
    """Where the block's prediction comes from."""
    table, prefixes = results.tables["refinement/breakdown"], results.tables["refinement/residual"]["prefixes"].max()
    text = (
        "What a block's output predicts, beside the residual r and the feed-forward output y whose sum it is, in "
        f"{number(prefixes)} validation prefixes. Residual: what r alone predicts. Agreement: what both predict. Ffn: "
        "what y alone predicts. Composition: r and y differ, and the output predicts a third token. Other: r and y "
        "agree, and the output predicts another token, which a norm or a head in classes makes possible."
    )
    if results.settings.report.paper_curves:
        text += " At the right the paper's model; it counts no other cases."
    runs = {case: course(rows(table, case=case), "share") for case in CASES}
    described = "; ".join(f"{case}: {run}" for case, run in runs.items())
    return Caption("Where a block's prediction comes from", text, f"Stacked bars by layer. {described}.")


def training(results: Results) -> Caption:
    """The embedded model's training."""
    table = results.tables[TRAINING]
    last = rows(table, split="validation").iloc[-1]
    text = (
        f"Loss of the model that this workflow trained: {number(table['step'].max())} steps, "
        f"{number(table['tokens'].max())} tokens. At the end the perplexity on held-out documents is "
        f"{number(last['perplexity'])}."
    )
    description = f"Lines by training step; the validation loss ends at {number(last['loss'])} nats a token."
    return Caption("Training of the embedded model", text, description)
