"""Rows that share a beginning are run once, and read as if each had been run alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import LAYER_KINDS

from ffkv.activations.last_token import LEAST_SHARED, branches, for_each_last_token, lines_of, rows_to_run
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
def test_a_model_that_cannot_read_beginnings_once_is_noticed(load_kind, kind):
    assert not branches(load_kind(kind), np.arange(12))


def test_a_window_that_is_shorter_than_a_row_is_noticed(load_kind):
    loaded = load_kind("gemma2")
    assert branches(loaded, np.arange(12))
    loaded.model.config.sliding_window = 6
    assert not branches(loaded, np.arange(12))


@pytest.mark.parametrize(("kind", "branching"), [(kind, way) for kind in LAYER_KINDS for way in (False, True)])
def test_rows_are_read_as_if_each_were_run_alone(load_kind, kind, branching):
    loaded = load_kind(kind)
    assert branches(loaded, np.arange(12))
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
