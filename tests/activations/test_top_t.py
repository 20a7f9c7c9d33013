"""The contests of both signs against sorting everything, for any cut into batches and shards; and how triggers are packed."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tries

from ffkv.activations import top_t
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
    size, place, gate = (part[0].tolist() for part in top_t.unpack(whole))
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
    whole = top_t.empty(1, t, "cpu")
    for shard in shards:
        shard.settle()
        top_t.insert(whole, torch.zeros(t, dtype=torch.long), shard.best[0])
    return whole


@given(st.floats(2**-149, 2.0**127, width=32), st.integers(0, 2**31 - 1), st.booleans())
def test_packing_loses_nothing(value, place, gate):
    packed = top_t.pack(torch.tensor([value], dtype=torch.float32), torch.tensor([place]), torch.tensor([gate]))
    coefficient, back, positive = top_t.unpack(packed)
    assert coefficient.item() == np.float32(value)
    assert back.item() == place
    assert positive.item() is gate
    assert packed.item() > top_t.NOTHING


@given(st.lists(st.tuples(st.sampled_from([0.5, 0.50002, 1.0]), st.integers(0, 2**31 - 1), st.booleans()), max_size=9))
def test_the_order_of_packed_triggers_is_that_of_coefficients_then_places_whatever_the_gate(triggers):
    values, places, gates = zip(*triggers, strict=True) if triggers else ((), (), ())
    packed = top_t.pack(torch.tensor(values), torch.tensor(places, dtype=torch.int64), torch.tensor(gates).bool())
    for one, first in enumerate(triggers):
        for other, second in enumerate(triggers):
            if first_highest(first) != first_highest(second):
                assert (packed[one] > packed[other]) == (first_highest(first) < first_highest(second))


def test_a_tied_coefficient_from_an_earlier_place_wins_and_keeps_its_digits():
    state = top_t.empty(1, 1, "cpu")
    for place, value in ((7, 1.0), (3, 1.00001), (5, 1.00006)):
        top_t.insert(state, torch.tensor([0]), top_t.pack(torch.tensor([value]), torch.tensor([place])))
    coefficient, found, gate = top_t.unpack(state)
    assert (found.item(), coefficient.item(), gate.item()) == (3, np.float32(1.00001), False)


def test_only_what_can_enter_is_let_in():
    """Behind the last trigger, a coefficient must be higher than all tied ones; before it, at least as high as the least."""
    state = top_t.pack(torch.tensor([[1.00003]]), torch.tensor([[9]]))
    (behind,), (ahead,) = top_t.floor(top_t.edges(state), torch.tensor([10, 8])).tolist()
    assert behind < 1 + 2**-14 == np.nextafter(np.float32(behind), np.float32(2))
    assert ahead < 1 == np.nextafter(np.float32(ahead), np.float32(2))
    tiny = top_t.pack(torch.tensor([[1e-44]]), torch.tensor([[9]]))  # no digit of it counts
    for least in (top_t.empty(1, 1, "cpu"), tiny):
        assert top_t.floor(top_t.edges(least), torch.tensor([0])).item() == 0


def test_nothing_to_insert_changes_nothing():
    state = top_t.empty(2, 3, "cpu")
    top_t.insert(state, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert (state == top_t.NOTHING).all()


@given(st.integers(0, 5), st.integers(1, 9), st.integers(0, 6), st.integers(0, 2**32))
def test_the_highest_are_what_torch_finds(rows, t, more, seed):
    packed = torch.randint(0, 5, (rows, t + more), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(top_t.highest(packed, t), packed.topk(t).values)
