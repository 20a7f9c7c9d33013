"""Measures what the memories of a layer do on each sampled prefix (paper section 5.1)."""

import numpy as np
import pandas as pd

from ffkv.base.files import tables
from ffkv.branches.composition.settings import Composition
from ffkv.branches.composition.tables import BY_PREFIX
from ffkv.branches.given import Given
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import stop_words, word_at, words
from ffkv.model.head.topk import predictions

PREFIXES_PER_SORT = 64  # few enough for their contributions to stay in the cache


def measure_composition(given: Given, settings: Composition = Composition()) -> pd.DataFrame:
    """Measures on each sampled prefix how the memories of a group of layers compose (paper section 5.1): `BY_PREFIX`.

    The layers' outputs y go through the head. The values have gone through it before: top(v_i), ‖v_i‖ and the kind of
    projection come from the file of projections.
    """
    values = given.projections
    head = given.head(str(values.attributes["projection"]))
    described = describe_prefixes(given.validation, given.sampled("sentence"), given.sampled("position"))
    by_layer = []
    for layer in given.each_layer("composition"):
        states, of_layer = given.states(layer, "ym"), values.layer == layer
        top_y = predictions(head, states.y, layer, change=True).ids
        memories = describe_memories(states.m, values.top[of_layer], top_y, values.norm[of_layer], settings.mass)
        if layer in given.anatomy.of_stream:  # its units do not add up to y
            memories[["agreeing", "agreeing_all"]] = -1
        by_layer.append(pd.concat([described.assign(layer=layer), memories], axis=1))
    return tables.frame(BY_PREFIX, by_layer, given.sample_identity)


def describe_memories(
    m: np.ndarray, top_v: np.ndarray, top_y: np.ndarray, norm: np.ndarray, mass: float
) -> pd.DataFrame:
    """Counts the active, agreeing and effective memories of one layer on each prefix.

    `m`: memory coefficients [prefix, memory]. `top_v`: top(v_i) [memory]. `top_y`: top(y) [prefix]. `norm`: length of v_i
    [memory]. `mass`: share of the summed contribution that the effective memories carry. Returns the columns of `BY_PREFIX`
    about memories, one row per prefix.
    """
    active, agrees = m > 0, top_v[None] == top_y[:, None]
    effective, participation = count_effective(m, norm, mass)
    return pd.DataFrame(
        {
            "active": active.sum(1).astype(np.int32),
            "share": active.mean(1),
            "agreeing": (active & agrees).sum(1).astype(np.int32),
            "agreeing_all": agrees.sum(1).astype(np.int32),
            "effective": effective,
            "participation": participation,
        }
    )


def count_effective(m: np.ndarray, norm: np.ndarray, mass: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts the memories that matter on each prefix, by the size of their contributions c_i = |m_i| ‖v_i‖.

    Returns the effective number: the smallest number of memories that carry `mass` of the sum of c_i, int32 [prefix]. And
    the participation (sum c)² / sum c², which is the number of memories if all contribute alike [prefix]. Both are 0 if
    all contributions are 0.
    """
    effective, participation = np.zeros(len(m), np.int32), np.zeros(len(m))
    for start in range(0, len(m), PREFIXES_PER_SORT):
        rows = slice(start, start + PREFIXES_PER_SORT)
        c = np.abs(m[rows]).astype(np.float64) * norm
        total, squares = c.sum(1), (c**2).sum(1)
        silent = total == 0
        c.sort(1)
        carried = np.cumsum(c[:, ::-1], 1)
        # The first count at which the carried sum reaches the mass; rounding must not ask for one memory more.
        needed = (carried < mass * total[:, None] * (1 - 1e-12)).sum(1) + 1
        effective[rows] = np.where(silent, 0, needed)
        participation[rows] = total**2 / np.where(silent, 1, squares)
    return effective, participation


def describe_prefixes(corpus: Corpus, sentence: np.ndarray, position: np.ndarray) -> pd.DataFrame:
    """Describes sampled prefixes of the validation split by their words. Words are not tokens.

    Prefixes are given by sentence and number of tokens, BOS not counted, both [prefix]. Returns the columns of `BY_PREFIX`
    about prefixes, one row per prefix. An unfinished last word is a word. `target_is_stop_word` is NaN if there is no list
    of stop words for the language.
    """
    counts, stops, listed = [], [], stop_words(corpus.language)
    for s, p in zip(sentence.tolist(), position.tolist(), strict=True):
        counts.append(len(words(corpus.prefix_text(s, p), corpus.pretokenized)))
        end = corpus.character(s, p + 1) + bool(corpus.unfinished(s, p + 1))
        stops.append(word_at(corpus.texts[s], end, corpus.pretokenized).lower() in listed)
    return pd.DataFrame(
        {
            "prefix": np.arange(len(counts), dtype=np.int32),
            "words": np.asarray(counts, np.int32),
            "target_is_stop_word": np.asarray(stops, bool) if listed else np.full(len(stops), np.nan),
        }
    )
