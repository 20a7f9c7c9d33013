"""What the weights' type does to trigger examples, by hand."""

import numpy as np
import pytest

from ffkv.keys.precision import COLUMNS, precision_row


def row(memories, coefficients, exact) -> dict:
    return precision_row(1, np.array(memories), np.array(coefficients, np.float32), np.array(exact, np.float32))


def test_two_keys_by_hand():
    """Of key 4 the second and the third change places, over the middle; of key 7 the first and the second, within a half."""
    found = row([4, 4, 4, 4, 7, 7, 7, 7, 7], [8, 6, 5, 4, 10, 9, 3, 2, 1], [8, 4.5, 5, 4, 9, 10, 3, 2, 1])
    assert found.keys() == COLUMNS.keys()
    assert (found["layer"], found["keys"], found["triggers"]) == (1, 2, 9)
    assert (found["error_median"], found["error_largest"]) == pytest.approx((0, 0.25))
    assert found["first_stays"] == 1 / 2
    assert found["upper_half_stays"] == 3 / 4  # 8 and 6 of key 4, 10 and 9 of key 7; all but 6


def test_a_single_trigger_has_no_halves():
    found = row([3], [2], [2])
    assert found["first_stays"] == 1 and np.isnan(found["upper_half_stays"])


def test_a_layer_without_triggers_has_no_shares():
    found = row([], [], [])
    assert (found["keys"], found["triggers"]) == (0, 0)
    assert all(np.isnan(found[name]) for name in ("error_median", "error_largest", "first_stays", "upper_half_stays"))
