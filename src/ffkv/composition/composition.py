"""How the memories of a layer compose into its output (paper section 5.1). Pure functions, arrays in, arrays out."""

import numpy as np
import pandas as pd

from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import stop_words, word_at, words
from ffkv.intervals import boxes, wilson

TOGETHER = 512  # prefixes whose coefficients are sorted at a time


def compose(m: np.ndarray, top_v: np.ndarray, top_y: np.ndarray, norm: np.ndarray, mass: float) -> pd.DataFrame:
    """What the memories of one layer do on each prefix.

    Args:
        m: memory coefficients [prefix, memory]. top_v: top(v_i) [memory]. top_y: top(y) [prefix].
        norm: length of v_i [memory]. mass: share of the contribution that the effective memories carry.
    Returns:
        One row a prefix. active: memories with m_i > 0; share: of all. agreeing: active memories with top(v_i) = top(y);
        agreeing_all: the same of all memories. effective: how few memories carry `mass` of sum |m_i| ‖v_i‖;
        participation: (sum c)^2 / sum c^2 with c = |m_i| ‖v_i‖, the number of memories if all contributed alike.
    """
    active, same = m > 0, top_v[None] == top_y[:, None]
    effective, participation = (np.concatenate(parts) for parts in zip(*_contributions(m, norm, mass), strict=True))
    return pd.DataFrame(
        {
            "active": active.sum(1).astype(np.int32),
            "share": active.mean(1),
            "agreeing": (active & same).sum(1).astype(np.int32),
            "agreeing_all": same.sum(1).astype(np.int32),
            "effective": effective.astype(np.int32),
            "participation": participation,
        }
    )


def _contributions(m: np.ndarray, norm: np.ndarray, mass: float):
    for start in range(0, max(len(m), 1), TOGETHER):
        c = np.abs(m[start : start + TOGETHER]).astype(np.float64) * norm
        total = c.sum(1)
        carried = np.cumsum(-np.sort(-c, 1), 1)
        silent = total == 0
        # The first count at which the carried sum reaches the mass; rounding must not ask for one memory more.
        effective = (carried < mass * total[:, None] * (1 - 1e-12)).sum(1) + 1
        participation = total**2 / np.where(silent, 1, (c**2).sum(1))
        yield np.where(silent, 0, effective), participation


def describe_prefixes(corpus: Corpus, sentence: np.ndarray, position: np.ndarray) -> pd.DataFrame:
    """Facts about sampled prefixes that are about words, not tokens.

    Returns:
        One row a prefix. prefix: its number. words: how many words it has, a last unfinished one included.
        target_is_stop_word: whether the token that follows lies in a stop word.
    """
    counts, stops = [], []
    for s, p in zip(sentence.tolist(), position.tolist(), strict=True):
        counts.append(len(words(corpus.prefix_text(s, p), corpus.pretokenized)))
        stops.append(word_at(corpus.texts[s], corpus.character(s, p + 1), corpus.pretokenized).lower() in stop_words())
    return pd.DataFrame(
        {
            "prefix": np.arange(len(counts), dtype=np.int32),
            "words": np.asarray(counts, np.int32),
            "target_is_stop_word": np.asarray(stops, bool),
        }
    )


def active(table: pd.DataFrame) -> pd.DataFrame:
    """Share of active memories by layer, as boxes (figure 7)."""
    return boxes(table, "share", "prefixes")


def without_agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Share of prefixes on which no memory agrees with its layer, by layer (figure 8).

    reading "active": no active memory with top(v_i) = top(y); "all": no memory at all.
    """
    rows = []
    for reading, column in (("active", "agreeing"), ("all", "agreeing_all")):
        for layer, group in table.groupby("layer"):
            without, n = int((group[column] == 0).sum()), len(group)
            low, high = (float(bound) for bound in wilson(without, n))
            rows.append(
                {
                    "layer": layer,
                    "reading": reading,
                    "prefixes": n,
                    "without": without,
                    "share": without / n,
                    "low": low,
                    "high": high,
                }
            )
    return pd.DataFrame(rows)


def cases(table: pd.DataFrame, short_prefix: int) -> pd.DataFrame:
    """Of the cases in which an active memory agrees: how often a stop word follows, how often the prefix is short.

    One row a layer and one for all of them (layer -1), each beside the same shares of all its prefixes (`base_...`).
    """
    table = table.assign(short=table["words"] < short_prefix)
    rows = []
    for layer, group in [(-1, table), *table.groupby("layer")]:
        agreeing = group[group["agreeing"] > 0]
        stop, short, n = int(agreeing["target_is_stop_word"].sum()), int(agreeing["short"].sum()), len(agreeing)
        rows.append(
            {
                "layer": layer,
                "cases": n,
                "stop_word": stop,
                "stop_word_share": stop / n if n else np.nan,
                "short": short,
                "short_share": short / n if n else np.nan,
                "base_stop_word_share": group["target_is_stop_word"].mean(),
                "base_short_share": group["short"].mean(),
            }
        )
    return pd.DataFrame(rows)


def effective(table: pd.DataFrame, memories: dict[int, int]) -> pd.DataFrame:
    """The effective number of memories by layer, as quartiles over prefixes. memories: d_m by layer."""
    rows = []
    for layer, group in table.groupby("layer"):
        q1, median, q3 = group["effective"].quantile([0.25, 0.5, 0.75])
        rows.append(
            {
                "layer": layer,
                "memories": memories[layer],
                "effective_q1": q1,
                "effective_median": median,
                "effective_q3": q3,
                "participation_median": group["participation"].median(),
            }
        )
    return pd.DataFrame(rows)
