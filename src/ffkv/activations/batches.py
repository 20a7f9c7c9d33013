"""How sentences are cut into batches: fixed blocks, sorted by length inside, padded on the right, without a mask.

A causal model never lets a token see what follows it, so padding on the right needs no mask. Blocks do not depend on the
number of shards, because the last digits of a forward pass depend on the shape of its batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.trigger_file import HISTOGRAM_EVERY
from ffkv.batching import batches, pad
from ffkv.corpus.corpus_file import Corpus
from ffkv.parts import WHOLE, Part
from ffkv.settings import Activations

CACHE = 2**20  # bytes that the cache of one core holds


def blocks(total: int, size: int, shard: Part = WHOLE) -> list[range]:
    """The blocks of `size` sentences of a shard.

    Args:
        total: number of sentences; the last block may be smaller.
        size: sentences per block.
        shard: which part of all blocks; a shard may have none.
    """
    count = -(-total // size)
    return [range(block * size, min((block + 1) * size, total)) for block in shard.of(count)]


def padding(lengths: np.ndarray, device: str) -> Tensor | None:
    """Flat positions of the padding in a batch of rows of these lengths; None if there is none."""
    width = lengths.max()
    flat = np.flatnonzero(np.arange(width)[None] >= lengths[:, None])
    return torch.from_numpy(flat).to(device) if len(flat) else None


def in_cache(m: Tensor) -> list[slice]:
    """Cuts the sentences of a batch [sentence, ...] into parts that stay in a core's cache from one operation to the next.

    On a GPU they are one part.
    """
    if m.device.type != "cpu":
        return [slice(None)]
    size = max(1, CACHE // max(1, m[:1].numel() * m.element_size()))
    return [slice(start, start + size) for start in range(0, len(m), size)]


@dataclass(frozen=True)
class Batch:
    """Sentences that the model reads together, without their last tokens: no token follows the whole sentence.

    Attributes:
        ids: token ids, BOS among them, padded with 0 [sentence, token].
        padding: flat positions of the padding; None if there is none.
        competing: the positions whose prefixes compete.
        competes: 1.0 if a competing prefix ends at the token, else 0.0 [sentence, token].
        in_histogram: flat positions of the prefixes that the histogram counts.
        place: place in the corpus of each sentence's first competing prefix [sentence].
        tokens: number of tokens of the sentences, their last ones included.
        prefixes: number of competing prefixes.
    """

    ids: Tensor
    padding: Tensor | None
    competing: slice
    competes: Tensor
    in_histogram: Tensor
    place: Tensor
    tokens: int
    prefixes: int


def rows_of(corpus: Corpus, batching: Activations, shard: Part = WHOLE) -> Iterator[np.ndarray]:
    """The sentences of each batch of a shard [sentence]."""
    for block in blocks(len(corpus), batching.block_sentences, shard):
        lengths = corpus.lengths[block.start : block.stop] - 1 + len(corpus.bos)
        for rows in batches(lengths, batching.batch_tokens):
            yield rows + block.start


def describe(corpus: Corpus, sentences: np.ndarray, include_empty_prefix: bool, device: str) -> Batch:
    """The batch of some sentences.

    Args:
        corpus: their corpus.
        sentences: their numbers [sentence].
        include_empty_prefix: whether the empty prefix (BOS alone) competes. Its place in the corpus precedes those of
            the sentence's other prefixes, whether it competes or not.
        device: device of the tensors.
    """
    bos, empty = len(corpus.bos), int(include_empty_prefix)
    lengths = corpus.lengths[sentences] - 1 + bos
    token = np.arange(lengths.max())[None]
    competes = (token >= bos - empty) & (token < lengths[:, None])
    in_histogram = np.flatnonzero(competes & (sentences % HISTOGRAM_EVERY == 0)[:, None])
    tokens = int(corpus.lengths[sentences].sum())
    return Batch(
        ids=pad([np.concatenate([corpus.bos, corpus.ids(s)[:-1]]) for s in sentences.tolist()], device),
        padding=padding(lengths, device),
        competing=slice(bos - empty, None),
        competes=torch.from_numpy(competes.astype(np.float32)).to(device),
        in_histogram=torch.from_numpy(in_histogram).to(device),
        place=torch.from_numpy(corpus.offsets[sentences] + sentences + 1 - empty).to(device),
        tokens=tokens,
        prefixes=tokens - len(sentences) * (1 - empty),
    )
