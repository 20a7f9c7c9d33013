"""Intervals and summaries that several rooms use."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

Z_95 = 1.959963984540054  # the standard normal's 97.5 % point
# The means of Poisson distributions in which 1 or more, 2 or more, 3 or more events have the probability 5 %.
RARE = (0.0512933, 0.3553615, 0.8176914)
LEAST_GROUPS = 5  # groups from which on there is an interval over groups


def wilson(successes: np.ndarray | float, trials: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Computes the 95 % Wilson score interval of a proportion (Wilson 1927).

    With one to three successes the lower bound is too high, and with one to three failures the upper bound is too low:
    the interval would cover as little as 84 %. There the bound comes from the Poisson distribution (Brown, Cai and
    DasGupta 2001, section 4.1.2).

    `successes` and `trials`: counts of one shape, whichever. Returns lower and upper bounds, each of that shape; (0, 1) if
    there are no trials.
    """
    successes, trials = np.asarray(successes, float), np.asarray(trials, float)
    n = np.maximum(trials, 1)
    share, z2 = successes / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * np.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    low = np.where(successes > 0, centre - half, 0.0)
    high = np.where(successes < trials, centre + half, 1.0)
    for count, events in enumerate(RARE, 1):
        low = np.where(successes == count, np.minimum(low, events / n), low)
        high = np.where(trials - successes == count, np.maximum(high, 1 - events / n), high)
    return low, high


def mean_interval(sample: np.ndarray, lowest: float = -np.inf, highest: float = np.inf) -> tuple[float, float]:
    """Computes the 95 % interval of a mean: Student's t interval, made longer on the side of the skewness.

    A few large numbers make a sample skewed, and then both the t interval and a bootstrap of few numbers are too short
    on that side. The second interval corrects t for the skewness (Hall 1992, "On the removal of skewness by
    transformation"). The result covers both. Between the bounds 0 and 1, numbers that are all 0 or 1, or all alike, are
    counted instead (`wilson`): rare events are too skewed for the correction, and equal numbers show no scatter.

    `sample`: numbers [n]. `lowest`, `highest`: the values between which a mean can be. Returns the lower and the upper bound;
    both NaN of fewer than two numbers.
    """
    sample = np.asarray(sample, float)
    n = len(sample)
    if n < 2:
        return float("nan"), float("nan")
    if (lowest, highest) == (0, 1) and (np.isin(sample, (0, 1)).all() or np.ptp(sample) == 0):
        low, high = map(float, wilson(sample.sum(), n))
        return low, high
    mean = sample.mean()
    deviations = sample - mean
    squares = (deviations**2).sum()
    if not squares:
        return float(mean), float(mean)
    error, skewness = np.sqrt(squares / (n - 1) / n), (deviations**3).sum() / squares**1.5
    low, high = np.clip(skewed_interval(mean, error, skewness, n - 1), lowest, highest)
    return float(low), float(high)


