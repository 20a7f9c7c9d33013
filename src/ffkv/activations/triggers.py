"""Trigger examples of every key (paper section 3.1): one pass over the corpus, nothing stored but the top t."""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ffkv.activations import top_t
from ffkv.activations.batches import batches, blocks, in_cache, pad, padding
from ffkv.activations.resume import Saved, going_on
from ffkv.activations.trigger_file import HISTOGRAM_EVERY, Triggers
from ffkv.activations.trigger_state import State, begin, triggers_of
from ffkv.corpus.corpus_file import Corpus
from ffkv.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.tap import tap
from ffkv.process.progress import progress
from ffkv.settings import Activations
from ffkv.settings import Triggers as TriggerSettings


def find_triggers(
    loaded: LoadedModel,
    corpus: Corpus,
    settings: TriggerSettings,
    activations: Activations,
    shard: int = 0,
    shards: int = 1,
    saved: Saved | None = None,
) -> Triggers:
    """The top t prefixes of every key, and its statistics, over one shard of a corpus.

    Every proper prefix of every sentence competes (j >= 1 tokens after BOS, the whole sentence left out: nothing follows
    it), with its coefficient m_i at its last token. One forward pass of a sentence gives all of its prefixes. Layers whose
    coefficients can be negative have the most negative ones kept apart, by the same rules.

    Args:
        saved: where the state is saved from time to time, and taken up again; the result is the same. None: nowhere.
    Raises:
        UserError: the empty prefix is asked for where there is no BOS; the corpus has more than 2^31 prefixes;
            coefficients overflow.
    """
    layers, device = loaded.anatomy.layers, loaded.device
    _check(corpus, settings)
    state = begin(layers, settings, device)
    bos, empty = len(corpus.bos), int(settings.include_empty_prefix)
    batch: dict[str, Tensor | None] = {}
    work = blocks(len(corpus), activations.block_sentences, shard, shards)
    lengths = corpus.lengths
    total = sum(int(lengths[_slice(block)].sum()) for block in work)
    with (
        going_on(saved, state) as keep,
        tap(loaded.model, layers, "gm", _taker(state, batch, slice(bos - empty, None))) as run,
        progress(total, "tokens", "triggers", state.tokens) as bar,
    ):
        pieces = (
            rows + block.start
            for block in work
            for rows in batches(lengths[_slice(block)] - 1 + bos, activations.batch_tokens)
        )
        for sentences in itertools.islice(pieces, state.batches, None):
            _describe(batch, corpus, sentences, empty, device)
            run(pad([np.concatenate([corpus.bos, corpus.ids(s)[:-1]]) for s in sentences.tolist()], device))
            tokens = int(lengths[sentences].sum())
            state.batches += 1
            state.tokens += tokens
            state.prefixes += tokens - len(sentences) * (1 - empty)
            bar.update(tokens)
            keep()
    return triggers_of(state, corpus, loaded)


def _check(corpus: Corpus, settings: TriggerSettings) -> None:
    if settings.include_empty_prefix and not len(corpus.bos):
        raise UserError(
            "triggers.include_empty_prefix needs a BOS token in front of sentences: set corpus.bos to 'always'."
        )
    if len(corpus.tokens) + len(corpus) >= top_t.PLACES:
        raise UserError(
            f"The corpus has {len(corpus.tokens):,} tokens; at most 2^31 can be told apart. Set corpus.limit."
        )


def _taker(state: State, batch: dict[str, Tensor | None], counted: slice) -> Callable[[Layer, str, Tensor], None]:
    """What takes the gates and coefficients of a layer, as the model computes them.

    Args:
        batch: see `_describe`. counted: the positions whose prefixes compete.
    """

    def take(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity == "g":  # comes before the layer's m
            batch["gate"] = tensor[:, counted]
            return
        gate, statistics = batch.pop("gate", None), state.statistics[layer.index]
        if batch["padding"] is not None:
            tensor.view(-1, tensor.shape[-1])[batch["padding"]] = 0  # silent padding: no real token sees it
        m, two_sided = tensor.float(), bool(state.lowest) and layer.signed
        competes = batch["competes"].view(m.shape[:2])
        peaks, troughs = (m.new_empty(len(m), m.shape[-1]) for _ in range(2))
        for rows in in_cache(m):
            part, ends = m[rows].flatten(0, 1), competes[rows].flatten()
            statistics.add(part, ends, torch.amax(m[rows, counted], 1, out=peaks[rows]))
            if two_sided:
                statistics.add_negative(part, ends, torch.amin(m[rows, counted], 1, out=troughs[rows]))
        if len(batch["counted"]):
            statistics.add_histogram(m.flatten(0, 1)[batch["counted"]])
        state.highest[layer.index].enter(m[:, counted], peaks, gate, batch["place"])
        if two_sided:
            state.lowest[layer.index].enter(m[:, counted], troughs, gate, batch["place"])

    return take


def _slice(block: range) -> slice:
    return slice(block.start, block.stop)


def _describe(batch: dict[str, Tensor | None], corpus: Corpus, sentences: np.ndarray, empty: int, device: str) -> None:
    """What `take` must know of a batch.

    padding: flat positions of the padding. place: place in the corpus of each sentence's first prefix; there the empty
    prefix of a sentence stands before its other prefixes, whether it competes or not. competes: 1.0 where a prefix ends that
    competes, 0.0 elsewhere, flat. counted: flat positions of the prefixes that the histogram looks at.
    """
    lengths = corpus.lengths[sentences] - 1 + len(corpus.bos)
    token = np.arange(lengths.max())[None]
    competes = (token >= len(corpus.bos) - empty) & (token < lengths[:, None])
    batch["padding"] = padding(lengths, device)
    batch["place"] = torch.from_numpy(corpus.offsets[sentences] + sentences + 1 - empty).to(device)
    batch["competes"] = torch.from_numpy(competes.reshape(-1).astype(np.float32)).to(device)
    batch["counted"] = torch.from_numpy(np.flatnonzero(competes & (sentences % HISTOGRAM_EVERY == 0)[:, None])).to(
        device
    )
