"""Trigger examples of every key (paper section 3.1): one pass over the corpus, nothing stored but the top t."""

import numpy as np
import torch
from torch import Tensor

from ffkv.activations import top_t
from ffkv.activations.batches import batches, blocks, pad, padding
from ffkv.activations.contest import Contest
from ffkv.activations.data import HISTOGRAM_EVERY, NONE, Negative, Triggers
from ffkv.activations.statistics import Statistics
from ffkv.corpus.data import Corpus
from ffkv.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.load import LoadedModel
from ffkv.model.tap import tap
from ffkv.progress import progress
from ffkv.settings import Activations
from ffkv.settings import Triggers as TriggerSettings


def find_triggers(
    loaded: LoadedModel,
    corpus: Corpus,
    settings: TriggerSettings,
    activations: Activations,
    shard: int = 0,
    shards: int = 1,
) -> Triggers:
    """The top t prefixes of every key, and its statistics, over one shard of a corpus.

    Every proper prefix of every sentence competes (j >= 1 tokens after BOS, the whole sentence left out: nothing follows
    it), with its coefficient m_i at its last token. One forward pass of a sentence gives all of its prefixes. Layers whose
    coefficients can be negative have the most negative ones kept apart, by the same rules.

    Raises:
        UserError: the empty prefix is asked for where there is no BOS; the corpus has more than 2^31 prefixes;
            coefficients overflow.
    """
    layers, device = loaded.anatomy.layers, loaded.device
    bos, empty = len(corpus.bos), int(settings.include_empty_prefix)
    if empty and not bos:
        raise UserError(
            "triggers.include_empty_prefix needs a BOS token in front of sentences: set corpus.bos to 'always'."
        )
    if len(corpus.tokens) + len(corpus) >= top_t.PLACES:
        raise UserError(
            f"The corpus has {len(corpus.tokens):,} tokens; at most 2^31 can be told apart. Set corpus.limit."
        )
    negative = settings.negative and any(layer.signed for layer in layers)

    def contests(sign: int) -> list[Contest]:
        each = settings.one_prefix_per_sentence
        return [Contest(layer.memories, settings.per_key, sign, each, device) for layer in layers]

    highest, lowest = contests(1), contests(-1) if negative else []
    statistics = [Statistics(layer.memories, device) for layer in layers]
    batch: dict[str, Tensor | None] = {}

    def take(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity == "g":  # comes before the layer's m
            batch["gate"] = tensor[:, bos - empty :]
            return
        index, m, gate = layer.index, tensor, batch.pop("gate", None)
        if batch["padding"] is not None:
            m.view(-1, m.shape[-1])[batch["padding"]] = 0  # silent padding: no later test, and no real token sees it
        m = m[:, bos - empty :].float()
        peaks = m.amax(1)
        statistics[index].add(m, peaks)
        if len(batch["counted"]):
            statistics[index].add_histogram(m.reshape(-1, m.shape[-1])[batch["counted"]])
        highest[index].enter(m, peaks, gate, batch["place"])
        if lowest and layer.signed:
            troughs = m.amin(1)
            statistics[index].add_negative(m, troughs)
            lowest[index].enter(m, troughs, gate, batch["place"])

    work = blocks(len(corpus), activations.block_sentences, shard, shards)
    lengths = corpus.lengths
    seen = 0
    with (
        tap(loaded.model, layers, "gm", take) as run,
        progress(sum(int(lengths[block].sum()) for block in map(_slice, work)), "tokens", "triggers") as bar,
    ):
        for block in work:
            for rows in batches(lengths[_slice(block)] - 1 + bos, activations.batch_tokens):
                sentences = rows + block.start
                _describe(batch, corpus, sentences, empty, device)
                run(pad([np.concatenate([corpus.bos, corpus.ids(s)[:-1]]) for s in sentences], device))
                seen += int(lengths[sentences].sum()) - len(sentences) * (1 - empty)
                bar.update(int(lengths[sentences].sum()))
    return _triggers(corpus, loaded, highest, lowest, statistics, seen)


def _slice(block: range) -> slice:
    return slice(block.start, block.stop)


def _describe(batch: dict[str, Tensor | None], corpus: Corpus, sentences: np.ndarray, empty: int, device: str) -> None:
    """What `take` must know of a batch.

    padding: flat positions of the padding. place: place in the corpus of each sentence's first prefix; there the empty
    prefix of a sentence stands before its other prefixes, whether it competes or not. counted: flat positions of the
    prefixes that the histogram looks at.
    """
    lengths = corpus.lengths[sentences] - 1 + len(corpus.bos)
    prefixes = corpus.lengths[sentences] - 1 + empty
    batch["padding"] = padding(lengths, device)
    batch["place"] = torch.from_numpy(corpus.offsets[sentences] + sentences + 1 - empty).to(device)
    counted = (np.arange(prefixes.max())[None] < prefixes[:, None]) & (sentences % HISTOGRAM_EVERY == 0)[:, None]
    batch["counted"] = torch.from_numpy(np.flatnonzero(counted)).to(device)


def _triggers(
    corpus: Corpus,
    loaded: LoadedModel,
    highest: list[Contest],
    lowest: list[Contest],
    statistics: list[Statistics],
    prefixes: int,
) -> Triggers:
    counted = {
        name: torch.cat([getattr(layer, name) for layer in statistics]).cpu().numpy()
        for name in ("fires", "fires_negative", "total", "maximum", "minimum", "histogram")
    }
    if not all(bool(layer.finite.all()) for layer in statistics):
        raise UserError(
            f"Memory coefficients of {loaded.anatomy.checkpoint} are not finite: the model overflows in {loaded.anatomy.dtype}. Use model.dtype float32."
        )
    fires, minimum = counted.pop("fires_negative"), counted.pop("minimum")
    gated = _gated(loaded.anatomy.layers)
    return Triggers(
        layer_offset=np.asarray(loaded.anatomy.layer_offset),
        prefixes=prefixes,
        attributes={},
        negative=Negative(**_examples(corpus, lowest, -1, gated), fires=fires, minimum=minimum) if lowest else None,
        **_examples(corpus, highest, 1, gated),
        **counted,
    )


def _gated(layers: list[Layer]) -> np.ndarray:
    """Whether each memory has a gate [memory]."""
    writes = [write for layer in layers for write in layer.writes]
    return np.repeat([bool(write.gate) for write in writes], [write.memories for write in writes])


def _examples(corpus: Corpus, contests: list[Contest], sign: int, gated: np.ndarray) -> dict[str, np.ndarray]:
    """The winners as fields of `TriggerExamples`, all but `fires`."""
    size, place, gate = (part.cpu().numpy() for part in top_t.unpack(torch.cat([contest.best for contest in contests])))
    found = place >= 0
    sentence = (
        np.searchsorted(corpus.offsets[:-1] + np.arange(len(corpus)), np.where(found, place, 0), side="right") - 1
    )
    position = np.where(found, place - corpus.offsets[sentence] - sentence, 0)
    return {
        "coefficient": np.where(found, sign * size, size),
        "sentence": np.where(found, sentence, NONE).astype(np.int32),
        "position": position.astype(np.int32),
        "next_token": np.where(found, corpus.next_token(sentence, position), NONE).astype(np.int32),
        "gate": np.where(found & gated[:, None], np.where(gate, 1, -1), 0).astype(np.int8),
        "count": found.sum(1).astype(np.int32),
    }
