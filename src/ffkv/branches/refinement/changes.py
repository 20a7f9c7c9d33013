"""The table of prediction changes in the last layer, to be annotated by a person (paper section 5.2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ffkv.base.streams import Purpose, random_stream
from ffkv.corpus.corpus_file import Corpus

RANDOM_PAIRS = 10_000  # pairs of tokens from which the percentile of a cosine is estimated


def sample_changes(last: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """Samples rows of the last layer, in their order, whose prediction changes: top(o^L) differs from top(r^L)."""
    changed = last[last["top_output"] != last["top_residual"]]
    sample = random_stream(seed, Purpose.PREDICTION_CHANGES).permutation(len(changed))[:count]
    return changed.iloc[np.sort(sample)]


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
    generator = random_stream(seed, Purpose.RANDOM_TOKEN_PAIRS)
    a, b = used[generator.integers(0, len(used), (2, RANDOM_PAIRS))]
    random_cosines = np.sort((unit[a] * unit[b]).sum(1)[a != b])
    return cosine, np.searchsorted(random_cosines, cosine) / max(len(random_cosines), 1)


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
    [vocabulary]. `embedding`: output embedding [vocabulary, d]; None if the model has no single one, then no cosine is
    computed.
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
