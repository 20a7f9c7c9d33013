"""The rules by which a claim of the paper holds in a run. docs/definitions.md states them, and why they are so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.intervals import difference_of_intervals, mean_interval, scatter_of_layers, wilson
from ffkv.run.results.text import percent, points

HOLDS, FAILS, UNTRAINED, UNKNOWN = "holds", "does not hold", "as in the untrained model", "cannot say"
LEAST = 2  # layers with numbers that each half must have
TOO_FEW = f"Fewer than {LEAST} layers in each half."
FLAT = 0.2  # of the paper's difference: a smaller difference is none


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
        units, by_chance = self.units[layers], np.broadcast_to(self.chance, len(self.values))[layers]
        share, chance = (np.average(each, weights=units) for each in (self.values[layers], by_chance))
        number = (units.max() if self.same else units.sum()) / self.spread
        low, high = wilson(share * number, number)
        return float(share - chance), float(low - chance), float(high - chance)


@dataclass(frozen=True)
class Medians:
    """Medians over sampled prefixes, by layer."""

    values: np.ndarray  # the medians [layer]; NaN where they are not known
    units: np.ndarray  # number of prefixes [layer], the same prefixes in each layer
    low: np.ndarray  # lower ends of their intervals [layer]
    high: np.ndarray  # upper ends [layer]
    chance: float = 0.0  # what chance gives

    def part(self, layers: np.ndarray) -> tuple[float, float, float]:
        """Returns the mean of the medians of some layers, and its interval, as long as if all layers erred alike."""
        mean, low, high = (float(np.mean(each[layers])) for each in (self.values, self.low, self.high))
        return mean, low, high


@dataclass(frozen=True)
class Means:
    """Numbers of units drawn at random, such as of memories. A unit that several layers have counts once, by its mean."""

    numbers: pd.DataFrame  # one row per unit and layer: layer, unit, value
    layers: int  # number of layers of the model
    lowest: float = -np.inf  # lowest value that a mean can have
    highest: float = np.inf  # highest value
    chance: float = 0.0  # what chance gives

    @property
    def values(self) -> np.ndarray:
        """The means [layer]; NaN where a layer has no units."""
        return self.numbers.groupby("layer")["value"].mean().reindex(range(self.layers)).to_numpy(float)

    @property
    def units(self) -> np.ndarray:
        """Number of units [layer]."""
        return np.bincount(self.numbers["layer"], minlength=self.layers)

    def part(self, layers: np.ndarray) -> tuple[float, float, float]:
        """Returns the mean over units of their means over some layers, and its interval (`mean_interval`)."""
        of_units = self.numbers[self.numbers["layer"].isin(layers)].groupby("unit")["value"].mean().to_numpy(float)
        return (float(of_units.mean()), *mean_interval(of_units, self.lowest, self.highest))


Course = Shares | Medians | Means  # what a claim is about, over the layers


class Estimate(NamedTuple):
    """A number that a claim is judged by."""

    value: float = np.nan  # the number, such as upper half minus lower half
    low: float = np.nan  # lower end of its 95 % interval
    high: float = np.nan  # upper end
    lower: float = np.nan  # of a difference: the number of the lower half of the layers
    upper: float = np.nan  # that of the upper half
    problem: str = ""  # why no verdict is possible; "" if one is
    # Of a difference that is clear: a layer, and what the difference and its interval are without it, for each layer.
    without: Sequence[tuple[int, tuple[float, float, float]]] = ()


def known(course: Course) -> np.ndarray:
    """Returns the layers that have numbers."""
    return np.flatnonzero(np.isfinite(course.values) & (course.units > 0))


def trend(course: Course) -> Estimate:
    """Compares the upper half of the layers with the lower half. The layer in the middle of an odd number is in neither."""
    layers, there = len(course.values), known(course)
    lower, upper = there[there < layers // 2], there[there >= layers - layers // 2]
    if min(len(lower), len(upper)) < LEAST:
        return Estimate(problem=TOO_FEW)
    found = _difference(course, lower, upper)
    # The first and the last layer of many models are apart. A difference that one layer makes is no trend.
    dropped = [] if found[1] <= 0 <= found[2] else [*lower, *upper]
    without = [(int(each), _difference(course, lower[lower != each], upper[upper != each])) for each in dropped]
    return Estimate(*found, course.part(lower)[0], course.part(upper)[0], without=without)


def _difference(course: Course, lower: np.ndarray, upper: np.ndarray) -> tuple[float, float, float]:
    """Returns upper - lower, and an interval that covers what other units give and what the scatter of layers does."""
    value, low, high = difference_of_intervals(*course.part(upper), *course.part(lower))
    half = scatter_of_layers(course.values - course.chance, course.units, [lower, upper])
    return value, max(min(low, value - half), -1.0), min(max(high, value + half), 1.0)


def level(course: Course, layers: np.ndarray) -> Estimate:
    """Returns the number of some layers together."""
    layers = np.intersect1d(layers, known(course))
    if not len(layers):
        return Estimate(problem="There is nothing to count.")
    found = Estimate(*course.part(layers))
    return found._replace(problem="One number alone has no interval.") if np.isnan(found.low) else found


def turn(course: Course, sign: int) -> int | None:
    """Returns the layer up to which a course goes before it turns back; None if that is not clear.

    The intervals of this layer, and of the first and the last layer, do not touch.

    sign: 1 for the highest layer of a course that should rise, -1 for the lowest layer of one that should fall.
    """
    there = known(course)
    if len(there) < 2:
        return None
    ends = [np.multiply(sign, course.part(there[place : place + 1])) for place in range(len(there))]
    best = int(np.argmax([end[0] for end in ends]))
    clear = min(ends[best][1:]) > max(*ends[0][1:], *ends[-1][1:])
    return int(there[best]) if clear else None


@dataclass(frozen=True)
class Rule:
    """What a number must be for a claim to hold."""

    sign: int = 1  # 1 if the number must be above the limit, -1 if below it
    limit: float = 0.0  # the limit of a number that is no difference of halves
    paper: float = np.nan  # the paper's number, if it is a difference of halves: a fifth of it is the limit

    @property
    def threshold(self) -> float:
        """What the number must be beyond."""
        return self.limit if np.isnan(self.paper) else FLAT * self.paper

    def margins(self, low: float, high: float) -> tuple[float, float]:
        """Returns by how much an interval is on the claim's side of the limit, at least and at most."""
        ends = [self.sign * (end - self.threshold) for end in (low, high)]
        return min(ends), max(ends)

    def words(self, own: Estimate) -> str:
        """Says where an interval is, without a full stop."""
        least, most = self.margins(own.low, own.high)
        this, other = ("above", "below") if self.sign > 0 else ("below", "above")
        if np.isnan(self.paper):
            where = this if least > 0 else other if most < 0 else ""
            limit = percent(self.limit) if self.limit else "0"
            return f"The interval is {where} {limit}" if where else f"The interval includes {limit}"
        ends = sorted(self.sign * end for end in (own.low, own.high))
        if least > 0:
            shares = [percent(end / abs(self.paper)) for end in (self.sign * own.value, ends[0])]
            return f"In these layers, {shares[0]} of the paper’s difference, {shares[1]} at least"
        if most < 0 and ends[1] < 0:
            return f"The interval is {other} 0"
        if most < 0:
            return f"Flat: {points(self.sign * ends[1])} at most, less than a fifth of the paper’s difference"
        if ends[0] <= 0:
            return "The interval includes 0"
        return f"The interval includes a fifth of the paper’s difference ({points(self.threshold)}), and less is flat"


