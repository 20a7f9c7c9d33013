"""Maps in closed form, beside scikit-learn's ridge regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from benchmarks.pretended_card import DEVICE, PretendedCard
from ffkv.branches.translation.fit import FACTORS, FOLDS, Moments, errors_of, fit, fold_of, scale


def moments(x: np.ndarray, y: np.ndarray) -> Moments:
    """The sums of pairs that are arrays."""
    return Moments.of(torch.from_numpy(x), torch.from_numpy(y))


@pytest.fixture
def pairs():
    """x [300, 6] of 90 sentences, with one coordinate a thousand times as large as the others; y [300, 4]; their folds."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 6)) * [1, 1000, 1, 0.5, 2, 1] + [5, -300, 0, 0, 1, 2]
    y = x @ (generator.normal(size=(6, 4)) / [[1], [1000], [1], [1], [1], [1]]) + generator.normal(size=(300, 4)) + 7
    return x, y, fold_of(np.sort(generator.integers(0, 90, 300)))


def test_the_map_is_that_of_scikit_learn(pairs):
    x, y, fold = pairs
    order = np.random.default_rng(1).permutation(len(x))
    own, shuffled = fit(x, y, fold, order)
    assert own.penalty == shuffled.penalty > 0
    for found, target in ((own, y), (shuffled, y[order])):
        expected = Ridge(alpha=own.penalty, solver="cholesky").fit(x, target)
        # Two ways to solve one system in float64.
        np.testing.assert_allclose(found.weight, expected.coef_.T, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.offset, expected.intercept_, rtol=1e-6)


def test_the_penalty_has_the_smallest_error_on_left_out_folds(pairs):
    x, y, fold = pairs
    totals = []
    for factor in FACTORS:
        total = 0.0
        for number in range(FOLDS):
            held = fold == number
            centred = x[~held] - x[~held].mean(0)
            penalty = factor * np.median((centred**2).sum(0))
            model = Ridge(alpha=penalty, solver="cholesky").fit(x[~held], y[~held])
            total += ((model.predict(x[held]) - y[held]) ** 2).sum()
        totals.append(total)
    parts = [moments(x[fold == number], y[fold == number]) for number in range(FOLDS)]
    whole = moments(x, y)
    factors = torch.from_numpy(FACTORS)
    errors = np.sum([errors_of(whole.plus(part, -1), part, factors).numpy() for part in parts], 0)
    np.testing.assert_allclose(errors, totals, rtol=1e-6)
    best = FACTORS[np.argmin(totals)] * float(scale(whole.around(*map(torch.from_numpy, (x.mean(0), y.mean(0)))).xx))
    assert fit(x, y, fold, np.arange(len(x)))[0].penalty == pytest.approx(best, rel=1e-9)


def test_noise_is_shrunk_and_a_plain_map_is_not():
    generator = np.random.default_rng(2)
    x, fold = generator.normal(size=(200, 50)), fold_of(np.arange(200))
    order = np.arange(200)
    noise, plain = fit(x, generator.normal(size=(200, 50)), fold, order)[0], fit(x, 2 * x + 3, fold, order)[0]
    assert noise.penalty > 1e4 * plain.penalty
    np.testing.assert_allclose(plain.weight, 2 * np.eye(50), atol=1e-4)  # the smallest penalty is 1e-6 of a coordinate
    np.testing.assert_allclose(plain.offset, 3, atol=1e-4)


def test_moments_add_up_and_move():
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(20, 3)), generator.normal(size=(20, 2))
    both = moments(x[:8], y[:8]).plus(moments(x[8:], y[8:]))
    for found, expected in (
        (both, moments(x, y)),
        (both.around(*map(torch.from_numpy, (x[0], y[0]))), moments(x - x[0], y - y[0])),
    ):
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-12, atol=1e-12)


def test_a_fold_splits_no_sentence():
    sentence = np.repeat(np.arange(100, 123), 3)
    fold = fold_of(sentence)
    assert (fold.reshape(-1, 3) == fold[::3, None]).all() and (np.diff(fold) >= 0).all()
    assert sorted(np.bincount(fold[::3])) == [4, 4, 5, 5, 5]
    assert fold_of(np.zeros(4, int)).tolist() == [0] * 4  # of one sentence there is one fold, and no error to compare
    assert np.isfinite(fit(np.eye(4), np.eye(4), fold_of(np.zeros(4, int)), np.arange(4))[0].weight).all()


def test_states_that_are_all_alike_give_a_map_to_the_mean():
    y = np.arange(12.0).reshape(6, 2)
    found, _ = fit(np.ones((6, 3)), y, fold_of(np.arange(6)), np.arange(6))
    np.testing.assert_allclose(found.weight, 0, atol=1e-12)
    np.testing.assert_allclose(found.offset, y.mean(0))


def test_a_single_pair_says_its_own_y_everywhere():
    """(4 - 3)² + (7 - 3)², whatever the penalty."""
    one, two = moments(np.array([[1.0, 2]]), np.array([[3.0]])), moments(np.eye(2), np.array([[4.0], [7]]))
    np.testing.assert_allclose(errors_of(one, two, torch.from_numpy(FACTORS)), 17)
    assert scale(torch.zeros(2, 2)) == 1


def test_means_of_float32_are_those_of_float64():
    """Added in float32, 2**24 + 1 is 2**24."""
    x = np.array([[2**24], [1], [1], [1]], np.float32)
    found = fit(x, x, np.arange(4), np.arange(4))[0]
    mean = x.mean(0, dtype=np.float64)
    np.testing.assert_allclose(found.offset, mean - mean @ found.weight, rtol=1e-9)


def test_a_card_fits_the_same_map(pairs):
    order = np.random.default_rng(1).permutation(300)
    with PretendedCard():
        on_card = fit(*pairs, order, DEVICE)
    for found, expected in zip(on_card, fit(*pairs, order), strict=True):  # the same operations of the same processor
        assert found.penalty == expected.penalty
        np.testing.assert_array_equal(found.weight, expected.weight)
