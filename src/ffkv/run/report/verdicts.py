"""The rules by which a claim of the paper holds in a run. docs/definitions.md states them, and why they are so."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffkv.base.intervals import Z_95, difference_of_intervals, wilson
from ffkv.run.results.text import percent, points

HOLDS, FAILS, UNTRAINED, UNKNOWN = "holds", "does not hold", "as in the untrained model", "cannot say"
LEAST = 2  # layers with numbers that each half must have, so that one layer alone is no trend
FLAT = 0.2  # of the paper's difference: a difference that is surely smaller is none
# Error of a median, over the interquartile range and the root of the number of units, if these are normal. It is too
# large if they have a long tail.
MEDIAN_ERROR = np.sqrt(np.pi / 2) / 1.349


@dataclass(frozen=True)
class Shares:
    """Shares of units, such as of keys or of sampled prefixes, by layer."""

    values: np.ndarray  # the shares [layer]; NaN where they are not known
    units: np.ndarray  # number of independent units [layer]
    same: bool = False  # whether all layers have the same units; they then count once
    chance: np.ndarray | float = 0.0  # the share by chance, which is taken away [layer]
    spread: float = 1.0  # how much units vary, of the most that they can: a unit counts 1 / spread times

    def part(self, layers: np.ndarray) -> tuple[float, float, float]:
        """Returns the share in some layers together, less that by chance, and its Wilson interval."""
        units = self.units[layers]
        share, chance = (np.average(each, weights=units) for each in (self.values[layers], self._chance[layers]))
        number = (units.max() if self.same else units.sum()) / self.spread
        low, high = wilson(share * number, number)
        return float(share - chance), float(low - chance), float(high - chance)

    @property
    def _chance(self) -> np.ndarray:
        return np.broadcast_to(self.chance, len(self.values))


@dataclass(frozen=True)
class Medians:
    """Medians over sampled prefixes, by layer."""

    values: np.ndarray  # the medians [layer]; NaN where they are not known
    units: np.ndarray  # number of prefixes [layer], the same prefixes in each layer
    spread: np.ndarray  # interquartile range [layer]

    def part(self, layers: np.ndarray) -> tuple[float, float, float]:
        """Returns the mean of the medians of some layers, and its interval, as long as if all layers erred alike."""
        half = Z_95 * MEDIAN_ERROR * float(np.mean(self.spread[layers] / np.sqrt(self.units[layers])))
        mean = float(np.mean(self.values[layers]))
        return mean, max(mean - half, 0.0), min(mean + half, 1.0)


Course = Shares | Medians  # what a claim is about, over the layers


class Estimate(NamedTuple):
    """A number that a claim is judged by."""

    value: float = np.nan  # the number, such as upper half minus lower half
    low: float = np.nan  # lower end of its 95 % interval
    high: float = np.nan  # upper end
    lower: float = np.nan  # of a difference: the number of the lower half of the layers
    upper: float = np.nan  # that of the upper half
    problem: str = ""  # why no verdict is possible; "" if one is
    alone: int | None = None  # of a difference: a layer without which the interval would include 0


def known(course: Course) -> np.ndarray:
    """Returns the layers that have numbers."""
    return np.flatnonzero(np.isfinite(course.values) & (course.units > 0))


def trend(course: Course) -> Estimate:
    """Compares the upper half of the layers with the lower half. The layer in the middle of an odd number is in neither."""
    layers, there = len(course.values), known(course)
    lower, upper = there[there < layers // 2], there[there >= layers - layers // 2]
    if min(len(lower), len(upper)) < LEAST:
        return Estimate(problem=f"Fewer than {LEAST} layers in each half.")
    found = _difference(course, lower, upper)
    # The first and the last layer of many models are apart. A difference that one layer makes is no trend.
    alone = [
        int(layer)
        for layer in (*lower, *upper)
        if not _includes_0(found) and _includes_0(_difference(course, lower[lower != layer], upper[upper != layer]))
    ]
    return Estimate(*found, course.part(lower)[0], course.part(upper)[0], alone=alone[0] if alone else None)


def _difference(course: Course, lower: np.ndarray, upper: np.ndarray) -> tuple[float, float, float]:
    return difference_of_intervals(*course.part(upper), *course.part(lower))


def _includes_0(found: tuple[float, float, float]) -> bool:
    return found[1] <= 0 <= found[2]


def level(course: Course, layers: np.ndarray) -> Estimate:
    """Returns the number of some layers together."""
    layers = np.intersect1d(layers, known(course))
    return Estimate(*course.part(layers)) if len(layers) else Estimate(problem="There is nothing to count.")


def turn(course: Course, sign: int) -> int | None:
    """Returns the layer from which a course turns back before the last layer; None if that is not clear.

    sign: 1 for the highest layer of a course that should rise, -1 for the lowest layer of one that should fall.
    """
    there = known(course)
    if len(there) < 2:
        return None
    ends = [np.multiply(sign, course.part(there[place : place + 1])) for place in range(len(there))]
    best = int(np.argmax([end[0] for end in ends]))
    clear = min(ends[best][1:]) > max(ends[-1][1:])
    return int(there[best]) if clear else None


@dataclass(frozen=True)
class Rule:
    """What a number must be for a claim to hold."""

    sign: int = 1  # 1 if the number must be above the limit, -1 if below it
    limit: float = 0.0  # the limit
    paper: float = np.nan  # the paper's number, if it is a difference of halves: it says what is flat

    def margins(self, low: float, high: float) -> tuple[float, float]:
        """Returns by how much an interval is on the claim's side of the limit, at least and at most."""
        ends = [self.sign * (end - self.limit) for end in (low, high)]
        return min(ends), max(ends)

    def words(self) -> str:
        """Names the limit."""
        return percent(self.limit) if self.limit else "0"


def judge(rule: Rule, own: Estimate, control: Estimate | None = None) -> tuple[str, str]:
    """Judges a claim.

    Args:
        rule: what the claim asks for.
        own: the run's number.
        control: the number of the same model untrained; None if there is none.
    Returns:
        The verdict, and the sentence that gives its reason.
    """
    if own.problem or np.isnan(own.value):
        return UNKNOWN, own.problem or "The number is not known."
    least, most = rule.margins(own.low, own.high)
    limit, (this, other) = rule.words(), ("above", "below") if rule.sign > 0 else ("below", "above")
    if least > 0 and own.alone is not None:
        return UNKNOWN, f"Layer {own.alone} alone makes the difference."
    if least > 0:
        return _beside(rule, own, control, f"The interval is {this} {limit}")
    if most < 0:
        return FAILS, f"The interval is {other} {limit}."
    if most < FLAT * abs(rule.paper):
        return FAILS, f"Flat: {points(rule.sign * most)} at most, less than a fifth of the paper's difference."
    return UNKNOWN, f"The interval includes {limit}."


def _beside(rule: Rule, own: Estimate, control: Estimate | None, reason: str) -> tuple[str, str]:
    """Judges a number that is on the claim's side, beside the number of the untrained model."""
    if control is None or np.isnan(control.value):
        return HOLDS, f"{reason}. Not compared with an untrained model."
    _, low, high = difference_of_intervals(*own[:3], *control[:3])
    if Rule(rule.sign).margins(low, high)[0] > 0:
        return HOLDS, f"{reason}, and beyond the untrained model."
    if rule.margins(control.low, control.high)[0] > 0:
        return UNTRAINED, f"{reason} in both models."
    return UNKNOWN, f"{reason}, but the difference from the untrained model is not clear."
