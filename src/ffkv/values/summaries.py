"""Do values predict what follows their keys' trigger examples? (paper section 4)"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers
from ffkv.intervals import boxes, wilson

PERMUTATIONS = 1000


def agreement(table: pd.DataFrame, unigram: np.ndarray, seed: int) -> pd.DataFrame:
    """Agreement rate by layer (figure 4): top(v_i) = w_i, of the keys that have a trigger, beside three baselines.

    - trigger: the rate itself, with a Wilson interval
    - permuted: keys against values of the same layer in random order: the exact expectation, and the middle 95 % of
      1,000 permutations
    - unigram: w drawn from the corpus, whatever the key: the mean corpus frequency of top(v_i)
    - uniform: w drawn from the vocabulary, 1 / |V|
    - negative (where negative coefficients are kept): the bottom token of v_i follows the first negative trigger, of the
      keys that have one, with a Wilson interval

    Args:
        table: of `compare`, all layers. unigram: how often each id occurs in the corpus [vocabulary].
    """
    frequency = unigram / max(unigram.sum(), 1)
    rows = []
    for layer, whole in table.groupby("layer"):
        keys = whole[whole["triggers"] > 0]
        rows += [
            _row(layer, source, whole, keys, rate)
            for source, rate in _rates(keys, frequency, seed + int(layer)).items()
        ]
        if "negative_triggers" in whole:
            keys = whole[whole["negative_triggers"] > 0]
            rows.append(_row(layer, "negative", whole, keys, _share(keys["negative_agrees"])))
    return pd.DataFrame(rows)


class Rate(NamedTuple):
    """A rate and what it may be: an interval around it, or the middle 95 % of random draws of it."""

    rate: float
    low: float
    high: float


def _row(layer: int, source: str, whole: pd.DataFrame, keys: pd.DataFrame, found: Rate) -> dict:
    counts = {"agreeing": np.nan_to_num(found.rate) * len(keys), "keys": len(keys), "dead": len(whole) - len(keys)}
    return {"layer": layer, "source": source, **counts, **found._asdict()}


def _share(agrees: pd.Series) -> Rate:
    """The share of keys that agree, with its Wilson interval; no keys have a rate of nothing."""
    low, high = wilson(agrees.sum(), len(agrees))
    return Rate(agrees.mean() if len(agrees) else np.nan, float(low), float(high))


def _rates(keys: pd.DataFrame, frequency: np.ndarray, seed: int) -> dict[str, Rate]:
    """The rate of positive triggers and its baselines; a layer of dead keys has none of these."""
    if keys.empty:
        return {"trigger": _share(keys["agrees"])}
    tops, w = keys["top_token"].to_numpy(), keys["next_token"].to_numpy()
    by_unigram, uniform = frequency[tops].mean(), 1 / len(frequency)
    return {
        "trigger": _share(keys["agrees"]),
        "permuted": permutation_baseline(tops, w, seed),
        "unigram": Rate(by_unigram, by_unigram, by_unigram),
        "uniform": Rate(uniform, uniform, uniform),
    }


def permutation_baseline(tops: np.ndarray, w: np.ndarray, seed: int) -> Rate:
    """Agreement of values [key] with the next tokens [key] of randomly permuted keys.

    Each pair meets in one of n permutations: the expectation is sum over tokens of (values that predict it) times (keys
    that it follows), over n squared.
    """
    n = len(tops)
    tokens = np.union1d(tops, w)
    predicted, following = (np.bincount(np.searchsorted(tokens, ids), minlength=len(tokens)) for ids in (tops, w))
    generator = np.random.default_rng(seed)
    rates = [(tops == generator.permutation(w)).mean() for _ in range(PERMUTATIONS)]
    low, high = np.quantile(rates, [0.025, 0.975])
    return Rate(float(predicted @ following) / n**2, float(low), float(high))


def ranks(table: pd.DataFrame) -> pd.DataFrame:
    """Rank of the next token in the value's projection by layer, as boxes (figure 5); 0 is best. Keys with a trigger."""
    return boxes(table[table["triggers"] > 0], "rank", "keys")


def by_probability(table: pd.DataFrame, bins: int) -> pd.DataFrame:
    """Agreement rate by the value's top probability, in bins of equal width over all layers (figure 6)."""
    keys = table[table["triggers"] > 0]
    if keys.empty:
        return pd.DataFrame(columns=["low", "high", "values", "agreeing", "rate", "rate_low", "rate_high"])
    edges = np.linspace(keys["top_probability"].min(), keys["top_probability"].max(), bins + 1)
    within = np.clip(np.searchsorted(edges, keys["top_probability"], side="right") - 1, 0, bins - 1)
    values = np.bincount(within, minlength=bins)
    agreeing = np.bincount(within, weights=keys["agrees"], minlength=bins).astype(int)
    low, high = wilson(agreeing, values)
    rate = np.divide(agreeing, values, out=np.full(bins, np.nan), where=values > 0)
    return pd.DataFrame(
        {
            "low": edges[:-1],
            "high": edges[1:],
            "values": values,
            "agreeing": agreeing,
            "rate": rate,
            "rate_low": low,
            "rate_high": high,
        }
    )


def predictive(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """The `count` values of highest top probability over all layers, descending; equals by layer and memory."""
    return table.sort_values(["top_probability", "layer", "memory"], ascending=[False, True, True], kind="stable").head(
        count
    )


def predictive_layers(chosen: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Where the most predictive values live, and how many match the next token of at least one of their triggers."""
    counts = pd.DataFrame({"layer": np.arange(layers)})
    for name, rows in (("values", chosen), ("matching", chosen[chosen["matching"] > 0])):
        counts[name] = np.bincount(rows["layer"], minlength=layers)
    return counts


def examples(chosen: pd.DataFrame, triggers: Triggers, corpus, tokens, per_key: int) -> pd.DataFrame:
    """The table of predictive values (paper's table 2): each with a trigger that its prediction follows, else its first.

    Args:
        corpus: the train split. tokens: the text of every id. per_key: t; precision at t divides by it even where a key
            has fewer triggers.
    """
    rows = []
    for value in chosen.itertuples():
        at, rank = triggers.layer_offset[value.layer] + value.memory, max(value.first_match, 0)
        found = triggers.count[at] > 0
        rows.append(
            {
                "layer": value.layer,
                "memory": value.memory,
                "norm": value.norm,
                "top_token": value.top_token,
                "token": tokens[value.top_token],
                "top_probability": value.top_probability,
                "triggers": value.triggers,
                "matching": value.matching,
                "precision": value.matching / per_key,
                "prefix": corpus.prefix_text(triggers.sentence[at, rank], triggers.position[at, rank]) if found else "",
                "next_token": tokens[triggers.next_token[at, rank]] if found else "",
            }
        )
    return pd.DataFrame(rows)
