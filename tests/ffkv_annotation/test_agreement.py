"""Statistics of agreement, by the worked examples of libraries and papers, and by brute force over small cases."""

from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from ffkv.base.intervals import mean_interval, wilson
from ffkv_annotation import summaries
from ffkv_annotation.summaries import MISSING, alpha, coincidences, confusion, kappa, masi, raw_agreement

NONE = np.nan
# Krippendorff 2011, page 5; the docstring of krippendorff.alpha (krippendorff 0.9.0) and its sample.py.
CODERS = [
    [NONE, NONE, NONE, NONE, NONE, 3, 4, 1, 2, 1, 1, 3, 3, NONE, 3],
    [1, NONE, 2, 1, 3, 3, 4, 3, NONE, NONE, NONE, NONE, NONE, NONE, NONE],
    [NONE, NONE, 2, 1, 3, 4, 4, NONE, 2, 1, 1, 3, 3, NONE, 4],
]
# The same docstring, from Krippendorff's page 8.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NONE, NONE, NONE],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NONE, 3],
    [NONE, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NONE],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NONE],
]


def codes(rows) -> np.ndarray:
    """From categories that count from 1."""
    rows = np.array(rows, float)
    return np.where(np.isnan(rows), MISSING, rows - 1).astype(int)


def nominal(categories: int) -> np.ndarray:
    """The distance of categories that are only equal or different."""
    return 1 - np.eye(categories)


def squares(categories: int) -> np.ndarray:
    """The distance of numbers, for the interval level."""
    return (np.arange(categories)[:, None] - np.arange(categories)) ** 2.0


@pytest.mark.parametrize(
    ("rows", "distance", "expected"),
    [
        (CODERS, nominal(4), 0.691358),
        (CODERS, squares(4), 0.810845),  # what the library computes if the level is forgotten
        (OBSERVERS, nominal(5), 0.743),
        (OBSERVERS, squares(5), 0.849),
    ],
)
def test_alpha_of_the_worked_examples(rows, distance, expected):
    digits = len(str(expected)) - 2
    assert round(float(alpha(coincidences(codes(rows), len(distance)), distance)), digits) == expected


def test_the_matrix_of_coincidences_of_the_worked_example():
    # Krippendorff 2011, section C: the values 1 to 4 by 1 to 4.
    expected = [[6, 0, 1, 0], [0, 4, 0, 0], [1, 0, 7, 2], [0, 0, 2, 3]]
    np.testing.assert_allclose(coincidences(codes(CODERS), 4), expected, atol=1e-12)  # sums of 1 and 1/2


def test_masi_of_the_worked_example_and_of_each_relation_of_two_sets():
    # nltk.metrics.distance.masi_distance(set([1, 2]), set([1, 2, 3, 4])) is 0.6666666666666667.
    (_, distance), _ = masi([frozenset({1, 2}), frozenset({1, 2, 3, 4})])
    assert distance == pytest.approx(2 / 3, abs=1e-15)
    sets = [frozenset(), frozenset({1}), frozenset({2}), frozenset({1, 2}), frozenset({2, 3})]
    expected = [
        [0, 1, 1, 1, 1],
        [1, 0, 1, 2 / 3, 1],  # {1} in {1, 2}: 1 - 1/2 * 2/3
        [1, 1, 0, 2 / 3, 2 / 3],
        [1, 2 / 3, 2 / 3, 0, 8 / 9],  # overlap: 1 - 1/3 * 1/3
        [1, 1, 2 / 3, 8 / 9, 0],
    ]
    np.testing.assert_allclose(masi(sets), expected, atol=1e-15)


def test_kappa_and_raw_agreement_are_those_of_scikit_learn():
    # scikit-learn's documentation of cohen_kappa_score.
    first = np.array([2, 0, 2, 2, 0, 1])
    second = np.array([0, 0, 2, 2, 0, 2])
    assert round(float(kappa(confusion(first, second, 3))), 4) == 0.4286
    generator = np.random.default_rng(0)
    for _ in range(50):
        first, second = generator.integers(0, 4, (2, 30))
        counts = confusion(first, second, 4)
        assert float(kappa(counts)) == pytest.approx(cohen_kappa_score(first, second, labels=range(4)), abs=1e-12)
        assert float(raw_agreement(counts)) == (first == second).mean()


def brute_force_alpha(rows: np.ndarray, distance: np.ndarray) -> float:
    """From the definition: every pair of ratings of a unit, against every pair of ratings at all."""
    units = [[code for code in unit if code >= 0] for unit in rows.T]
    units = [unit for unit in units if len(unit) > 1]
    ratings = [code for unit in units for code in unit]
    total = len(ratings)
    observed = sum(distance[a, b] / (len(unit) - 1) for unit in units for a, b in permutations(unit, 2)) / total
    expected = sum(distance[a, b] for a, b in permutations(ratings, 2)) / (total * (total - 1))
    return 1 - observed / expected


@pytest.mark.parametrize(
    "distance", [nominal(4), masi(summaries.SETS), squares(4)], ids=["nominal", "masi", "interval"]
)
def test_alpha_is_that_of_its_definition(distance):
    generator = np.random.default_rng(1)
    for _ in range(30):
        rows = generator.integers(-1, 4, (generator.integers(2, 5), 12))
        found = float(alpha(coincidences(rows, 4), distance))
        assert found == pytest.approx(brute_force_alpha(rows, distance), abs=1e-12)


def test_units_that_one_annotator_alone_judged_count_for_nothing():
    rows = codes(CODERS)
    alone = np.hstack([rows, [[0], [MISSING], [MISSING]], [[MISSING]] * 3])
    np.testing.assert_array_equal(coincidences(alone, 4), coincidences(rows, 4))
    assert confusion(*alone[:2], 4).sum() == confusion(*rows[:2], 4).sum() == 3


