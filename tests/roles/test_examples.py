"""Trigger examples beside both ends of values, and the signs of gates, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from ffkv.branches.roles.examples import share_in, shares_in_ends, sign_cases, tokens_seen
from ffkv.branches.roles.step import name_outputs


def test_shares_of_tokens_at_both_ends_of_values():
    """Sentences 5 6 7 8 and 9 5. The key of memory 0 fires after 5 6 and after 9, memory 1 after 5, memory 2 never."""
    examples = SimpleNamespace(
        sentence=np.array([[0, 1], [0, -1], [-1, -1]]),
        position=np.array([[2, 1], [1, 0], [0, 0]]),
        next_token=np.array([[7, 5], [6, -1], [-1, -1]]),
    )
    seen = tokens_seen(examples, np.array([5, 6, 7, 8, 9, 5]), np.array([0, 4, 6]))
    assert seen["last"].tolist() == [[6, 9], [5, -1], [-1, -1]]
    found = shares_in_ends(seen, np.array([[7, 9], [6, 7], [1, 2]]), np.array([[6, 0], [5, 1], [3, 4]]))
    expected = {
        "next_in_top": [0.5, 1, np.nan],
        "next_in_bottom": [0, 0, np.nan],
        "last_in_top": [0.5, 0, np.nan],
        "last_in_bottom": [0.5, 1, np.nan],
    }
    assert {*found} == {*expected}
    for name, shares in expected.items():
        np.testing.assert_array_equal(found[name], np.array(shares, np.float32))


def test_an_empty_prefix_has_no_last_token():
    examples = SimpleNamespace(sentence=np.array([[0]]), position=np.array([[0]]), next_token=np.array([[5]]))
    assert tokens_seen(examples, np.array([5, 6]), np.array([0, 2]))["last"].tolist() == [[-1]]
    assert np.isnan(share_in(np.array([[-1]]), np.array([[-1, 2]]))).all()  # what is not there is in nothing


def test_the_four_sign_cases(worked):
    """Positive coefficients: both factors positive or both negative. Negative ones: one of them negative."""
    gate = np.zeros_like(worked.triggers.gate)
    gate[0, :3], gate[1, :2] = [1, -1, -1], [-1, 1]
    both = replace(worked.triggers, gate=gate, negative=SimpleNamespace(gate=-gate))
    found = {name: column[:3].tolist() for name, column in sign_cases(both).items()}
    assert found == {
        "both_positive": [1, 1, 0],
        "first_both_positive": [0, 1, -1],
        "both_negative": [2, 1, 0],
        "first_both_negative": [1, 0, -1],
        "gate_negative": [1, 1, 0],
        "first_gate_negative": [0, 1, -1],
        "up_negative": [2, 1, 0],
        "first_up_negative": [1, 0, -1],
    }
    alone = sign_cases(replace(both, negative=None))
    assert not alone["up_negative"].any() and (alone["first_gate_negative"] == -1).all()
    assert alone["both_negative"][:3].tolist() == [2, 1, 0]


def test_outputs_are_named_by_the_sharper_end():
    skewness, kurtosis = np.array([5, -5, 5, 0, np.nan]), np.array([30, 30, 10, 30, np.nan])
    assert name_outputs(skewness, kurtosis).tolist() == ["prediction", "suppression", "other", "other", ""]
