"""How sentences are cut into batches: fixed blocks, sorted by length inside, padded on the right, without a mask.

A causal model never lets a token see what follows it, so padding on the right needs no mask. Blocks do not depend on
the number of shards, because the last digits of a forward pass depend on the shape of its batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches, pad, to_device
from ffkv.base.errors import UserError
from ffkv.base.settings.common import TOKENS_ON_CPU, Batches
from ffkv.base.steps import WHOLE, Part
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.shared_prefixes import HISTOGRAM_EVERY
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.discover.lengths import steady_length

CACHE = 2**20  # bytes that the cache of one core holds
EXACT = 2**24  # whole numbers below it, and their sums, are exact in float32


class Batching(NamedTuple):
    """How sentences become batches, see the settings `batches`."""

    tokens: int = TOKENS_ON_CPU  # maximum number per batch, padding included
    block_sentences: int = Batches().block_sentences


def blocks(total: int, size: int, shard: Part = WHOLE) -> list[range]:
    """Returns the blocks of `size` of `total` sentences in a shard, perhaps none. The last one may be smaller."""
    count = -(-total // size)
    return [range(block * size, min((block + 1) * size, total)) for block in shard.of(count)]


def check_longest(loaded: LoadedModel, corpus: Corpus, batching: Batching) -> None:
    """Proves on the run's own device that the longest sentence is read as its beginnings are, alone and in a batch.

    Raises UserError if coefficients of a prefix depend on what follows it, or on what is read beside it.
    """
    row = np.concatenate([corpus.bos, corpus.ids(int(np.argmax(corpus.lengths)))[:-1]]).astype(np.int64)
    layers, about = loaded.anatomy.layers, loaded.anatomy.checkpoint
    try:
        steady = steady_length(loaded.model, layers, row, loaded.device, batching.tokens)
    except UserError as error:
        raise type(error)(f"{about}: {error}") from error  # as it is, where a smaller batch may help
    if steady < len(row):
        raise UserError(
            f"{about}: in a row of more than {steady:,} tokens the coefficients of a prefix depend on what follows it, and"
            f" the longest sentence has {len(row):,}. Set corpus.context to {steady}."
        )


def batches_of(competing: CompetingPrefixes, batching: Batching, shard: Part = WHOLE) -> Iterator[np.ndarray]:
    """Yields the sentences of each batch of a shard [sentence]. Sentences of which no prefix competes are left out."""
    corpus = competing.corpus
    for block in blocks(len(corpus), batching.block_sentences, shard):
        sentences = block.start + np.flatnonzero(competing.counts[block.start : block.stop])
        read = corpus.lengths[sentences] - 1 + len(corpus.bos)  # tokens of each one: the last one is not read, BOS is
        yield from (sentences[rows] for rows in batches(read, batching.tokens))


def in_cache(m: Tensor) -> list[slice]:
    """Cuts the sentences of a batch [sentence, ...] into parts that fit into a core's cache; on a GPU into one part."""
    if m.device.type != "cpu":
        return [slice(None)]
    size = max(1, CACHE // max(1, m[:1].numel() * m.element_size()))
    return [slice(start, start + size) for start in range(0, len(m), size)]


@dataclass(frozen=True)
class Batch:
    """Sentences that the model reads together, without their last tokens: no token follows the whole sentence."""

    ids: Tensor  # token ids, BOS among them, padded with 0 [sentence, token]
    competing: slice  # the positions at which prefixes may compete: all but those of BOS
    # flat positions among these at which no prefix competes: padding, and prefixes that compete in another sentence;
    # None if there are none
    left_out: Tensor | None
    # how many prefixes of the corpus the one that ends at the token stands for; 0 if it does not compete. float32, or
    # float64 if float32 cannot count them [sentence, token].
    multiplicity: Tensor
    # how many prefixes of the histogram the one that ends at the token stands for, int32 [sentence, token]
    histogram_times: Tensor
    in_histogram: Tensor  # flat positions of the prefixes that the histogram counts
    in_histogram_again: Tensor | None  # those of them that it counts more than once; None if there are none
    times_again: Tensor | None  # how often more [prefix that is counted again]
    place: Tensor  # place in the corpus of each sentence's shortest prefix that may compete [sentence]
    tokens: int  # number of tokens of the sentences, their last ones included
    prefixes: int  # number of prefixes of the corpus that the batch stands for

    def on(self, device: torch.device) -> "Batch":
        """Returns the batch with its tensors on a device."""
        if self.ids.device == device:
            return self
        moved: dict[str, Any] = {name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)}
        return replace(self, **moved)


def describe(competing: CompetingPrefixes, sentences: np.ndarray, device: str) -> Batch:
    """Returns the batch of some sentences, by their numbers [sentence], with its tensors on a device.

    The places in the corpus count every sentence's empty prefix, whether it competes or not.
    """
    corpus = competing.corpus
    bos, empty = len(corpus.bos), int(competing.empty)
    lengths = corpus.lengths[sentences] - 1 + bos
    position = np.arange(lengths.max())[None] + 1 - bos  # of the prefix that ends at a token
    first = max(bos - empty, 0)  # token of the batch at which prefixes may compete
    competes = (position >= competing.first[sentences][:, None]) & (position < corpus.lengths[sentences][:, None])
    multiplicity = competes.astype(np.float64)
    in_histogram = multiplicity * (sentences % HISTOGRAM_EVERY == 0)[:, None]
    if competing.once:  # a prefix that several sentences begin with counts as often as it is read
        shared = corpus.shared
        numbers = shared.of_sentences(sentences)
        ending = shared.position[numbers]
        numbers, ending = numbers[ending >= 1 - empty], ending[ending >= 1 - empty]
        order = np.argsort(sentences)
        row = order[np.searchsorted(sentences, shared.sentence[numbers], sorter=order)]
        multiplicity[row, bos + ending - 1] = shared.multiplicity[numbers]
        in_histogram[row, bos + ending - 1] = shared.in_histogram[numbers]
    again = np.flatnonzero(in_histogram > 1)
    times_again = in_histogram.flatten()[again].astype(np.int64) - 1
    dtype = np.float32 if multiplicity.sum() < EXACT else np.float64
    left_out = np.flatnonzero(~competes & (position > -empty))
    return Batch(
        ids=pad([np.concatenate([corpus.bos, corpus.ids(s)[:-1]]) for s in sentences.tolist()], device),
        competing=slice(first, None),
        left_out=to_device(left_out, device) if len(left_out) else None,
        multiplicity=to_device(multiplicity.astype(dtype), device),
        histogram_times=to_device(in_histogram.astype(np.int32), device),
        in_histogram=to_device(np.flatnonzero(in_histogram), device),
        in_histogram_again=to_device(again, device) if len(again) else None,
        times_again=to_device(times_again, device) if len(again) else None,
        place=to_device(corpus.offsets[sentences] + sentences + int(position[0, first]), device),
        tokens=int(corpus.lengths[sentences].sum()),
        prefixes=int(multiplicity.sum()),
    )
