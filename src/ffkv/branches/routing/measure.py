"""Reads which experts tokens are sent to, and how much more often tokens with a pattern are sent to an expert than others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import fft
from torch import Tensor

from ffkv.base.batching import batches, pad, to_host
from ffkv.base.multiple_tests import q_values
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.routing.settings import Routing
from ffkv.branches.routing.tables import EXPERTS, LOAD, PATTERNS
from ffkv.corpus.corpus_file import Corpus, draw_sentences
from ffkv.corpus.rules import find_rules, label_tokens
from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.experts import last_calls
from ffkv.model.routing import after_banks, banks_of
from ffkv.model.tap import hooks

NEAR = 100  # tokens: shifts of labels by fewer would leave them near their own tokens


def measure_routing(given: Given, settings: Routing, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Reads which experts tokens are sent to, and compares tokens with a pattern with others.

    Returns the tables `LOAD`, `EXPERTS` and `PATTERNS`, without rows if the model has no experts.
    """
    load, experts, patterns = list[dict](), list[dict](), list[dict]()
    if banks_of(given.anatomy.layers):
        sentences = draw_sentences(given.train, settings.tokens, random_stream(seed, Purpose.ROUTED_DOCUMENTS))
        labels = {
            name: np.concatenate([label_tokens(given.train, sentence, rule) for sentence in sentences])
            for name, rule in find_rules(settings.patterns, "").items()
        }
        routing = read_routing(given.model(), given.train, sentences)
        for layer, sent in routing.items():
            place, counts = {"layer": layer}, sent.sum(0)
            load.append(place | load_of(sent))
            experts += [{**place, "expert": at, "tokens": n, "share": n / len(sent)} for at, n in enumerate(counts)]
            patterns += [place | row for row in rows_of_patterns(sent, labels)]
    for row, q in zip(patterns, q_values(np.array([row["p"] for row in patterns]), len(patterns)), strict=True):
        row["q"] = q
    return {table.name: table.frame(rows) for table, rows in zip((LOAD, EXPERTS, PATTERNS), (load, experts, patterns))}


def read_routing(loaded: LoadedModel, corpus: Corpus, sentences: Sequence[int]) -> dict[int, np.ndarray]:
    """Reads which experts the tokens of sentences are sent to, by layer with experts [token, expert], in one pass without states.

    Tokens that precede every sentence do not count.
    """
    rows = [corpus.prefix_ids(sentence, int(corpus.lengths[sentence])) for sentence in sentences]
    lengths, beginning, banks = np.array([*map(len, rows)]), len(corpus.bos), banks_of(loaded.anatomy.layers)
    starts = np.cumsum(lengths - beginning) - (lengths - beginning)
    found = {layer.index: np.zeros((int((lengths - beginning).sum()), bank.experts), bool) for layer, bank in banks}
    read: dict[int, Tensor] = {}  # whether each token of the pass is sent to each expert, by layer

    def note(layer: Layer, bank: SecondMatrix, *_: Any) -> None:
        call = last_calls.pop(loaded.model.get_submodule(bank.module))
        read[layer.index] = call.written.new_zeros(len(call.written), bank.experts, dtype=torch.bool)
        for each in call.experts:
            read[layer.index][each.tokens, each.expert] = True

    with after_banks(loaded.model, banks, note), progress(len(rows), "sentences", "routing") as bar:
        for batch in batches(lengths, loaded.batch_tokens):
            hooks.forward(loaded.model, ids := pad([rows[row] for row in batch], loaded.device))
            for layer, sent in zip(read, to_host([*read.values()])):
                for own, row in zip(sent.reshape(*ids.shape, -1), batch.tolist()):
                    tokens = slice(starts[row], starts[row] + lengths[row] - beginning)
                    found[layer][tokens] = own[beginning : lengths[row]]
            bar.update(len(batch))
    return found


def load_of(sent: np.ndarray) -> dict[str, float]:
    """Tells how evenly tokens are sent to experts. `sent`: whether each is sent to each expert [token, expert].

    The effective number of experts is e to the power of the entropy of their shares.
    """
    counts = sent.sum(0)
    shares = counts[counts > 0] / counts.sum()
    even = float(np.exp(-(shares * np.log(shares)).sum())) / len(counts)
    load = {"experts": len(counts), "tokens": len(sent), "per_token": counts.sum() / len(sent), "even": even}
    return load | {"largest": counts.max() / len(sent), "never": int((counts == 0).sum())}


def rows_of_patterns(sent: np.ndarray, labels: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Yields a row of `PATTERNS` for each expert and each pattern that some tokens have and some have not, without layer and q.

    The labels are shifted along the text, round its end: so tokens with the pattern are as near to each other as they are, and experts
    go on as they do, only that the two have nothing to do with each other. All shifts by `NEAR` tokens or more are made.

    `sent`: see `load_of`. `labels`: whether each token has a pattern, by its name [token].
    """
    count, near = len(sent), min(NEAR, len(sent) // 4)
    of_experts = fft.rfft(sent.T.astype(float))
    for pattern, has in labels.items():
        tokens = int(has.sum())
        if not 0 < tokens < count:
            continue
        both = fft.irfft(of_experts * fft.rfft(has.astype(float)).conj(), count).round() + 0.0  # [expert, shift]; no -0
        far = np.abs(both - tokens * sent.mean(0)[:, None])
        as_far = (far[:, near : count - near + 1] >= far[:, :1] - 1e-9).sum(1)
        rest = sent.sum(0) - both[:, 0]
        ratio = np.log2((both[:, 0] + 0.5) / (tokens + 1)) - np.log2((rest + 0.5) / (count - tokens + 1))
        found = {"share": both[:, 0] / tokens, "elsewhere": rest / (count - tokens), "log_ratio": ratio}
        found["p"] = (1 + as_far) / (2 + count - 2 * near)
        for expert, own in enumerate(zip(*found.values())):
            yield {"expert": expert, "pattern": pattern, "tokens": tokens, **dict(zip(found, own))}
