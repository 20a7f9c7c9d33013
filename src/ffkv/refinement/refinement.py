"""How predictions are refined from layer to layer (paper section 5.2). Pure functions, arrays in, arrays or tables out."""

import numpy as np
import pandas as pd

from ffkv.corpus.corpus_file import Corpus
from ffkv.intervals import boxes, shares, wilson

CASES = ("residual", "agreement", "composition", "ffn", "other")
PAIRS = 10_000  # random pairs of tokens that say what a cosine is worth


def classify(top_r: np.ndarray, top_y: np.ndarray, top_o: np.ndarray) -> np.ndarray:
    """The case of each prefix in one layer (figure 11), from the predictions [prefix] of r, y and o.

    - residual: top(o) = top(r), not top(y)
    - agreement: top(o) = top(r) = top(y)
    - ffn: top(o) = top(y), not top(r)
    - composition: all three differ
    - other: top(r) = top(y), not top(o): possible with a final norm or an adaptive softmax, not with a linear head
    """
    from_r, from_y, alike = top_o == top_r, top_o == top_y, top_r == top_y
    conditions = [from_r & from_y, from_r, from_y, alike]
    return np.select(conditions, ["agreement", "residual", "ffn", "other"], "composition")


def matches(table: pd.DataFrame) -> pd.DataFrame:
    """Share of prefixes whose residual already predicts the model's final prediction, by layer (figure 9)."""
    return shares(table.assign(matches=table["top_residual"] == table["final"]), "matches", "matching", "prefixes")


def probabilities(table: pd.DataFrame) -> pd.DataFrame:
    """Probability that the residual gives the final prediction, by layer, as boxes (figure 10)."""
    return boxes(table, "probability", "prefixes")


def breakdown(table: pd.DataFrame) -> pd.DataFrame:
    """How often each case occurs, by layer (figure 11)."""
    rows = []
    for layer, group in table.groupby("layer"):
        for case in CASES:
            count, n = int((group["case"] == case).sum()), len(group)
            low, high = (float(bound) for bound in wilson(count, n))
            rows.append({"layer": layer, "case": case, "prefixes": count, "share": count / n, "low": low, "high": high})
    return pd.DataFrame(rows)


def sample_changes(last: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """A random sample of the prefixes whose prediction the last layer changes: top(o^L) differs from top(r^L)."""
    changed = last[last["top_output"] != last["top_residual"]]
    chosen = np.random.default_rng(seed).permutation(len(changed))[:count]
    return changed.iloc[np.sort(chosen)]


def closeness(embedding: np.ndarray, first: np.ndarray, second: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How close pairs of tokens are in the output embedding [vocabulary, d].

    Args:
        first, second: ids of the tokens of each pair [pair].
    Returns:
        Cosine of each pair, and the share of random pairs of tokens that are less close.
    """
    unit = embedding / np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-30)
    cosine = (unit[first] * unit[second]).sum(1)
    generator = np.random.default_rng(seed)
    a, b = generator.integers(0, len(unit), PAIRS), generator.integers(0, len(unit), PAIRS)
    chance = np.sort((unit[a] * unit[b]).sum(1)[a != b])
    return cosine, np.searchsorted(chance, cosine) / max(len(chance), 1)


def changes(
    chosen: pd.DataFrame,
    corpus: Corpus,
    sentence: np.ndarray,
    position: np.ndarray,
    tokens,
    embedding: np.ndarray | None,
    seed: int,
) -> pd.DataFrame:
    """The sampled changes as a table to annotate (in the paper: 66 distant, 34 related).

    Args:
        sentence, position: of every sampled prefix. tokens: the text of every id. embedding: the output embedding, None
            where the model has none (then there is no cosine).
    """
    before, after = chosen["top_residual"].to_numpy(), chosen["top_output"].to_numpy()
    cosine, percentile = (
        closeness(embedding, before, after, seed) if embedding is not None else (np.full(len(chosen), np.nan),) * 2
    )
    at = chosen["prefix"].to_numpy()
    following = corpus.next_token(sentence[at], position[at])
    return pd.DataFrame(
        {
            "prefix": at,
            "text": [
                corpus.prefix_text(s, p) for s, p in zip(sentence[at].tolist(), position[at].tolist(), strict=True)
            ],
            "next_token": [tokens[token] for token in following.tolist()],
            "residual_token": [tokens[token] for token in before.tolist()],
            "output_token": [tokens[token] for token in after.tolist()],
            "cosine": cosine,
            "cosine_percentile": percentile,
            "related": "",
        }
    )
