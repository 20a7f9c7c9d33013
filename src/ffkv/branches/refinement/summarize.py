"""Summarizes when the residual holds the final prediction, which part of a layer decides, and which prediction the last layer changes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ffkv.base.intervals import boxes, shares
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.refinement.settings import Refinement
from ffkv.branches.refinement.tables import CASES, FIGURE_11
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.head.head_file import stored_output_embedding

RANDOM_PAIRS = 10_000  # pairs of tokens from which the percentile of a cosine is estimated


def summarize_refinement(given: Given, settings: Refinement = Refinement(), seed: int = 0) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups into the tables of figures 9 to 11 and the prediction changes."""
    split, table = given.validation, given.table("by_prefix", given.sample_identity, ("layer", "prefix"))
    changes = sample_changes(table[table["layer"] == table["layer"].max()], settings.changes, seed)
    places = given.sampled("sentence"), given.sampled("position")
    embedding = stored_output_embedding(given.files["model"])
    return {
        "figure_9_residual_agreement": summarize_residual_agreement(table),
        "figure_10_final_probability": boxes(table, "probability", "prefixes"),
        "figure_11_breakdown": summarize_breakdown(table),
        "prediction_changes": describe_changes(changes, split, *places, given.token_texts, embedding, seed),
    }


def summarize_residual_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of prefixes whose residual predicts the model's final prediction (figure 9)."""
    matches = table.assign(matches=table["top_residual"] == table["final"])
    tied = (table["tied"] > 0).groupby(table["layer"]).sum().to_numpy()
    return shares(matches, "matches", "matching", "prefixes").assign(tied=tied)


def summarize_breakdown(table: pd.DataFrame) -> pd.DataFrame:
    """Computes the share of each case by layer (figure 11)."""
    by_case = [
        shares(table.assign(is_case=table["case"] == case), "is_case", "prefixes", "total").assign(case=case)
        for case in CASES
    ]
    return pd.concat(by_case).sort_values("layer", kind="stable", ignore_index=True)[FIGURE_11.names]


def sample_changes(last: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Samples rows of the last layer, in their order, whose prediction changes: top(o^L) differs from top(r^L)."""
    changed = last[last["top_output"] != last["top_residual"]]
    sample = random_stream(seed, Purpose.PREDICTION_CHANGES).permutation(len(changed))[:count]
    return changed.iloc[np.sort(sample)]


def describe_changes(
    changes: pd.DataFrame,
    corpus: Corpus,
    sentence: np.ndarray,
    position: np.ndarray,
    tokens: Sequence[str],
    embedding: np.ndarray | None,
    seed: int,
) -> pd.DataFrame:
    """Describes sampled changes for annotation, as `CHANGES`. The paper found 66 of 100 distant and 34 related.

    Every sampled prefix is given by sentence and number of tokens, BOS not counted [prefix]. `tokens`: text of each id
    [vocabulary]. `embedding`: output embedding [vocabulary, d]; None if the model has no single one, then no cosine is computed.
    """
    top_r, top_o = changes["top_residual"].to_numpy(), changes["top_output"].to_numpy()
    cosine = percentile = np.full(len(changes), np.nan)
    if embedding is not None:
        cosine, percentile = measure_closeness(embedding, top_r, top_o, np.unique(np.asarray(corpus.tokens)), seed)
    prefix = changes["prefix"].to_numpy()
    s, p = sentence[prefix], position[prefix]
    return pd.DataFrame(
        {
            "prefix": prefix,
            "text": [corpus.prefix_text(*place) for place in zip(s.tolist(), p.tolist(), strict=True)],
            "next_token": [tokens[token] for token in corpus.next_token(s, p).tolist()],
            "residual_token": [tokens[token] for token in top_r.tolist()],
            "output_token": [tokens[token] for token in top_o.tolist()],
            "cosine": cosine,
            "cosine_percentile": percentile,
            "related": "",
        }
    )


def measure_closeness(
    embedding: np.ndarray, first: np.ndarray, second: np.ndarray, used: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Measures how close pairs of tokens, ids `first` and `second` [pair], are in the output embedding [vocabulary, d].

    `used`: ids from which random pairs are drawn [id]. Rows of padding and of tokens that no text has would be unlike all
    others, or all alike. Returns the cosine of each pair [pair], and the share of random pairs of different tokens that
    have a smaller cosine [pair].
    """
    unit = embedding / np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-30)
    cosine = (unit[first] * unit[second]).sum(1)
    a, b = used[random_stream(seed, Purpose.RANDOM_TOKEN_PAIRS).integers(0, len(used), (2, RANDOM_PAIRS))]
    random_cosines = np.sort((unit[a] * unit[b]).sum(1)[a != b])
    return cosine, np.searchsorted(random_cosines, cosine) / max(len(random_cosines), 1)
