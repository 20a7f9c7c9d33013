"""The running top t against sorting everything."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tries

from ffkv.activations import packing

# Few different values, so that ties are common; negative ones and zeros must never enter. 0.5 and 0.50002 are tied.
SIZES = [-1.0, 0.0, 0.25, 0.5, 0.50002, 0.50004, 1.0, 1.5, 1e-30, 1e-44, 3e38]
coefficients = st.lists(st.sampled_from(SIZES), min_size=1, max_size=40)


def place_in_order(pair: tuple[float, int]):
    """What (value, place) are sorted by: highest first, those with the same 15 significant binary digits by place."""
    mantissa, exponent = np.frexp(np.float32(pair[0]))
    tiny = pair[0] < 2**-126  # has fewer digits
    return (0, 0, pair[1]) if tiny else (-int(exponent) - 200, -int(mantissa * 2**15), pair[1])


def brute_force(values: np.ndarray, t: int) -> list[tuple[float, int]]:
    """Positive values of one key with their places: descending, tied ones by place."""
    return sorted(((float(value), place) for place, value in enumerate(values) if value > 0), key=place_in_order)[:t]


@given(st.lists(coefficients, min_size=1, max_size=4), st.integers(1, 6), st.data())
@settings(max_examples=tries(200))
def test_any_cut_into_batches_and_shards_in_any_order_gives_the_sorted_top(keys, t, data):
    places = max(map(len, keys))
    table = np.full((len(keys), places), -1.0, np.float32)
    for key, values in enumerate(keys):
        table[key, : len(values)] = values
    order = data.draw(st.permutations(range(places)))
    shards = [packing.start(len(keys), t, "cpu") for _ in range(data.draw(st.integers(1, 3)))]
    while order:
        size = data.draw(st.integers(1, len(order)))
        batch, order = torch.tensor(order[:size]), order[size:]
        state = shards[data.draw(st.integers(0, len(shards) - 1))]
        values = torch.from_numpy(table)[:, batch]
        hit, column = (values > packing.floor(packing.edges(state), batch).T).nonzero(as_tuple=True)
        packing.insert(state, hit, packing.pack(values[hit, column], batch[column]))
    whole = shards[0]
    for other in shards[1:]:
        for key, packed in enumerate(other):
            packing.insert(whole, torch.full((t,), key), packed)
    found, place, _ = packing.unpack(whole)
    for key in range(len(keys)):
        expected = brute_force(table[key], t)
        assert [(value, p) for value, p in zip(found[key].tolist(), place[key].tolist(), strict=True) if p >= 0] == [
            (np.float32(v), p) for v, p in expected
        ]
        assert found[key, len(expected) :].tolist() == [0.0] * (t - len(expected))


@given(st.floats(2**-149, 2.0**127, width=32), st.integers(0, 2**31 - 1), st.booleans())
def test_packing_loses_nothing(value, place, gate):
    packed = packing.pack(torch.tensor([value], dtype=torch.float32), torch.tensor([place]), torch.tensor([gate]))
    coefficient, back, positive = packing.unpack(packed)
    assert coefficient.item() == np.float32(value)
    assert back.item() == place
    assert positive.item() is gate
    assert packed.item() > packing.NOTHING


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 0.50002, 1.0, 2.0]), st.integers(0, 2**31 - 1), st.booleans()), max_size=9)
)
def test_the_order_of_packed_triggers_is_that_of_coefficients_then_places_whatever_the_gate(triggers):
    values, places, gates = zip(*triggers, strict=True) if triggers else ((), (), ())
    packed = packing.pack(torch.tensor(values), torch.tensor(places, dtype=torch.int64), torch.tensor(gates).bool())
    for one, first in enumerate(triggers):
        for other, second in enumerate(triggers):
            if place_in_order(first[:2]) != place_in_order(second[:2]):
                assert (packed[one] > packed[other]) == (place_in_order(first[:2]) < place_in_order(second[:2]))


def test_a_tied_coefficient_from_an_earlier_place_wins_and_keeps_its_digits():
    state = packing.start(1, 1, "cpu")
    for place, value in ((7, 1.0), (3, 1.00001), (5, 1.00006)):
        packing.insert(state, torch.tensor([0]), packing.pack(torch.tensor([value]), torch.tensor([place])))
    coefficient, found, gate = packing.unpack(state)
    assert (found.item(), coefficient.item(), gate.item()) == (3, np.float32(1.00001), False)


def test_only_what_can_enter_is_let_in():
    """Behind the last trigger, a coefficient must be higher than all tied ones; before it, at least as high as the least."""
    state = packing.pack(torch.tensor([[1.00003]]), torch.tensor([[9]]))
    (behind,), (ahead,) = packing.floor(packing.edges(state), torch.tensor([10, 8])).tolist()
    assert behind < 1 + 2**-14 == np.nextafter(np.float32(behind), np.float32(2))
    assert ahead < 1 == np.nextafter(np.float32(ahead), np.float32(2))
    tiny = packing.pack(torch.tensor([[1e-44]]), torch.tensor([[9]]))  # no digit of it counts
    for least in (packing.start(1, 1, "cpu"), tiny):
        assert packing.floor(packing.edges(least), torch.tensor([0])).item() == 0


def test_a_state_in_order_begins_with_the_highest():
    assert packing.in_order(torch.tensor([[1, 3, 2], [0, 5, 4]])).tolist() == [[3, 2, 1], [5, 4, 0]]


def test_nothing_to_insert_changes_nothing():
    state = packing.start(2, 3, "cpu")
    packing.insert(state, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert (state == packing.NOTHING).all()


@given(st.integers(0, 5), st.integers(1, 9), st.integers(0, 6), st.integers(0, 2**32))
def test_the_highest_are_what_torch_finds(rows, t, more, seed):
    packed = torch.randint(0, 5, (rows, t + more), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(packing.highest(packed, t), packed.topk(t).values)
