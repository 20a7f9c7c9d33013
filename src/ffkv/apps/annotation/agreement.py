"""Agreement between annotators: raw agreement, Cohen's kappa, Krippendorff's alpha, and the overlap of patterns.

The prefixes of a key are not independent of each other. So every interval is over whole keys. What is
counted within a key is a table of categories by categories, the tables of keys add up, and each statistic follows from
the sum. That is why these few formulas stand here: libraries take single ratings, and give no interval. The tests
compare them with the worked examples of the packages krippendorff, scikit-learn and nltk.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ffkv.base.intervals import mean_interval

MISSING = -1  # category of a unit that an annotator has not judged


def confusion(first: np.ndarray, second: np.ndarray, categories: int) -> np.ndarray:
    """Counts how often one annotator said a, and the other one b: number of units [a, b].

    `first`, `second`: what each of both said [unit], a category from 0, or `MISSING`. Such units are left out.
    """
    both = (first >= 0) & (second >= 0)
    counts = np.bincount(first[both] * categories + second[both], minlength=categories**2)
    return counts.reshape(categories, categories).astype(float)


def coincidences(ratings: np.ndarray, categories: int) -> np.ndarray:
    """Krippendorff's matrix of coincidences: pairs of ratings of the same unit.

    A unit with m ratings has m (m - 1) ordered pairs, each of the weight 1 / (m - 1). A unit with one rating has none.
    Takes the category of each unit, from 0, or `MISSING` [annotator, unit]. Returns the sum of weights [a, b].
    Source: Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C.
    """
    said = (ratings[..., None] == np.arange(categories)).sum(0).astype(float)  # [unit, category]
    count = said.sum(1)
    said, count = said[count > 1], count[count > 1]
    weighted = said / (count - 1)[:, None]
    return weighted.T @ said - np.diag(weighted.sum(0))


def raw_agreement(counts: np.ndarray) -> np.ndarray:
    """Computes the share of units of which both say the same, from `confusion` [..., a, b]; NaN without a unit."""
    return _ratio(np.trace(counts, axis1=-2, axis2=-1), counts.sum((-2, -1)))


def kappa(counts: np.ndarray) -> np.ndarray:
    """Cohen's kappa (Cohen 1960), from `confusion` [..., a, b].

    It is (p_o - p_e) / (1 - p_e), where p_e is the agreement of two who answer at random, each with his own shares of
    the categories. It is NaN if both always say the same one category, because then p_e is 1.
    """
    total = counts.sum((-2, -1))
    observed = raw_agreement(counts)
    expected = _ratio((counts.sum(-1) * counts.sum(-2)).sum(-1), total**2)
    return _ratio(observed - expected, 1 - expected)


def alpha(counts: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Krippendorff's alpha, from `coincidences` [..., a, b].

    It is 1 - D_o / D_e: the observed disagreement over the one of ratings that are dealt out at random. It is NaN if
    all ratings are of one category. `distance`: how far apart two categories are [a, b]: `nominal` or `masi`.
    """
    of_category = counts.sum(-1)  # number of ratings that can be paired
    total = of_category.sum(-1)
    dealt = of_category[..., :, None] * of_category[..., None, :]  # of a pair of equal categories, the distance is 0
    observed = _ratio((counts * distance).sum((-2, -1)), total)
    expected = _ratio((dealt * distance).sum((-2, -1)), total * (total - 1))
    return 1 - _ratio(observed, expected)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divides. It is NaN where the quotient is undefined. Rounding can leave a little of a difference that is 0."""
    above, below = np.asarray(above, float), np.asarray(below, float)
    defined = below > 1e-12
    return np.where(defined, above / np.where(defined, below, 1), np.nan)


def nominal(categories: int) -> np.ndarray:
    """Returns the distance between categories that are only equal or different [a, b]."""
    return 1 - np.eye(categories)


def masi(sets: Sequence[frozenset]) -> np.ndarray:
    """Returns the MASI distance between sets (Passonneau 2006) [a, b].

    It is 1 - J·M. J is the Jaccard index. M is 1 for equal sets, 2/3 if one contains the other, 1/3 if they overlap,
    and 0 if they share nothing. Two empty sets are equal.
    """
    weights = [[1 if a == b else 2 / 3 if a < b or b < a else 1 / 3 for b in sets] for a in sets]
    return 1 - np.array([[jaccard(a, b) for b in sets] for a in sets]) * weights  # J is 0 if they share nothing


def jaccard(a: frozenset, b: frozenset) -> float:
    """Returns the Jaccard index: what both sets share, of what either has. Two empty sets are equal: 1."""
    return len(a & b) / len(a | b) if a | b else 1.0


def pattern_overlap(first: Sequence[frozenset], second: Sequence[frozenset]) -> float:
    """Measures how far two annotators saw the same patterns in a key.

    Patterns are matched one to one, so that the sum of the Jaccard indices of their prefixes is as high as possible.
    The sum is divided by the larger number of patterns: a pattern that only one of them saw counts as 0. It is NaN if
    neither saw a pattern. `first`, `second`: the prefixes of each pattern of one annotator, and of the other.
    """
    from scipy.optimize import linear_sum_assignment  # half a second, which the explorer need not wait for

    if not first and not second:
        return float("nan")
    if not first or not second:
        return 0.0
    scores = np.array([[jaccard(a, b) for b in second] for a in first])
    return float(scores[linear_sum_assignment(scores, maximize=True)].sum() / max(scores.shape))


def with_interval(
    statistic: Callable[[np.ndarray], np.ndarray], tables: np.ndarray, lowest: float = -np.inf
) -> tuple[float, float, float]:
    """Returns a statistic with its 95 % interval over keys.

    The interval is that of the mean of the jackknife's pseudo-values (Tukey 1958): of each key, how far the statistic
    changes without it. See `ffkv.base.intervals.mean_interval`. The bounds are NaN with fewer than two keys, and if the
    statistic is undefined without one of the keys. `statistic`: takes sums of tables [..., a, b], and returns numbers
    [...] from `lowest` to 1; `tables`: the table of each key [key, a, b].
    """
    whole, count = tables.sum(0), len(tables)
    value = float(statistic(whole))
    without = statistic(whole - tables)
    if count < 2 or np.isnan(without).any():
        return value, float("nan"), float("nan")
    return value, *mean_interval(count * value - (count - 1) * without, lowest, 1)
