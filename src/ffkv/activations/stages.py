"""In which order the sentences of a corpus are read, so that the model reads once what several of them begin with."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ffkv.activations.batches import blocks
from ffkv.base.batching import batches
from ffkv.base.parts import WHOLE, Part
from ffkv.base.settings import Activations
from ffkv.corpus.competing import CompetingPrefixes

BEGINNINGS = (64, 32, 16, 8, 4, 2)  # tokens of a beginning, BOS not counted
# Sentences of a block read on from beginnings of some length only if that saves this many batches, padding counted.
LEAST_SAVED = 1.0
MOST_HELD = 2  # batches of tokens whose keys and values are held for a batch that reads on, beginnings counted


@dataclass(frozen=True)
class Stage:
    """Batches that are read one after the other: sentences that are read whole, then others that begin like one of them.

    Attributes:
        whole: the sentences of each batch that is read whole [batch][sentence].
        begin: number of tokens that the others have in common with one of these, BOS among them; 0 if there are no others.
        others: the sentences of each batch that reads on from there [batch][sentence].
        like: which of all the sentences of `whole` each of them begins like [batch][sentence].
    """

    whole: list[np.ndarray]
    begin: int = 0
    others: list[np.ndarray] = field(default_factory=list)
    like: list[np.ndarray] = field(default_factory=list)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.whole) + len(self.others)


def stages_of(
    competing: CompetingPrefixes, batching: Activations, shard: Part = WHOLE, read_on: bool = True
) -> Iterator[Stage]:
    """The stages of a shard, planned block by block. Sentences of which no prefix competes are left out.

    A sentence reads on from another one only if none of its prefixes up to there competes: these compete in the other one, or
    in another block. So no sentence does if each prefix competes in all sentences.

    Args:
        competing: the prefixes that compete.
        batching: how sentences are cut into blocks and batches.
        shard: which part of the corpus.
        read_on: whether the model can read on from a beginning.
    """
    for block in blocks(len(competing.corpus), batching.block_sentences, shard):
        sentences = block.start + np.flatnonzero(competing.counts[block.start : block.stop])
        whole = _read_whole(competing, sentences, batching.batch_tokens)
        for begin in BEGINNINGS if read_on and competing.once else ():
            like = _find_like(competing, sentences, begin)
            grouped = np.isin(like, like[like != sentences])
            found = [*_read_on(competing, sentences[grouped], like[grouped], begin, batching.batch_tokens)]
            rest = _read_whole(competing, sentences[~grouped], batching.batch_tokens)
            saved = _count_computed(competing, whole) - _count_computed(competing, found + rest)
            if found and saved >= LEAST_SAVED * batching.batch_tokens:
                yield from found
                sentences, whole = sentences[~grouped], rest
        yield from whole


def count_tokens(competing: CompetingPrefixes, batching: Activations, shard: Part = WHOLE) -> int:
    """Number of tokens of the sentences of a shard of which a prefix competes, their last tokens among them, without BOS."""
    lengths, counts = competing.corpus.lengths, competing.counts
    found = blocks(len(competing.corpus), batching.block_sentences, shard)
    return sum(int(lengths[b.start : b.stop][counts[b.start : b.stop] > 0].sum()) for b in found)


def _count_computed(competing: CompetingPrefixes, stages: list[Stage]) -> int:
    """Number of tokens that the model computes in stages, padding among them. Short batches of few have more padding."""
    lengths, more = competing.corpus.lengths, len(competing.corpus.bos) - 1
    batches_from = [(rows, 0) for stage in stages for rows in stage.whole]
    batches_from += [(rows, stage.begin) for stage in stages for rows in stage.others]
    return sum(len(rows) * (int(lengths[rows].max()) + more - begin) for rows, begin in batches_from)


def _read_whole(competing: CompetingPrefixes, sentences: np.ndarray, batch_tokens: int) -> list[Stage]:
    """The stages of sentences that are all read whole."""
    return [Stage([rows]) for rows in _batches(competing, sentences, batch_tokens)]


def _find_like(competing: CompetingPrefixes, sentences: np.ndarray, begin: int) -> np.ndarray:
    """Which sentence each one of a block can read on from after `begin` tokens; itself if from none [sentence].

    Of sentences that begin alike, it is the one in which the shortest prefix competes.
    """
    corpus, like = competing.corpus, sentences.copy()
    long = np.flatnonzero(corpus.lengths[sentences] > begin + 1)
    if not len(long):
        return like
    starts = corpus.offsets[sentences[long]]
    tokens = corpus.tokens[starts[0] : starts[-1] + begin]
    beginnings = tokens[(starts - starts[0])[:, None] + np.arange(begin)]
    group = np.unique(beginnings, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((sentences[long], competing.first[sentences[long]], group))
    first = order[np.unique(group[order], return_index=True)[1]]
    like[long] = sentences[long][first[group]]
    return like


def _read_on(
    competing: CompetingPrefixes, sentences: np.ndarray, like: np.ndarray, begin: int, batch_tokens: int
) -> Iterator[Stage]:
    """The stages of sentences and of what each one begins like. The beginnings that a stage keeps are one batch at most."""
    begin += len(competing.corpus.bos)
    whole = sentences[like == sentences]
    size = max(1, batch_tokens // begin)
    for start in range(0, len(whole), size):
        first = _batches(competing, whole[start : start + size], batch_tokens)
        place = np.concatenate(first)
        order = np.argsort(place)
        own = np.isin(like, place) & (like != sentences)
        others = _batches(competing, sentences[own], batch_tokens, begin)
        like_of = dict(zip(sentences[own].tolist(), like[own].tolist(), strict=True))
        rows = [order[np.searchsorted(place, [like_of[s] for s in each.tolist()], sorter=order)] for each in others]
        yield Stage(first, begin, others, rows)


def _batches(
    competing: CompetingPrefixes, sentences: np.ndarray, batch_tokens: int, begin: int = 0
) -> list[np.ndarray]:
    """Sentences in batches [batch][sentence]. Of each, `begin` tokens have been read before."""
    corpus = competing.corpus
    lengths = corpus.lengths[sentences] - 1 + len(corpus.bos) - begin
    if begin:  # a short rest takes few tokens, but the keys and values of its beginning take memory, too
        lengths = np.maximum(lengths, -(-(lengths + begin) // MOST_HELD))
    return [sentences[rows] for rows in batches(lengths, batch_tokens)]
