"""Which memories differ between clean and patch prompts: paired differences, sign flips of groups of prompts, two lists.

A difference counts for a memory if hardly any random assignment makes one as large. What is assigned are groups of prompts
(`ffkv.branches.behaviours.encode`), since the prompts of a group are one draw: all of a group get the same sign. Of two lists, groups
change places with each other; a group with prompts of both lists changes its two sides. So a p-value is right if groups are
independent, whatever is alike within them, and if under the null hypothesis a group is as likely to be what it is as its mirror image.
That is so of pairs, whose two prompts could be named the other way round. It is not so of a difference from a mean or from 0, which is
skewed: half of 15 prefixes drawn at random would have p <= 0.05 in 7 % of the memories. So there the prompts change places with
references: prefixes of the validation split, of which nothing but the draw tells them apart.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.intervals import LEAST_GROUPS, skewed_interval

FIRST = 1000  # random assignments that every memory is compared with
TIMES = 10  # each later round has so many times more
ENOUGH = 20  # assignments with a difference as large, after which a memory takes no more
ROWS = 2**14  # assignments that are made at a time, if all are
NUMBERS = 2**24  # statistics that are held at a time


class Drawn(NamedTuple):
    """How some prompts were drawn."""

    positive: np.ndarray  # whether a prompt is of the first of two lists; all True without lists [prompt]
    group: np.ndarray  # its group [prompt]

    @classmethod
    def named(cls, prompts: pd.DataFrame) -> "Drawn":
        """Returns how prompts were drawn, from the table `PROMPTS`."""
        return cls(prompts["positive"].to_numpy(bool), prompts["group"].to_numpy(str))

    def of(self, chosen: np.ndarray) -> "Drawn":
        """Returns this of some of the prompts."""
        return Drawn(self.positive[chosen], self.group[chosen])


class Cells(NamedTuple):
    """The prompts of one group and one list, as one: a contrast is a mean of their sums."""

    number: np.ndarray  # that of each prompt's cell [prompt]
    positive: np.ndarray  # whether it is of the first list [cell]
    prompts: np.ndarray  # number of its prompts [cell]
    other: np.ndarray  # the cell of the same group in the other list; -1 without one [cell]

    @property
    def lists(self) -> bool:
        """Whether there are two lists."""
        return not self.positive.all()

    @property
    def alone(self) -> np.ndarray:
        """Cells that change places with each other: of two lists, those of groups with prompts of one list."""
        return np.flatnonzero((self.other < 0) & self.lists)

    @property
    def flipped(self) -> np.ndarray:
        """Cells that get a random sign; of two lists, those that change places with the other cell of their group."""
        return np.flatnonzero((self.other >= 0) & self.positive if self.lists else self.positive)

    @property
    def all(self) -> int:
        """How many assignments there are."""
        return math.comb(len(self.alone), int(self.positive[self.alone].sum())) << len(self.flipped)

    def weights(self, assigned: np.ndarray, flips: np.ndarray) -> np.ndarray:
        """Returns the weight of each cell's sum in a contrast [assignment, cell], float32.

        Args:
            assigned: of two lists, whether each cell is of the first one [assignment, cell].
            flips: whether each cell of `flipped` is turned round [assignment, flipped].
        """
        if not self.lists:
            return ((1 - 2 * flips) / self.prompts.sum()).astype(np.float32)
        own = assigned.astype(np.float64)
        own[:, self.flipped], own[:, self.other[self.flipped]] = ~flips, flips
        first, second = (each / (each @ self.prompts)[:, None] for each in (own, 1 - own))
        return (first - second).astype(np.float32)


def cells_of(drawn: Drawn) -> Cells:
    """Returns the cells of some prompts."""
    _, group = np.unique(drawn.group, return_inverse=True)
    named, number, count = np.unique(2 * group + drawn.positive, return_inverse=True, return_counts=True)
    place = {name: cell for cell, name in enumerate(named.tolist())}
    other = np.array([place.get(name ^ 1, -1) for name in named.tolist()])
    return Cells(number, named % 2 == 1, count, other)


def weights_of(positive: np.ndarray) -> np.ndarray:
    """Returns the weight of each prompt in a contrast [prompt]: the mean; of two lists, the difference of their means.

    `positive`: whether a prompt is of the first of two lists; all True without lists [prompt].
    """
    if positive.all():
        return np.full(len(positive), 1 / len(positive))
    return np.where(positive, 1 / positive.sum(), -1 / (~positive).sum())


def smallest_p(drawn: Drawn, most: int) -> float:
    """Returns the smallest p-value that any contrast of such prompts can have. `most`: as in `assignments`."""
    cells = cells_of(drawn)
    # The mirror image of an assignment has a contrast of the same size.
    mirrored = 2 * int(cells.positive[cells.alone].sum()) == len(cells.alone) or not cells.lists
    smallest = (2 if mirrored else 1) / cells.all
    return smallest if cells.all <= most else max(smallest, 1 / (1 + most))


def assignments(cells: Cells, most: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields what a contrast is compared with, in rounds: weights of the cells' sums [assignment, cell], float32.

    All assignments there are, if these are no more than `most`; else random ones: so many in all rounds together.
    """
    if cells.all <= most:
        first = int(cells.positive[cells.alone].sum())
        every = itertools.product(itertools.combinations(cells.alone.tolist(), first), range(1 << len(cells.flipped)))
        while some := [*itertools.islice(every, ROWS)]:
            assigned = np.zeros((len(some), len(cells.prompts)), bool)
            assigned[np.arange(len(some))[:, None], np.array([places for places, _ in some], int)] = True
            bits = np.array([flips for _, flips in some])[:, None] >> np.arange(len(cells.flipped)) & 1
            yield cells.weights(assigned, bits > 0)
        return
    done, size = 0, min(FIRST, most)
    while done < most:
        assigned = np.tile(cells.positive, (size, 1))
        assigned[:, cells.alone] = generator.permuted(assigned[:, cells.alone], axis=1)
        flips = generator.random((size, len(cells.flipped))) < 0.5
        yield cells.weights(assigned, flips)
        done += size
        size = min(done * (TIMES - 1), most - done)


