"""The contests of both signs against sorting everything, for any cut into batches and shards."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tries

from ffkv.activations import packing, top_t
from ffkv.activations.top_t import TopT

# Few different values, so that ties are common; many zeros, so that some keys have few of a sign or none. 1.0 and 1.00006
# are tied, 1.00006 and 1.00007 are not.
POSITIVE = [1e-30, 0.5, 1.0, 1.00003, 1.00006, 1.00007, 1.5, 3e38]
coefficients = st.sampled_from([-0.0, 0.0, 0.0, *POSITIVE, *(-size for size in POSITIVE)])
sentences = st.lists(st.lists(st.tuples(coefficients, st.booleans()), min_size=1, max_size=5), min_size=1, max_size=12)


def digits(size: float) -> tuple[int, int]:
    """The power of two and the first 15 significant binary digits of a positive number."""
    mantissa, exponent = np.frexp(np.float32(size))
    return int(exponent), int(mantissa * 2**15)


def first_highest(entry: tuple[float, int, bool]):
    """What triggers (size, place, gate) are sorted by: highest first, tied ones by place."""
    exponent, mantissa = digits(entry[0])
    return -exponent, -mantissa, entry[1]


def brute_force(corpus, sign: int, t: int, one_prefix: bool) -> list[tuple[float, int, bool]]:
    """Size, place and gate of the t coefficients of a sign that are furthest from zero; tied ones by place."""
    found, place = [], 0
    for sentence in corpus:
        own = [(sign * value, place + j, gate) for j, (value, gate) in enumerate(sentence) if sign * value > 0]
        own.sort(key=first_highest)
        found += own[:1] if one_prefix else own
        place += len(sentence)
    return sorted(found, key=first_highest)[:t]


def enter(shard: TopT, corpus, numbers: list[int], sign: int, gated: bool) -> None:
    """One batch: the sentences of these numbers, padded with 0."""
    starts = np.cumsum([0, *map(len, corpus)])
    longest = max(len(corpus[number]) for number in numbers)
    m, gate = torch.zeros(len(numbers), longest, 1), torch.ones(len(numbers), longest, 1, dtype=torch.bool)
    for row, number in enumerate(numbers):
        for token, (value, positive) in enumerate(corpus[number]):
            m[row, token, 0], gate[row, token, 0] = value, positive
    extremes = m.amax(1) if sign > 0 else m.amin(1)
    shard.enter(m, extremes, gate if gated else None, torch.from_numpy(starts[numbers]))


@given(sentences, st.integers(1, 6), st.sampled_from([1, -1]), st.booleans(), st.booleans(), st.data())
@settings(max_examples=tries(300))
def test_any_batches_and_shards_in_any_order_give_the_sorted_top_of_each_sign(corpus, t, sign, one_prefix, gated, data):
    # Both ways to enter, and insertion at once or together.
    dense, waiting = data.draw(st.sampled_from([(0.0, 32), (2.0, 1), (2.0, 32), (0.3, 2)]))
    with mock.patch.multiple(top_t, DENSE_SHARE=dense, PENDING_PER_KEY=waiting):
        whole = compete(corpus, t, sign, one_prefix, gated, data)
    size, place, gate = (part[0].tolist() for part in packing.unpack(whole))
    expected = brute_force(corpus, sign, t, one_prefix)
    found = list(zip(size, place, gate, strict=True))
    assert found[: len(expected)] == [(np.float32(v), p, gated and positive) for v, p, positive in expected]
    assert found[len(expected) :] == [(0.0, -1, False)] * (t - len(expected))


@pytest.mark.parametrize("sign", [1, -1])
def test_what_cannot_enter_is_no_candidate(sign):
    """The list is full with 2; another prefix comes later."""
    contest, m = TopT(1, 1, sign, False, "cpu"), sign * torch.tensor([[[2.0], [3], [1], [0], [-3]]])
    contest.enter(m[:, :1], m[:, 0], None, torch.tensor([0]))
    contest.settle()
    assert contest._candidates(m, torch.tensor([1]))[0, :, 0].tolist() == [False, True, False, False, False]


def compete(corpus, t: int, sign: int, one_prefix: bool, gated: bool, data) -> torch.Tensor:
    """The top t of one key, found by several contests in batches of any size."""
    shards = [TopT(1, t, sign, one_prefix, "cpu") for _ in range(data.draw(st.integers(1, 3)))]
    order = list(data.draw(st.permutations(range(len(corpus)))))
    while order:
        size = data.draw(st.integers(1, len(order)))
        enter(shards[data.draw(st.integers(0, len(shards) - 1))], corpus, order[:size], sign, gated)
        order = order[size:]
    whole = packing.start(1, t, "cpu")
    for shard in shards:
        shard.settle()
        packing.insert(whole, torch.zeros(t, dtype=torch.long), shard.best[0])
    return whole
