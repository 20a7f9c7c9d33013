import numpy as np
import pytest

from ffkv.branches.keys.removal import choose_positions, relative_changes
from ffkv.branches.keys.tables import REMOVED


def weighted_sum(weights):
    """A fake model: the coefficient of memory i is weights[i] times the token ids, by position from the end."""

    def coefficients(rows, memories):
        assert {row.dtype for row in rows} <= {np.dtype(np.int32)}
        return np.array([row[::-1] @ weights[memory][: len(row)] for row, memory in zip(rows, memories)], np.float32)

    return coefficients


WEIGHTS = np.array([[1.0] * 9, [10, 1, 0, 0, 0, 0, 0, 0, 0]])


def changes(prefixes, memories, bos=(), weights=WEIGHTS, seed=0):
    prefixes = [np.array(prefix, np.int32) for prefix in prefixes]
    return relative_changes(prefixes, np.array(memories), bos, weighted_sum(weights), np.random.default_rng(seed))


def test_the_change_is_relative_to_the_coefficient_of_the_whole_prefix():
    found = changes([[1, 2, 5], [1, 2, 5]], [0, 1])
    assert found[0] == pytest.approx([-100 * 1 / 8, -100 * 5 / 8, -100 * 2 / 8])
    # Memory 1: 10 x last + the one before, 52. Without the last token 2 is the last, 21; without 2, 51.
    assert found[1] == pytest.approx([0, 100 * (21 - 52) / 52, 100 * (51 - 52) / 52])
    assert (changes([[1, 2, 5], [1, 2, 5]], [0, 1], weights=WEIGHTS / 64) == found).all()


def test_bos_stays_in_front():
    found = changes([[3, 4]], [0], bos=[90, 3])
    assert found[0, :2] == pytest.approx([-3, -4])


def test_the_random_token_is_neither_the_first_nor_the_last():
    positions = choose_positions(np.full(2000, 5), np.random.default_rng(0))
    assert set(positions[:, 0]) == {0}
    assert set(positions[:, 1]) == {4}
    assert set(positions[:, 2]) == {1, 2, 3}


def test_what_cannot_be_removed_is_skipped():
    positions = choose_positions(np.array([0, 1, 2, 3]), np.random.default_rng(0))
    assert positions.tolist() == [[-1, -1, -1], [-1, -1, -1], [0, 1, -1], [0, 2, 1]]
    found = changes([[], [7], [7, 8], [7, 8, 9]], [0, 0, 0, 0])
    assert np.isnan(found).tolist() == [[True] * 3, [True] * 3, [False, False, True], [False] * 3]


def test_only_what_is_needed_is_run():
    lengths = []

    def coefficients(rows, memories):
        assert len(rows) == len(memories)
        lengths.extend(len(row) for row in rows)
        return np.ones(len(rows), np.float32)

    prefixes = [np.arange(length, dtype=np.int32) for length in (1, 2, 4)]
    relative_changes(prefixes, np.zeros(3, int), [0], coefficients, np.random.default_rng(0))
    assert sorted(lengths) == sorted([3, 2, 2, 5, 4, 4, 4])


def test_a_coefficient_that_is_not_positive_has_no_relative_change():
    assert np.isnan(changes([[1, 2, 3]], [0], weights=-WEIGHTS)).all()
    assert np.isnan(changes([[2, 2]], [0], weights=np.array([[1.0, -1.0]]))).all()  # 0 with both tokens, 2 with one


def test_no_triggers_no_changes():
    assert changes([], np.zeros(0, int)).shape == (0, len(REMOVED))