def judge(rule: Rule, own: Estimate, control: Estimate | None = None, untrained: str = "") -> tuple[str, str]:
    """Judges a claim.

    Args:
        rule: what the claim asks for.
        own: the run's number.
        control: the number of the same model untrained; None if there is none.
        untrained: why untrained models are known to fulfil the claim, as a sentence; "" if they are not.
    Returns:
        The verdict, and the sentences that give its reason.
    """
    if own.problem or np.isnan(own[:3]).any():
        return UNKNOWN, own.problem or f"The {'number' if np.isnan(own.value) else 'interval'} is not known."
    least, most = rule.margins(own.low, own.high)
    reason = rule.words(own)
    if least <= 0:
        return (FAILS if most < 0 else UNKNOWN), f"{reason}."
    # A trend without one layer is one if it is beyond the limit, and its interval beyond 0.
    apart = [(rule.sign * np.array([found[0] - rule.threshold, *found[1:]]), layer) for layer, found in own.without]
    if alone := [(ends[0], layer) for ends, layer in apart if min(ends) <= 0]:
        return UNKNOWN, f"{reason}, but not without layer {min(alone)[1]}."
    if control is None and untrained:
        return UNKNOWN, f"{reason}. {untrained} Not compared with an untrained model."
    if control is None:
        return HOLDS, f"{reason}. Not compared with an untrained model."
    if np.isnan(control.low):
        return UNKNOWN, f"{reason}, but the untrained model has no number."
    _, low, high = difference_of_intervals(*own[:3], *control[:3])
    if Rule(rule.sign).margins(low, high)[0] > 0:
        return HOLDS, f"{reason}, and beyond the untrained model."
    if rule.margins(control.low, control.high)[0] > 0:
        return UNTRAINED, f"{reason}. The untrained model fulfils the claim, too."
    return UNKNOWN, f"{reason}, but the difference from the untrained model is not clear."
