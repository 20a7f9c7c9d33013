"""How sentences are cut into batches."""

from itertools import chain, combinations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffkv.activations.batches import CACHE, Batching, batches_of, blocks, in_cache
from ffkv.base.batching import PER_BATCH, batches, pad, tight_batches
from ffkv.base.steps import Part
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.shared_prefixes import find_shared_prefixes


@given(st.integers(0, 100), st.integers(1, 30), st.integers(1, 12))
def test_the_shards_share_the_same_blocks_out(total, size, shards):
    whole = blocks(total, size)
    assert [index for block in whole for index in block] == list(range(total))
    assert [block for shard in range(shards) for block in blocks(total, size, Part(shard, shards))] == whole


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
def test_batches_hold_every_row_once_and_no_more_tokens_than_allowed(lengths, limit):
    lengths = np.array(lengths, np.int64)
    cut = batches(lengths, limit)
    assert sorted(np.concatenate(cut).tolist() if cut else []) == list(range(len(lengths)))
    for rows in cut:
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= limit


@given(st.lists(st.integers(1, 50), max_size=9), st.integers(1, 120))
def test_no_cut_takes_less_work_than_a_tight_one(lengths, limit):
    """Beside every cut of the rows, sorted by length, into neighbours."""
    lengths = np.array(lengths, np.int64)

    def work(cut):
        allowed = all(len(rows) == 1 or len(rows) * lengths[rows].max() <= limit for rows in cut)
        return sum(len(rows) * lengths[rows].max() + PER_BATCH for rows in cut) if allowed else np.inf

    cut, order = tight_batches(lengths, limit), np.argsort(lengths, kind="stable")
    np.testing.assert_array_equal(np.concatenate([np.zeros(0, int), *cut]), order)
    bounds = chain.from_iterable(combinations(range(1, len(order)), count) for count in range(len(order)))
    if len(order):
        assert work(cut) == min(work(np.split(order, each)) for each in bounds)


class Text:
    """What batches need of a corpus."""

    def __init__(self, sentences: list[list[int]], bos: int):
        self.bos, self.lengths = [9] * bos, np.array([len(each) for each in sentences])
        tokens, offsets = np.concatenate([np.array(each, np.int32) for each in sentences]), np.cumsum(self.lengths)
        self.first_new, self.shared = find_shared_prefixes(tokens, np.concatenate([[0], offsets]))

    def __len__(self) -> int:
        return len(self.lengths)


rows = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=40)


@given(rows, st.integers(0, 2), st.integers(5, 60), st.integers(1, 20), st.booleans())
def test_each_sentence_with_a_prefix_that_competes_is_in_one_batch(sentences, bos, batch_tokens, block, once):
    text = Text(sentences, bos)
    competing, batching = CompetingPrefixes(text, once), Batching(tokens=batch_tokens, block_sentences=block)
    cut = list(batches_of(competing, batching))
    assert sorted(np.concatenate(cut).tolist()) == np.flatnonzero(competing.counts).tolist()
    for batch in cut:
        assert len(batch) == 1 or len(batch) * (bos + text.lengths[batch].max() - 1) <= batch_tokens
        assert len({sentence // block for sentence in batch.tolist()}) == 1
    in_shards = [batch.tolist() for shard in range(3) for batch in batches_of(competing, batching, Part(shard, 3))]
    assert in_shards == [batch.tolist() for batch in cut]


@given(st.integers(0, 40), st.integers(1, 2 * CACHE // 4))
def test_parts_for_the_cache_are_small_or_single_sentences(sentences, numbers):
    m = torch.empty(1, 1).expand(sentences, numbers)  # no memory for its numbers
    parts = in_cache(m)
    assert [row for part in parts for row in range(sentences)[part]] == list(range(sentences))
    assert all(len(m[part]) == 1 or 4 * m[part].numel() <= CACHE for part in parts)


def test_rows_of_similar_length_stand_together():
    assert [rows.tolist() for rows in batches(np.array([5, 1, 5, 2, 1]), 10)] == [[1, 4, 3], [0, 2]]


def test_padding_is_on_the_right():
    rows = [np.array([3, 4]), np.array([5])]
    assert pad(rows).tolist() == [[3, 4], [5, 0]]
    assert pad(rows, value=-100).tolist() == [[3, 4], [5, -100]]
