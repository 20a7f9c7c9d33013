"""Maps in closed form, beside scikit-learn's ridge regression; and their file."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from ffkv.base.errors import UserError
from ffkv.branches.translation import maps
from ffkv.branches.translation.maps import FACTORS, FOLDS, Moments, errors_of, fit, fold_of, scale


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
    parts = [Moments.of(x[fold == number], y[fold == number]) for number in range(FOLDS)]
    whole = Moments.of(x, y)
    errors = np.sum([errors_of(whole.plus(part, -1), part) for part in parts], 0)
    np.testing.assert_allclose(errors, totals, rtol=1e-6)
    best = FACTORS[np.argmin(totals)] * scale(whole.around(x.mean(0), y.mean(0)).xx)
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
    both = Moments.of(x[:8], y[:8]).plus(Moments.of(x[8:], y[8:]))
    for found, expected in ((both, Moments.of(x, y)), (both.around(x[0], y[0]), Moments.of(x - x[0], y - y[0]))):
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
    one, two = Moments.of(np.array([[1.0, 2]]), np.array([[3.0]])), Moments.of(np.eye(2), np.array([[4.0], [7]]))
    np.testing.assert_allclose(errors_of(one, two), 17)
    assert scale(np.zeros((2, 2))) == 1


def test_means_of_float32_are_those_of_float64():
    """Added in float32, 2**24 + 1 is 2**24."""
    x = np.array([[2**24], [1], [1], [1]], np.float32)
    found = fit(x, x, np.arange(4), np.arange(4))[0]
    mean = x.mean(0, dtype=np.float64)
    np.testing.assert_allclose(found.offset, mean - mean @ found.weight, rtol=1e-9)


def test_the_map_of_a_layer_in_a_reading_is_read_again_and_another_group_is_refused(tmp_path):
    weight, offset = (
        np.random.default_rng(0).normal(size=(2, 2, *shape)).astype(np.float32) for shape in ((3, 3), (3,))
    )
    made = maps.Maps(layer=np.array([4, 5], np.int32), weight=weight, offset=offset, attributes={})
    maps.write_maps(tmp_path / "maps.h5", made)
    read = maps.read_maps(tmp_path / "maps.h5", {}, [4, 5])
    for which, reading in enumerate(("translated", "shuffled")):
        for found, expected in zip(read.map_of(reading, 5), (weight[1, which], offset[1, which]), strict=True):
            np.testing.assert_array_equal(found, expected)
    message = r"maps\.h5 has layers \[4, 5\], not layers \[3, 4\]: give the file of the same layer group"
    with pytest.raises(UserError, match=message):
        maps.read_maps(tmp_path / "maps.h5", {}, [3, 4])
