"""Summaries of figures 4 to 6 and of table 2: do values predict the tokens that follow their keys' trigger examples?

`table` has the rows of `BY_MEMORY` of all layers. Keys without a trigger example do not count. A function returns a table
of its figure (`tables`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers
from ffkv.base.intervals import boxes, wilson
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.values.settings import Values
from ffkv.branches.values.tables import FIGURE_4, FIGURE_6, PREDICTIVE_VALUES
from ffkv.corpus.corpus_file import Corpus

PERMUTATIONS = 1000


def summarize_values(given: Given, settings: Values = Values(), seed: int = 0) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups into the tables of figures 4 to 6 and of table 2.

    `settings`: `predictive` and `bins` are used. `seed`: of the permutations.
    """
    train, table = given.train, given.table("by_memory", given.train_identity, ("layer", "memory"))
    predictive, tokens = select_predictive(table, settings.predictive), given.token_texts
    return {
        "figure_4_agreement": summarize_agreement(table, given.competing.count_next_tokens(len(tokens)), seed),
        "figure_5_rank": summarize_rank(table),
        "figure_6_top_probability": summarize_top_probability(table, settings.bins),
        "table_2_predictive_values": describe_predictive(predictive, given.triggers, train, tokens),
        "table_2_predictive_layers": count_predictive(predictive, len(given.anatomy.layers)),
    }


class Agreement(NamedTuple):
    """Agreement of the keys of one layer."""

    agreeing: float  # number of keys that agree; for a baseline, the expected number
    rate: float  # `agreeing` per key; NaN if there is no key
    low: float  # lower end of the 95 % interval of the rate, or of the middle 95 % of random draws
    high: float  # upper end


def summarize_agreement(table: pd.DataFrame, unigram: np.ndarray, seed: int) -> pd.DataFrame:
    """Computes the agreement rate by layer, top(v_i) = w_i, beside its baselines (figure 4).

    The column `source` names the rate:

    - trigger: the rate itself, with a Wilson interval
    - permuted: baseline; keys and values of the same layer are paired at random: the exact expectation, and the middle
      95 % of 1,000 permutations
    - unigram: baseline; w is that of a random prefix that competes: the mean share of these prefixes that top(v_i)
      follows
    - uniform: baseline; w is drawn from the vocabulary: 1 / |V|
    - negative: the bottom token of v_i follows the first negative trigger example, with a Wilson interval; only if the
      table has negative trigger examples

    `unigram`: for how many competing prefixes each id is w [vocabulary].
    """
    frequency = unigram / max(unigram.sum(), 1)
    rows = []
    for layer, memories in table.groupby("layer"):
        keys = memories[memories["triggers"] > 0]
        sources = {"trigger": count_agreeing(keys["agrees"])}
        if len(keys):  # a layer of dead keys has no baselines
            top, w = keys["top_token"].to_numpy(), keys["next_token"].to_numpy()
            sources["permuted"] = permute(top, w, random_stream(seed, Purpose.PERMUTED_KEYS, int(layer)))
            for source, rate in (("unigram", frequency[top].mean()), ("uniform", 1 / len(frequency))):
                sources[source] = Agreement(rate * len(keys), rate, rate, rate)  # known exactly
        counts = (len(keys), len(memories) - len(keys))
        rows += [(layer, source, agreeing, *counts, *rates) for source, (agreeing, *rates) in sources.items()]
        if "negative_triggers" in memories:
            keys = memories[memories["negative_triggers"] > 0]
            agreeing, *rates = count_agreeing(keys["negative_agrees"])
            rows.append((layer, "negative", agreeing, len(keys), len(memories) - len(keys), *rates))
    return pd.DataFrame(rows, columns=FIGURE_4.names)


def count_agreeing(agrees: pd.Series) -> Agreement:
    """Counts the keys that agree [key]: number, and rate with a Wilson interval; NaN if there is no key."""
    agreeing, keys = int(agrees.sum()), len(agrees)
    low, high = wilson(agreeing, keys)
    return Agreement(agreeing, agreeing / keys if keys else np.nan, float(low), float(high))