def skewed_interval(
    estimate: np.ndarray, error: np.ndarray, skewness: np.ndarray, degrees: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the t interval of each estimate, made longer on the side of its skewness, see `mean_interval`.

    Hall's cubic is g(T) = T + a T² + a² T³ / 3 + skewness / 6, with a = skewness / 3: its inverse corrects a quantile of t.

    `skewness`: that of the estimate itself, which of a mean of n is that of the sample, divided by √n. `degrees`: of freedom, one number
    or one of each estimate. The others and both results, the lower and the upper bounds, have one shape, whichever.
    """
    from scipy.special import stdtrit  # which commands that compute no interval need not wait for

    a = np.asarray(skewness) / 3
    plain = np.stack([t := stdtrit(degrees, 0.975) + 0 * a, -t])
    with np.errstate(divide="ignore", invalid="ignore"):
        corrected = np.where(np.abs(a) < 1e-9, plain, (np.cbrt(1 + 3 * a * (plain - a / 2)) - 1) / a)
    quantiles = np.concatenate([plain, corrected])
    return estimate - quantiles.max(0) * error, estimate - quantiles.min(0) * error


def difference_of_intervals(
    a: float, a_low: float, a_high: float, b: float, b_low: float, b_high: float
) -> tuple[float, float, float]:
    """Returns a - b of independent estimates and its interval, by the square-and-add method (Newcombe 1998, method 10)."""
    low, high = np.hypot(a - a_low, b_high - b), np.hypot(a_high - a, b - b_low)
    return a - b, float(a - b - low), float(a - b + high)


def paired_interval(differences: np.ndarray) -> tuple[float, float]:
    """Computes the 95 % interval of the difference of two shares of the same units (Bonett and Price 2012).

    It counts one more unit that differs in each direction: without them it would have no length where no unit differs,
    which does not show that none would.

    `differences`: 1, 0 or -1 of each unit [n]. Returns the lower and the upper bound.
    """
    adjusted = np.append(differences, [1.0, -1.0])
    half = Z_95 * adjusted.std() / np.sqrt(len(adjusted))
    return float(max(adjusted.mean() - half, -1)), float(min(adjusted.mean() + half, 1))


def scatter_of_layers(values: np.ndarray, weights: np.ndarray, halves: Sequence[np.ndarray]) -> float:
    """Computes half the length of the 95 % interval of a difference of means, from the scatter of neighbouring layers.

    Where layers differ at random, half the mean square of the steps from one to the next is their variance, also if
    they rise or fall slowly (von Neumann 1941). The steps overlap, so that they have fewer degrees of freedom. A step over
    a layer that is left out is divided by the root of its length.

    `values`: the numbers [layer]. `weights`: how much a layer counts in the mean of its half, up to a factor [layer]. `halves`:
    the layers whose means are compared, ascending; more than one in a half at least.
    """
    from scipy.special import stdtrit

    steps = np.concatenate([np.diff(values[half]) for half in halves])
    lengths = np.concatenate([np.diff(half) for half in halves])
    degrees = 2 * len(steps) ** 2 / sum(3 * len(half) - 4 for half in halves if len(half) > 1)
    parts = [weights[half] / weights[half].sum() for half in halves]
    error = np.sqrt((steps**2 / lengths).mean() / 2 * sum((part**2).sum() for part in parts))
    return float(stdtrit(degrees, 0.975) * error)


def box(sample: np.ndarray | pd.Series | list[float]) -> dict[str, float]:
    """Computes Tukey's box of a sample [n]: the quartiles, and whiskers of at most 1.5 interquartile ranges.

    Whiskers end at points of the sample. Returns whisker_low, q1, median, q3, whisker_high; all NaN if it is empty.
    """
    sample = np.asarray(sample, float)
    if not len(sample):
        return dict.fromkeys(["whisker_low", "q1", "median", "q3", "whisker_high"], float("nan"))
    q1, median, q3 = np.quantile(sample, [0.25, 0.5, 0.75])
    inside = sample[(sample >= q1 - 1.5 * (q3 - q1)) & (sample <= q3 + 1.5 * (q3 - q1))]
    return {"whisker_low": inside.min(), "q1": q1, "median": median, "q3": q3, "whisker_high": inside.max()}


def boxes(frame: pd.DataFrame, column: str, count: str) -> pd.DataFrame:
    """Computes one box per layer, of a column of a table with a column `layer`.

    Returns one row per layer: layer, its number of rows under the name `count`, whisker_low, q1, median, q3, whisker_high.
    """
    by_layer = frame.groupby("layer")[column]
    rows = [{"layer": layer, count: len(sample), **box(sample)} for layer, sample in by_layer]
    return pd.DataFrame(rows, columns=["layer", count, *box([])])


def shares(frame: pd.DataFrame, column: str, count: str, total: str) -> pd.DataFrame:
    """Computes the share of rows for which a column of truth values is true, per layer.

    Returns one row per layer: layer, the number of rows under the name `total`, that of true rows under the name
    `count`, share, low, high (Wilson interval).
    """
    grouped = frame.groupby("layer")[column]
    table = pd.DataFrame({total: grouped.size(), count: grouped.sum().astype(int)}).reset_index()
    table["share"] = table[count] / table[total]
    table["low"], table["high"] = wilson(table[count], table[total])
    return table


def without_each(group: np.ndarray) -> np.ndarray:
    """Returns weights for means over prompts: of all prompts, then of all but those of each group [1 + group, prompt].

    With fewer groups than `LEAST_GROUPS` only the former are there. Rows sum up to 1.
    """
    names = np.unique(group)
    rows = [np.ones(len(group), bool), *(group != name for name in names if len(names) >= LEAST_GROUPS)]
    return np.array([row / row.sum() for row in rows])


def drawn_again(group: np.ndarray, times: int, generator: np.random.Generator) -> np.ndarray:
    """Draws groups again with replacement; returns how many times each member counts then [time, member]. `group`: [member]."""
    names, number = np.unique(group, return_inverse=True)
    counts: np.ndarray = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), times)
    return counts[:, number]


def interval_over_groups(values: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of a statistic of prompts whose groups are the draws, by the jackknife over groups.

    Its pseudo-values, one for each group, are what `mean_interval` takes (Miller 1974, "The jackknife: a review"). Of a mean over
    groups of equal size they are the means of the groups.

    `values`: the statistic with each row of weights of `without_each` [1 + group]. Returns the lower and the upper bound; both
    NaN with fewer groups than `LEAST_GROUPS`.
    """
    whole, rest = values[0], values[1:]
    return mean_interval(whole + (len(rest) - 1) * (rest.mean() - rest)) if len(rest) else (np.nan, np.nan)


def is_above_0(values: np.ndarray) -> bool:
    """Tells whether a statistic is above 0, and so is its interval over groups where that is known. `values`: [1 + group]."""
    return bool(values[0] > 0) and not interval_over_groups(values)[0] <= 0


def put_estimate(table: pd.DataFrame, name: str, values: np.ndarray, plain: bool = False) -> None:
    """Puts a number into a table, with its interval over groups; `plain`: as `low` and `high`. `values`: [1 + group, row]."""
    low, high = ("low", "high") if plain else (f"{name}_low", f"{name}_high")
    rows = [(own[0], *interval_over_groups(own)) for own in values.T]
    table[[name, low, high]] = np.array(rows).reshape(-1, 3)
