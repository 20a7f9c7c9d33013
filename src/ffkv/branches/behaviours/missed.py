"""Memories that are no candidates, drawn at random in strata: they bound what the screen missed.

The screen is of first order, and finds no memory whose gradient is 0 where it is taken. Memories outside the candidates are ranked by the
size of their screen, and cut into `STRATA` whose ends grow geometrically. From each, some are drawn without replacement, and their effects
are measured as those of candidates. So how many memories of a stratum have an effect above a limit has an exact bound.
"""

import numpy as np
import pandas as pd

from ffkv.branches.behaviours.stored import largest

STRATA = 10
FIRST = 14  # each stratum but the last one has 1 / FIRST of what is drawn: 20 of 280


def strata_of(memories: pd.DataFrame) -> np.ndarray:
    """Returns the stratum of each row of `MEMORIES`, from 0; -1 of candidates."""
    outside = np.flatnonzero(~(memories["by_contrast"] | memories["by_screen"]))
    ranked = outside[largest(memories["screen"].abs().to_numpy()[outside], len(outside))]
    ends = np.ceil(len(outside) ** (np.arange(1, STRATA + 1) / STRATA) - 1e-9)
    found = np.full(len(memories), -1)
    found[ranked] = np.searchsorted(ends, np.arange(len(ranked)), side="right")
    return found


def draw_outside(memories: pd.DataFrame, count: int, generator: np.random.Generator) -> np.ndarray:
    """Draws about `count` memories outside the candidates: so many of each stratum, or all of a smaller one. Returns rows, ascending."""
    strata, drawn = strata_of(memories), list[int]()
    for stratum in range(STRATA):
        own = np.flatnonzero(strata == stratum)
        wanted = count // FIRST if stratum < STRATA - 1 else count - len(drawn)
        drawn += generator.choice(own, min(wanted, len(own)), replace=False).tolist()
    return np.sort(drawn)


def most_of(found: int, drawn: int, memories: int, doubt: float) -> int:
    """Returns the largest number of memories of a kind that a stratum can have, where `found` of the drawn ones were of it.

    With more, so few or fewer would be drawn with a probability below `doubt`: exact for draws without replacement.
    """
    from scipy.stats import hypergeom

    possible = np.arange(found, memories - drawn + found + 1)
    return int(possible[hypergeom.cdf(found, memories, possible, drawn) >= doubt].max())
