"""Rows that share a beginning are run once, and read as if each had been run alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import LAYER_KINDS

from benchmarks.pretended_card import DEVICE, PretendedCard, as_device
from ffkv.activations import last_token
from ffkv.activations.last_token import (
    LEAST_SHARED,
    WIDTH,
    can_branch,
    for_each_last_token,
    last_coefficients,
    lines_of,
    rows_to_run,
    side_by_side,
)
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.hooks import relative_error

rows = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(np.array), max_size=20)


@given(rows)
def test_as_few_rows_are_run_as_no_other_one_begins_with(rows):
    longest, within = rows_to_run(rows)
    plain = [tuple(row.tolist()) for row in rows]
    needed = {row for row in plain if not any(other != row and other[: len(row)] == row for other in plain)}
    assert sorted(plain[number] for number in longest) == sorted(needed)
    assert all(plain[longest[run]][: len(row)] == row for row, run in zip(plain, within.tolist(), strict=True))


@given(rows)
def test_lines_hold_each_token_of_each_row(rows):
    """Worked out again from the lines, and a line is never longer than it may be, but for one row alone."""
    longest, _ = rows_to_run(rows)
    runs = [rows[number] for number in longest]
    line, shared = lines_of(runs, most=12)
    for number in range(line.max(initial=-1) + 1):
        trunk, *others = (run for run, of in zip(runs, line, strict=True) if of == number)
        begins = shared[line == number].tolist()
        assert begins[0] == 0 and all(begin >= LEAST_SHARED for begin in begins[1:])
        pairs = list(zip(others, begins[1:], strict=True))
        assert all(row[:begin].tolist() == trunk[:begin].tolist() for row, begin in pairs)
        assert len(trunk) + sum(len(row) - begin for row, begin in pairs) <= 12


@pytest.mark.parametrize("kind", ["bloom", "mpt", "falcon_h1", "recurrent_gemma", "openai-gpt"])
@pytest.mark.parametrize("longest", [1024, 4])
def test_a_model_that_cannot_read_beginnings_once_is_noticed(load_kind, monkeypatch, kind, longest):
    """Also by a row that is longer than a line of short rows."""
    monkeypatch.setattr(last_token, "LONGEST_LINE", longest)
    assert not can_branch(load_kind(kind), np.arange(12))


def test_a_window_that_is_shorter_than_a_row_is_noticed(load_kind):
    loaded = load_kind("gemma2")
    assert can_branch(loaded, np.arange(12))
    loaded.model.config.sliding_window = 6
    assert not can_branch(loaded, np.arange(12))


@pytest.mark.parametrize(("kind", "branching"), [(kind, way) for kind in LAYER_KINDS for way in (False, True)])
def test_rows_are_read_as_if_each_were_run_alone(load_kind, kind, branching):
    loaded = load_kind(kind)
    assert can_branch(loaded, np.arange(12))
    sentence = np.random.default_rng(0).integers(0, 50, 12)
    rows = [sentence[:end] for end in (3, 12, 7, 7)] + [np.delete(sentence, at)[:8] for at in (0, 5)] + [sentence[:1]]
    together, alone = {}, {}
    tokens = []
    loaded.model.get_input_embeddings().register_forward_hook(lambda module, args, out: tokens.append(args[0].numel()))

    def take(numbers, layer, quantity, values, into=together, first=0):
        into.update({(first + number, layer.index, quantity): value for number, value in zip(numbers.tolist(), values)})

    for_each_last_token(loaded, loaded.anatomy.layers, "xmyo", rows, 100, take, branching)
    # Two rows that begin alike on one line of 12 + 3 tokens, or all three rows padded to one length.
    assert sum(tokens) == (15 + 15 if branching else 12 + 8 + 8 + 4 + 4)
    for number, row in enumerate(rows):
        for_each_last_token(
            loaded,
            loaded.anatomy.layers,
            "xmyo",
            [row],
            100,
            lambda *what, first=number: take(*what, into=alone, first=first),
        )
    assert together.keys() == alone.keys()
    for name, value in alone.items():
        # The last digits of a pass depend on the shape of its batch; a wrong mask or position changes the first ones.
        assert relative_error(together[name], value) < 1e-4


def removals(loaded, seed=0):
    """Rows as token removal makes them, five prefixes per layer in mixed order, and a memory of a layer for each row."""
    generator, rows, memories = np.random.default_rng(seed), [], []
    offset = loaded.anatomy.layer_offset
    for number in range(5 * len(loaded.anatomy.layers)):
        prefix = generator.integers(0, 50, generator.integers(6, 13))
        rows += [prefix, prefix[:-1], np.delete(prefix, 1), np.delete(prefix, len(prefix) // 2)]
        layer = number % len(loaded.anatomy.layers)
        memories += [generator.integers(offset[layer], offset[layer + 1])] * 4
    return rows, np.array(memories)


@pytest.mark.parametrize(("kind", "branching"), [(kind, way) for kind in LAYER_KINDS for way in (False, True)])
def test_a_coefficient_is_that_of_its_row_alone_whichever_layers_share_its_pass(load_kind, kind, branching):
    loaded = load_kind(kind)
    rows, memories = removals(loaded)
    layer = np.searchsorted(loaded.anatomy.layer_offset, memories, "right") - 1
    ran = []
    for block in loaded.anatomy.layers:
        name = loaded.model.get_submodule(block.block)
        name.register_forward_pre_hook(lambda *_, number=block.index: ran.append(number))
    alone = np.concatenate(
        [last_coefficients(loaded, rows[n : n + 1], memories[n : n + 1], 1) for n in range(len(rows))]
    )
    assert [ran.count(each.index) for each in loaded.anatomy.layers] == [
        np.count_nonzero(layer >= each.index) for each in loaded.anatomy.layers
    ]
    for tokens in (2000, 60):
        ran.clear()
        seen = []
        found = last_coefficients(loaded, rows, memories, tokens, branching, seen.append)
        assert sum(seen) == len(rows) and len(seen) == ran.count(0)
        # With room for all, each pass goes through all layers. Else the first layer's rows end after it.
        assert ran.count(1) == ran.count(0) if tokens == 2000 else ran.count(1) < ran.count(0)
        # The last digits of a pass depend on the shape of its batch; another row, layer or memory changes the first ones.
        np.testing.assert_allclose(found, alone, atol=1e-5 * np.abs(alone).max(), rtol=1e-4)
    assert last_coefficients(loaded, [], memories[:0], 10).shape == (0,)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_on_a_card_rows_that_do_not_begin_alike_lie_on_one_line_too(load_kind, kind):
    loaded, lines = load_kind(kind), []
    rows, memories = removals(loaded)
    alone = last_coefficients(loaded, rows, memories, 1)
    loaded.model.get_input_embeddings().register_forward_hook(lambda module, args, out: lines.append(len(args[0])))
    with PretendedCard():
        on_card = LoadedModel(loaded.model.to(DEVICE), loaded.anatomy, DEVICE)
        found = last_coefficients(on_card, rows, memories, 2000, branching=True)
    assert sum(lines) <= 2  # of 40 rows and more
    np.testing.assert_allclose(found, alone, atol=1e-5 * np.abs(alone).max(), rtol=1e-4)


@given(st.lists(st.integers(1, WIDTH + 50), min_size=1, max_size=60).map(np.array))
def test_no_two_lines_of_a_card_have_room_on_one(sizes):
    line = side_by_side(sizes, WIDTH)
    tokens = np.bincount(line, sizes)
    assert sorted(set(line.tolist())) == [*range(len(tokens))]
    assert all(tokens[n] <= WIDTH or np.count_nonzero(line == n) == 1 for n in range(len(tokens)))
    assert len(tokens) == 1 or np.sort(tokens)[:2].sum() > WIDTH


@pytest.mark.parametrize("branching", [False, True])
def test_a_card_is_waited_for_once_and_gets_as_much_for_one_row_as_for_many(load_kind, branching):
    """What is started and copied in a pass does not depend on its rows, and results are read after the last pass."""
    counts = []
    with as_device() as ran:
        with PretendedCard():
            loaded = load_kind("llama")
        rows, memories = removals(loaded)
        for part, tokens in ((slice(0, 8), 2000), (slice(None), 2000), (slice(None), 100)):
            ran.clear()
            with PretendedCard() as card:
                last_coefficients(loaded, rows[part], memories[part], tokens, branching)
            passes = max(ran.values())
            # The model's own code looks at the positions of a pass without a mask.
            assert card.waits["synchronize"] == 1 and card.waits.total() <= 1 + passes
            assert card.copies.total() == 3 * passes  # its tokens, what is read of it, and the results
            counts.append((passes, card.launches.total()))
    assert counts[0] == counts[1] and counts[0][0] == 1 < counts[2][0]
