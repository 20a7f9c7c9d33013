"""Maps fitted by the divergence of predictions: on planted states, and never worse than the map that they start from."""

import numpy as np
import pytest

from ffkv.branches.translation.descent import HELD, descend
from ffkv.branches.translation.maps import TranslatedHead
from ffkv.branches.translation.readings import divergences
from ffkv.branches.translation.ridge import Ridge, fit, fold_of
from ffkv.model.head.head_file import load_head

WORDS = 17  # of the detector, whose head is a norm and the identity
N = 900


@pytest.fixture(scope="module")
def head(detector):
    return load_head(detector, "cpu")


@pytest.fixture(scope="module")
def states():
    """States of a layer, one coordinate a thousand times as large; those of the last layer; folds; a shuffled order."""
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(WORDS, WORDS)))[0]
    last = 4 * np.eye(WORDS)[generator.integers(WORDS, size=N)] + 0.5 * generator.normal(size=(N, WORDS))
    states = last @ rotation + 1 + 0.05 * generator.normal(size=last.shape)
    states[:, 0] *= 1000
    x, y = (array.astype(np.float32) for array in (states, last))
    return x, y, fold_of(np.arange(N) // 3), generator.permutation(N)


def divergence(head, ridge: Ridge, x: np.ndarray, y: np.ndarray) -> float:
    reader = TranslatedHead(head, ridge.weight.astype(np.float32), ridge.offset.astype(np.float32), 1)
    return float(divergences(head, y, 1, {"": reader}, x, 0)[""].mean())


def test_a_planted_rotation_is_recovered_from_a_map_that_has_lost_it(head, states):
    """The start is the ridge map of half of the words alone: the others are read as nothing."""
    x, y, fold, order = states
    ridge, _ = fit(x, y, fold, order)
    half = ridge._replace(weight=ridge.weight * (np.arange(WORDS) % 2), offset=ridge.offset * (np.arange(WORDS) % 2))
    found = descend(head, 1, half, x, y, fold, np.random.default_rng(1))
    before, after, best = (divergence(head, each, x, y) for each in (half, found, ridge))
    assert found.steps > 0 and after < best + 0.2 * (before - best)


@pytest.mark.parametrize("pairs", ["own", "shuffled", "noise"])
def test_the_divergence_on_what_is_left_out_is_never_above_that_of_the_start(head, states, pairs):
    x, y, fold, order = states
    if pairs == "noise":
        x = np.random.default_rng(3).normal(size=x.shape).astype(np.float32)
    start = fit(x, y, fold, order)[pairs == "shuffled"]
    y = y[order] if pairs == "shuffled" else y
    found = descend(head, 1, start, x, y, fold, np.random.default_rng(1))
    held = np.flatnonzero(fold == fold.max())[::1]
    assert len(held) <= HELD
    before, after = (divergence(head, each, x[held], y[held]) for each in (start, found))
    assert after < before if found.steps else after == before
    if pairs == "shuffled":  # it stays a null: nothing of the pairs that belong together is in it
        _, own = states[:2]
        assert divergence(head, found, x, own) > 5 * divergence(head, fit(x, own, fold, order)[0], x, own)


def test_the_same_seed_gives_the_same_map_and_a_single_fold_leaves_the_start(head, states):
    x, y, fold, order = states
    start = fit(x, y, fold, order)[0]._replace(offset=np.zeros(WORDS))
    one, same, other = (descend(head, 1, start, x, y, fold, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.weight, same.weight)
    assert one.steps == same.steps > 0 and not np.array_equal(one.weight, other.weight)
    assert descend(head, 1, start, x, y, np.zeros(N, int), np.random.default_rng(1)) is start
