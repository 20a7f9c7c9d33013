"""What keys read, in tokens: from the weights of the layer and the mean derivative of its input (docs/translation.md)."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.trigger_file import NONE, tokens_seen
from ffkv.base.files import tables
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.translation.jacobian import FIXED_POINT, embeddings_of, of_shards
from ffkv.branches.translation.settings import Translation
from ffkv.branches.translation.tables import FACTORS, READ_BY_LAYER, READ_TOKENS, READINGS_OF_KEYS
from ffkv.model.keys_and_values import factors

TOKENS = 10  # that are kept of each key
EXAMPLES = 10  # trigger examples of each key whose last tokens are sought
CHUNK = 2**24  # scores at a time


def read_tokens(
    given: Given, settings: Translation = Translation(), seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores all tokens by how strongly their embedding excites each key of a group of layers: k · E e_w.

    E is the mean derivative of what the layer reads with respect to the embedding of the token there, e_w the embedding of token w. With a
    gate, the gate is asked, too. Beside them, the last tokens of the key's trigger examples are sought.

    `settings`: `texts` and `reading_texts`. `seed`: of the permutations. Returns a row per memory and factor, `READ_TOKENS`, and a row
    per layer, factor and way to read, `READ_BY_LAYER`.
    """
    loaded, anatomy, corpus = given.model(), given.anatomy, given.train
    e = embeddings_of(loaded, torch.arange(anatomy.vocabulary))
    texts, found = min(settings.texts, settings.reading_texts), []
    for layer in given.each_layer("keys"):
        through = torch.from_numpy(sum(of_shards(given, "reading", layer)) * FIXED_POINT / texts).to(e)
        examples = given.triggers_of(layer)
        last = tokens_seen(examples, np.asarray(corpus.tokens), corpus.offsets)["last"][:, :EXAMPLES].astype(np.int64)
        alive = np.flatnonzero((last != NONE).any(1))
        order = random_stream(seed, Purpose.PERMUTED_READINGS, layer).permutation(alive)
        others = np.full_like(last, NONE)
        others[order] = last[np.roll(order, 1)]  # each of another key
        sought = torch.from_numpy(np.concatenate([last, others], 1)).to(e.device)
        for factor, vectors in zip(FACTORS, factors(loaded.model, anatomy.layers[layer], anatomy.width), strict=True):
            memory = torch.from_numpy(np.flatnonzero(vectors.isfinite().all(1)))
            if not len(memory):
                continue
            own, tokens = vectors[memory].to(e), sought[memory.to(e.device)]
            scored = score(own @ through, e, tokens)
            as_it_is = score(own, e, tokens)["auc"][:, 0] if own.shape[1] == e.shape[1] else np.nan
            columns = {
                "layer": layer,
                "memory": memory,
                "factor": factor,
                "tokens": [*scored["tokens"]],
                "rank": scored["rank"],
                "auc": scored["auc"][:, 0],
                "permuted_auc": scored["auc"][:, 1],
                "identity_auc": as_it_is,
            }
            found.append(READ_TOKENS.frame(pd.DataFrame(columns)))
    table = tables.frame(READ_TOKENS, found, given.train_identity)
    long = table.melt(["layer", "factor"], [*READINGS_OF_KEYS], "column", "value").dropna()
    rows = [
        (layer, factor, READINGS_OF_KEYS[column], len(auc), *auc.quantile([0.25, 0.5, 0.75]))
        for (layer, factor, column), auc in long.groupby(["layer", "factor", "column"], sort=False)["value"]
    ]
    return table, tables.frame(READ_BY_LAYER, rows, given.train_identity)


def score(directions: Tensor, e: Tensor, sought: Tensor) -> dict[str, np.ndarray]:
    """Scores the vocabulary along directions [row, coordinate]: the score of token w is its product with e_w.

    `e`: embeddings [token, coordinate]. `sought`: tokens [row, 2 n], n of the row itself and n of another one; -1: none.

    Returns of each row the `tokens` with the highest scores [row, 10]; the `rank` of its first own token, the number of tokens with a higher
    score, -1 if there is none; and `auc` [row, 2], of its own tokens and of the others: the mean share of the vocabulary with a lower
    score, where ties count a half. NaN if there are none.
    """
    parts = []
    for rows, tokens in zip(*(each.split(max(1, CHUNK // len(e))) for each in (directions, sought)), strict=True):
        scores = rows @ e.T
        own = scores.gather(1, tokens.clamp(min=0))
        ascending, order = scores.sort(1)
        below = torch.searchsorted(ascending, own)
        above = len(e) - torch.searchsorted(ascending, own, right=True)
        share = (below - above).double() / (2 * max(1, len(e) - 1)) + 0.5
        share[tokens == NONE] = torch.nan
        auc = share.view(len(rows), 2, -1).nanmean(2)
        parts.append((order[:, -TOKENS:].flip(1), torch.where(tokens[:, 0] == NONE, NONE, above[:, 0]), auc))
    joined = (torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True))
    return dict(zip(("tokens", "rank", "auc"), joined, strict=True))