def permute(top: np.ndarray, w: np.ndarray, generator: np.random.Generator) -> Agreement:
    """Computes the agreement of top(v_i) with the w_i of randomly permuted keys: expectation, and the middle 95 % of draws.

    Every value meets every key in one of n permutations. The expected number of agreements is therefore the sum over
    tokens of (number of values that predict it) times (number of keys that it follows), divided by n. `top` and `w` are
    top(v_i) and w_i, both [key].
    """
    n = len(top)
    tokens = np.union1d(top, w)
    predicted, following = (np.bincount(np.searchsorted(tokens, ids), minlength=len(tokens)) for ids in (top, w))
    rates = [(top == generator.permutation(w)).mean() for _ in range(PERMUTATIONS)]
    low, high = np.quantile(rates, [0.025, 0.975])
    pairs = int(predicted @ following)
    return Agreement(pairs / n, pairs / n**2, float(low), float(high))


def summarize_rank(table: pd.DataFrame) -> pd.DataFrame:
    """Computes a box per layer of the rank of the next token in the value's projection; 0 is best (figure 5)."""
    keys = table[table["triggers"] > 0]
    return boxes(keys, "rank", "keys").assign(tied=keys.groupby("layer")["tied"].sum().to_numpy())


def summarize_top_probability(table: pd.DataFrame, bins: int) -> pd.DataFrame:
    """Computes the agreement rate by the value's top probability, in `bins` bins of equal width (figure 6).

    There are no bins if no key has a trigger example.
    """
    keys = table[table["triggers"] > 0]
    if keys.empty:
        return pd.DataFrame(columns=FIGURE_6.names)
    edges = np.linspace(keys["top_probability"].min(), keys["top_probability"].max(), bins + 1)
    bin_of_key = np.clip(np.searchsorted(edges, keys["top_probability"], side="right") - 1, 0, bins - 1)
    values = np.bincount(bin_of_key, minlength=bins)
    agreeing = np.bincount(bin_of_key[keys["agrees"].to_numpy()], minlength=bins)
    rate = np.divide(agreeing, values, out=np.full(bins, np.nan), where=values > 0)
    columns = (edges[:-1], edges[1:], values, agreeing, rate, *wilson(agreeing, values))
    return pd.DataFrame(dict(zip(FIGURE_6.names, columns, strict=True)))


def select_predictive(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """Selects the `count` values with the highest top probability (table 2); ties go by layer and memory."""
    columns, ascending = ["top_probability", "layer", "memory"], [False, True, True]
    return table.sort_values(columns, ascending=ascending).head(count)


def count_predictive(predictive: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Counts the most predictive values by layer, and those whose prediction follows one of their triggers (table 2)."""
    counts = pd.DataFrame({"layer": np.arange(layers)})
    for name, rows in (("values", predictive), ("matching", predictive[predictive["matching"] > 0])):
        counts[name] = np.bincount(rows["layer"], minlength=layers)
    return counts


def describe_predictive(
    predictive: pd.DataFrame, triggers: Triggers, corpus: Corpus, tokens: Sequence[str]
) -> pd.DataFrame:
    """Describes each of the most predictive values with one trigger example (table 2).

    The trigger example is the first one that the prediction follows; the first one of all if there is none. The
    precision at t divides by t even if a key has fewer trigger examples. A dead key has empty texts.
    """
    texts, next_tokens = [], []
    for value in predictive.itertuples():
        key, rank = triggers.layer_offset[value.layer] + value.memory, max(value.first_match, 0)
        alive = triggers.count[key] > 0
        texts.append(corpus.prefix_text(triggers.sentence[key, rank], triggers.position[key, rank]) if alive else "")
        next_tokens.append(tokens[triggers.next_token[key, rank]] if alive else "")
    table = predictive.assign(
        token=[tokens[token] for token in predictive["top_token"]],
        precision=predictive["matching"] / triggers.coefficient.shape[1],
        prefix=texts,
        next_token=next_tokens,
    )
    return table[PREDICTIVE_VALUES.names].reset_index(drop=True)
