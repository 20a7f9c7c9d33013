"""Rows that share a beginning are run once, and read as if each had been run alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ffkv.activations.last_token import for_each_last_token, rows_to_run
from ffkv.model.checkpoint.load import load

rows = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(np.array), max_size=20)


@given(rows)
def test_as_few_rows_are_run_as_no_other_one_begins_with(rows):
    longest, within = rows_to_run(rows)
    plain = [tuple(row.tolist()) for row in rows]
    needed = {row for row in plain if not any(other != row and other[: len(row)] == row for other in plain)}
    assert sorted(plain[number] for number in longest) == sorted(needed)
    assert all(plain[longest[run]][: len(row)] == row for row, run in zip(plain, within.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2-moe"])
def test_rows_are_read_as_if_each_were_run_alone(proven, kind):
    loaded = load(proven(kind), "cpu")
    sentence = np.random.default_rng(0).integers(0, 59, 12)
    rows = [sentence[:end] for end in (3, 12, 7, 7)] + [np.delete(sentence, at)[:8] for at in (0, 5)] + [sentence[:1]]
    together, alone = {}, {}
    tokens = []
    loaded.model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: tokens.append(args[0].numel())
    )

    def take(numbers, layer, quantity, values, into=together, first=0):
        into.update({(first + number, layer.index, quantity): value for number, value in zip(numbers.tolist(), values)})

    for_each_last_token(loaded, loaded.anatomy.layers, "xmyo", rows, 100, take)
    assert sum(tokens) == 12 + 8 + 8 + 4 + 4  # three rows, padded to one length
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
        # The last digits of a pass depend on the shape of its batch.
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-5)
