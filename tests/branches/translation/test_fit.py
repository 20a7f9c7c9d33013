"""Maps on planted states: by the divergence of predictions never worse than the start, and values that hold words behind a rotation."""

import numpy as np
import pytest

from ffkv.branches.translation.fit import HELD, Ridge, descend, divergences, explained_variance, fit, fold_of, lens_of
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions

WORDS = 17  # of the detector, whose head is a norm and the identity
N, MEMORIES = 900, 2000


@pytest.fixture(scope="module")
def head(detector):
    return load_head(detector, "cpu")


def rotated(noise: float) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
    """Returns a generator, a rotation, states of the last layer that say words, and the same ones rotated, of an earlier layer."""
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(WORDS, WORDS)))[0]
    last = 4 * np.eye(WORDS)[generator.integers(WORDS, size=N)] + noise * generator.normal(size=(N, WORDS))
    return generator, rotation, last, last @ rotation + 1 + 0.05 * generator.normal(size=last.shape)


@pytest.fixture(scope="module")
def states():
    """States of a layer, one coordinate a thousand times as large; those of the last layer; folds; a shuffled order."""
    generator, _, last, states = rotated(0.5)
    states[:, 0] *= 1000
    x, y = (array.astype(np.float32) for array in (states, last))
    return x, y, fold_of(np.arange(N) // 3), generator.permutation(N)


def divergence(head, ridge: Ridge, x: np.ndarray, y: np.ndarray) -> float:
    return float(divergences(head, y, {"": lens_of(ridge, head)}, x, 0)[""].mean())


def test_a_planted_rotation_is_recovered_from_a_map_that_has_lost_it(head, states):
    """The start is the ridge map of half of the words alone: the others are read as nothing."""
    x, y, fold, order = states
    ridge, _ = fit(x, y, fold, order)
    half = ridge._replace(weight=ridge.weight * (np.arange(WORDS) % 2), offset=ridge.offset * (np.arange(WORDS) % 2))
    found = descend(head, half, x, y, fold, np.random.default_rng(1))
    before, after, best = (divergence(head, each, x, y) for each in (half, found, ridge))
    assert found.steps > 0 and after < best + 0.2 * (before - best)


@pytest.mark.parametrize("pairs", ["own", "shuffled", "noise"])
def test_the_divergence_on_what_is_left_out_is_never_above_that_of_the_start(head, states, pairs):
    x, y, fold, order = states
    if pairs == "noise":
        x = np.random.default_rng(3).normal(size=x.shape).astype(np.float32)
    start = fit(x, y, fold, order)[pairs == "shuffled"]
    y = y[order] if pairs == "shuffled" else y
    found = descend(head, start, x, y, fold, np.random.default_rng(1))
    held = np.flatnonzero(fold == fold.max())
    assert len(held) <= HELD
    before, after = (divergence(head, each, x[held], y[held]) for each in (start, found))
    assert after < before if found.steps else after == before
    if pairs == "shuffled":  # it stays a null: nothing of the pairs that belong together is in it
        own = states[1]
        assert divergence(head, found, x, own) > 5 * divergence(head, fit(x, own, fold, order)[0], x, own)


def test_the_same_seed_gives_the_same_map_and_a_single_fold_leaves_the_start(head, states):
    x, y, fold, order = states
    start = fit(x, y, fold, order)[0]._replace(offset=np.zeros(WORDS))
    one, same, other = (descend(head, start, x, y, fold, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.weight, same.weight)
    assert one.steps == same.steps > 0 and not np.array_equal(one.weight, other.weight)
    assert descend(head, start, x, y, np.zeros(N, int), np.random.default_rng(1)) is start


def agreement(head, planted: float) -> dict[str, np.ndarray]:
    """Returns by reading whether each value predicts its word, if a share of them hold it behind a rotation."""
    generator, rotation, last, states = rotated(0.3)
    own, shuffled = fit(states, last, fold_of(np.arange(N) // 3), generator.permutation(N))
    assert explained_variance(last, states @ own.weight + own.offset) > 0.95
    w = generator.integers(WORDS, size=MEMORIES)
    values = generator.normal(size=(MEMORIES, WORDS))
    holds = np.arange(MEMORIES) < planted * MEMORIES
    values[holds] = 4 * np.eye(WORDS)[w[holds]] @ rotation
    lenses = {"head": head, "translated": lens_of(own, head), "shuffled": lens_of(shuffled, head)}
    return {
        name: predictions(lens, values.astype(np.float32), 0, change=True).ids == w for name, lens in lenses.items()
    }


@pytest.mark.parametrize("planted", [0.0, 0.4])
def test_the_planted_rate_is_recovered_by_the_map_alone(head, planted):
    found = agreement(head, planted)
    error = 5 * np.sqrt(1 / WORDS / MEMORIES)  # five standard errors of agreement by chance, 1 in 17
    assert found["translated"].mean() == pytest.approx(planted + (1 - planted) / WORDS, abs=error)
    if planted:
        assert found["translated"][: int(planted * MEMORIES)].mean() > 0.99
    # A fixed rotation sends each word to one direction, whose highest word is another fixed one: by luck it is the same word.
    assert found["head"].mean() == pytest.approx(1 / WORDS, abs=max(error, 2.5 * planted / WORDS))
    assert found["shuffled"].mean() == pytest.approx(1 / WORDS, abs=max(error, 2.5 * planted / WORDS))