def p_values(values: np.ndarray, drawn: Drawn, most: int, generator: np.random.Generator) -> np.ndarray:
    """Returns the p-value of the contrast of each memory, two-sided [memory].

    It is the share of assignments with a contrast as large, the memory's own one among them. Of all assignments there are, the share is
    exact. Of random ones, a memory with `ENOUGH` as large takes no further round (Besag and Clifford 1991), so p-values of other memories
    are more exact. A memory whose values are all 0 has 1. `values`: of each prompt, float32 [prompt, memory]. `most`: see `assignments`.
    """
    cells = cells_of(drawn)
    sums = ((cells.number == np.arange(len(cells.prompts))[:, None]) @ values.astype(np.float64)).astype(np.float32)
    weights = cells.weights(cells.positive[None], np.zeros((1, len(cells.flipped)), bool))[0]
    # Sums of the same numbers in another order differ by rounding alone.
    own = np.abs(weights @ sums) - 1e-5 * np.abs(weights) @ np.abs(sums)
    exact = cells.all <= most
    as_large, tried = np.zeros((2, len(own)))
    open_memories = np.arange(len(own))
    for weights in assignments(cells, most, generator):
        of_open = np.ascontiguousarray(sums[:, open_memories])
        rows = max(1, NUMBERS // max(1, len(open_memories)))
        for start in range(0, len(weights), rows):
            found = np.abs(weights[start : start + rows] @ of_open)
            as_large[open_memories] += (found >= own[open_memories]).sum(0)
        tried[open_memories] += len(weights)
        if not exact:
            open_memories = open_memories[as_large[open_memories] < ENOUGH]
        if not len(open_memories):
            break
    return as_large / tried if exact else (1 + as_large) / (1 + tried)


def estimate(values: np.ndarray, drawn: Drawn) -> np.ndarray:
    """Returns the contrast of each memory with its interval over groups, see `skewed_interval`.

    Its width comes from the sums of groups, each prompt minus the mean of its list. Of two lists without a common group, both have
    scatter of their own (Welch 1947). `values`: see `p_values`. Returns the mean, and the lower and upper end (95 %), which are NaN
    with fewer groups than `LEAST_GROUPS` in a list [3, memory].
    """
    weights, values = weights_of(drawn.positive), values.astype(np.float64)
    mean, rest = weights @ values, values.copy()
    for own in (drawn.positive, ~drawn.positive):
        rest[own] -= values[own].mean(0) if own.any() else 0
    apart = len(cells_of(drawn).flipped) == 0
    variances, freedom, powers = [], [], np.zeros((2, values.shape[1]))
    for own in (drawn.positive, ~drawn.positive) if apart else (np.ones(len(values), bool),):
        names, number = np.unique(drawn.group[own], return_inverse=True)
        if len(names) < LEAST_GROUPS:
            return np.stack([mean, mean * np.nan, mean * np.nan])
        sums = (number == np.arange(len(names))[:, None]) @ (weights[:, None] * rest)[own]
        freedom.append(len(names) - 1)
        variances.append((sums**2).sum(0) * len(names) / freedom[-1])
        powers += (sums**2).sum(0), (sums**3).sum(0)
    squares = np.stack(variances)
    with np.errstate(invalid="ignore"):  # no variance, no width
        degrees = squares.sum(0) ** 2 / (squares**2 / np.array(freedom)[:, None]).sum(0)
        skewness = powers[1] / powers[0] ** 1.5
    degrees, skewness = np.nan_to_num(degrees, nan=1.0), np.nan_to_num(skewness)
    return np.stack([mean, *skewed_interval(mean, np.sqrt(squares.sum(0)), skewness, degrees)])
