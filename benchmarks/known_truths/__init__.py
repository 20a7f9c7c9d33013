"""Cases whose truth is known, for `benchmarks.calibration`: intervals, chance levels, and random models and texts."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

COVERAGE = (0.93, 0.97)  # an interval of 95 % should cover between these shares of the truths
FALSE = (0.0, 0.05)  # a test at 5 % should find no more than this share of what is not there
DOUBT = 0.001  # chance of what is measured below which a limit counts as missed


class Case(NamedTuple):
    """How often something happened whose probability is stated.

    Attributes:
        what: the interval, test or chance level, and where it is shown.
        truth: the simulated truth.
        size: the sizes, such as "20 memories".
        hits: how often it happened: the interval covered the truth, or the test found what is not there.
        trials: out of how many.
        limits: lowest and highest probability that is as stated.
        independent: number of independent trials among them; 0 means all.
        note: what is said about it where the limits are missed.
    """

    what: str
    truth: str
    size: str
    hits: int
    trials: int
    limits: tuple[float, float] = COVERAGE
    independent: int = 0
    note: str = ""

    @property
    def share(self) -> float:
        """The share of the trials in which it happened."""
        return self.hits / self.trials

    def misses(self, lowest: float, highest: float) -> str:
        """Says "below" or "above" if the share cannot be that of a probability between two limits, else ""."""
        trials = self.independent or self.trials
        hits = round(self.share * trials)
        if binom.cdf(hits, trials, lowest) < DOUBT:
            return "below"
        return "above" if binom.sf(hits - 1, trials, highest) < DOUBT else ""


def covered(bounds: Iterable[tuple[float, float]], truth: float) -> tuple[int, int]:
    """Counts the intervals that contain a truth: hits and trials of a case."""
    low, high = np.array(list(bounds), float).T
    return int(((low <= truth) & (truth <= high)).sum()), len(low)