def test_where_a_statistic_is_not_defined_it_is_nan():
    same = np.zeros(5, int)
    assert float(raw_agreement(confusion(same, same, 4))) == 1
    assert np.isnan(kappa(confusion(same, same, 4)))
    assert np.isnan(alpha(coincidences(np.stack([same, same]), 4), nominal(4)))
    nothing = np.full(3, MISSING)
    for statistic in (raw_agreement, kappa):
        assert np.isnan(statistic(confusion(nothing, nothing, 4)))
    assert np.isnan(alpha(coincidences(np.stack([nothing, nothing]), 4), nominal(4)))


def test_agreement_worse_than_chance_is_negative():
    first, second = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
    assert float(kappa(confusion(first, second, 2))) == -1
    # 4 disagreeing units: 1 - (8/8) / (2*4*4/(8*7))
    assert float(alpha(coincidences(np.stack([first, second]), 2), nominal(2))) == pytest.approx(1 - 56 / 32)


def sets(*patterns):
    return [frozenset(pattern) for pattern in patterns]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (sets({0, 1, 2}), sets({0, 1, 2}), 1),
        (sets({0, 1, 2}), sets({1, 2, 3}), 2 / 4),
        (sets({0, 1, 2}), sets({3, 4, 5}), 0),
        (sets({0, 1, 2}), sets(), 0),
        (sets({0, 1, 2}, {3, 4, 5}), sets({3, 4, 5}), 1 / 2),  # one of two patterns was seen by both
        # Greedy would match the first two (4/5) and leave 1/5; the best matching is 3/5 + 4/6.
        (sets({0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}), sets({0, 1, 2, 3, 4}, {0, 1, 2, 9}), None),
    ],
)
def test_patterns_are_matched_as_well_as_they_can_be(first, second, expected):
    if expected is None:
        options = [
            sum(summaries.jaccard(a, b) for a, b in zip(first, order, strict=True)) / 2
            for order in permutations(second)
        ]
        expected = max(options)
        assert min(options) < expected
    assert summaries.pattern_overlap(first, second) == pytest.approx(expected)
    assert summaries.pattern_overlap(second, first) == pytest.approx(expected)
    assert np.isnan(summaries.pattern_overlap([], []))  # two who see nothing have nothing to compare


def tables_of_keys(generator, keys: int, prefixes: int, same: float) -> np.ndarray:
    """Two annotators who say the same in a share of the keys, and in the others everything else."""
    tables = []
    for _ in range(keys):
        first = generator.integers(0, 2, prefixes)
        second = first if generator.random() < same else 1 - first
        tables.append(confusion(first, second, 2))
    return np.stack(tables)


def test_the_interval_is_of_keys_and_not_of_prefixes():
    tables = tables_of_keys(np.random.default_rng(2), 40, 25, 0.7)
    value, low, high = summaries.with_interval(raw_agreement, tables)
    by_key = np.trace(tables, axis1=1, axis2=2) / 25
    assert value == pytest.approx(by_key.mean())
    # The spread of 40 keys: about ±1.96 times the standard error of their mean, and more on the side of the skewness.
    # 1,000 prefixes would give ±0.03.
    expected = 1.96 * by_key.std() / np.sqrt(40)
    assert high - value == pytest.approx(expected, rel=0.1) and value - low == pytest.approx(expected, rel=0.25)
    assert expected > 0.1


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(4)
    hits = 0
    for _ in range(200):
        _, low, high = summaries.with_interval(raw_agreement, tables_of_keys(generator, 40, 5, 0.7))
        hits += low <= 0.7 <= high
    assert 0.88 <= hits / 200 <= 0.99  # 95 %; two standard errors of 200 trials are 3 %, and 40 keys are not many


def test_the_interval_is_that_of_pseudo_values():
    """Without each key in turn, by brute force. One key has no interval."""
    value, *ends = summaries.with_interval(raw_agreement, confusion(np.array([0, 1]), np.array([0, 0]), 2)[None])
    assert value == 0.5 and np.isnan(ends).all()
    generator = np.random.default_rng(5)
    rows = generator.integers(0, 4, (20, 2, 6))

    def of(keys) -> float:
        return float(alpha(coincidences(np.concatenate(keys, axis=1), 4), nominal(4)))

    whole, without = of(rows), [of(np.delete(rows, key, 0)) for key in range(20)]
    expected = mean_interval(20 * whole - 19 * np.array(without), highest=1)
    found = summaries.with_interval(
        lambda table: alpha(table, nominal(4)), np.stack([coincidences(each, 4) for each in rows])
    )
    assert found == pytest.approx((whole, *expected))


def test_keys_that_are_all_alike_tell_no_interval_but_that_of_a_share():
    """Each key says the same, so that kappa and alpha do not change without it. A share is counted: 6 of 8, by Wilson."""
    first, second = np.array([1, 1, 1, 1, *[0] * 16]), np.array([2, 2, 2, 0, 0, 2, *[0] * 14])
    tables = np.stack([confusion(first, second, 3)] * 8)
    value, *ends = summaries.with_interval(kappa, tables, -1)
    assert value == pytest.approx(0.11 / 0.36) and np.isnan(ends).all()
    together = np.stack([coincidences(np.stack([first, second]), 3)] * 8)
    value, *ends = summaries.with_interval(lambda table: alpha(table, nominal(3)), together)
    assert value == pytest.approx(0.267, abs=1e-3) and np.isnan(ends).all()
    assert summaries.with_interval(raw_agreement, tables, 0) == pytest.approx((0.75, *map(float, wilson(6, 8))))
