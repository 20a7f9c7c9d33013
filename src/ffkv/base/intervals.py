"""Intervals and summaries that several rooms use."""

import numpy as np
import pandas as pd

Z_95 = 1.959963984540054  # the standard normal's 97.5 % point
AT_A_TIME = 2**18  # numbers that a bootstrap draws at once


def wilson(successes: np.ndarray | float, trials: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Computes the 95 % Wilson score interval of a proportion (Wilson 1927), from counts of one shape.

    Returns lower and upper bounds, each of that shape; (0, 1) if there are no trials.
    """
    successes, trials = np.asarray(successes, float), np.asarray(trials, float)
    n = np.maximum(trials, 1)
    share, z2 = successes / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * np.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    known = trials > 0
    low = np.where(known & (successes > 0), np.clip(centre - half, 0, 1), 0.0)
    return low, np.where(known & (successes < trials), np.clip(centre + half, 0, 1), 1.0)


def bootstrap_mean(sample: np.ndarray, generator: np.random.Generator, resamples: int = 2000) -> tuple[float, float]:
    """Computes the 95 % percentile bootstrap interval of the mean of a sample [n].

    Returns lower and upper bound; both NaN if the sample is empty.
    """
    sample = np.asarray(sample, float)
    if not len(sample):
        return float("nan"), float("nan")
    block = max(1, AT_A_TIME // len(sample))  # any size gives the same numbers
    counts = [min(block, resamples - start) for start in range(0, resamples, block)]
    means = [sample[generator.integers(0, len(sample), (count, len(sample)))].mean(axis=1) for count in counts]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


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

    Returns one row per layer: layer, its number of rows under the name `count`, whisker_low, q1, median, q3,
    whisker_high.
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
