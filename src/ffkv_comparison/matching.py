"""Memories of models of other sizes or seeds, matched by the correlation of their coefficients over the same text.

Two such models share no numbering of memories. A high correlation alone does not show that a memory has a partner. The
highest of many correlations is high by chance, and all memories of both models read the same text. So a partner must
stand out: its correlation must be higher than those of all other memories of the other model let expect.
"""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from ffkv.base.multiple_tests import q_values
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.results.run import Run
from ffkv_comparison.comparison_file import Compared, same_prefixes
from ffkv_comparison.tables import MATCHES

ROUNDING = 1e-12  # a sum of squared deviations below it, relative to the squares, is rounding of equal coefficients
FEWEST = 10  # effective number of prefixes: two memories that vary on a few ones easily share some of them
TIED = 1e-6  # correlations that differ by less are equal in float32
OTHERS = 20  # gaps between the next highest correlations, with which the gap below the highest one is compared


def match_memories(compared: Compared, seed: int = 0) -> pd.DataFrame:
    """Finds, for random memories of the first run, the memory of each other run whose coefficients correlate most.

    Args:
        compared: the runs. Runs that did not sample the same validation prefixes as the first one are left out.
    Returns:
        The table `MATCHES`. Memories whose coefficient varies on too few prefixes are left out, see `standardise`.
    """
    first, found = compared.runs[0], []
    offset = np.asarray(first.anatomy.layer_offset)
    count = min(compared.settings.sampled_memories, int(offset[-1]))
    stream = random_stream(seed, Purpose.COMPARISON_SAMPLE)
    rows = np.sort(stream.choice(offset[-1], count, replace=False))
    own = standardise(_coefficients(first, rows))
    changes = np.isfinite(own).all(0)
    rows, own = rows[changes], own[:, changes]
    place = pd.DataFrame(first.anatomy.places_of(rows)._asdict())
    for run in compared.runs[1:]:
        if same_prefixes(first, run):
            matches = pd.concat([place, find_partners(own, _layers(run))], axis=1)
            q = q_values(matches["p_value"].to_numpy(), len(matches))
            found.append(matches.assign(run=run.name, q_value=q))
    return pd.concat(found, ignore_index=True)[MATCHES.names] if found else MATCHES.frame([])


def _coefficients(run: Run, rows: np.ndarray) -> np.ndarray:
    """Coefficients of some memories [prefix, memory], read layer by layer as they are stored."""
    layers = zip(_layers(run), itertools.pairwise(run.anatomy.layer_offset))
    return np.concatenate([m[:, rows[(rows >= start) & (rows < stop)] - start] for m, (start, stop) in layers], 1)


def _layers(run: Run) -> Iterator[np.ndarray]:
    with run.files.open_sampled_prefixes() as file:
        for start, stop in itertools.pairwise(run.anatomy.layer_offset):
            yield file["m"][:, start:stop]


def standardise(m: np.ndarray) -> np.ndarray:
    """Returns columns with a mean of 0 and a length of 1, float32 [prefix, memory].

    A column that varies on too few prefixes is NaN. The effective number of prefixes is (sum d²)² / sum d⁴ of the
    deviations d: k if d is 0 but on k prefixes, on which it is equal; it must be `FEWEST`.
    """
    m = m.astype(np.float32)
    deviations = m - m.mean(0)
    squares = np.einsum("ij,ij->j", deviations, deviations, dtype=np.float64)
    changes = squares > ROUNDING * np.einsum("ij,ij->j", m, m, dtype=np.float64)
    unit = deviations / np.where(changes, np.sqrt(squares), np.nan).astype(np.float32)
    return np.where(np.einsum("ij,ij,ij,ij->j", unit, unit, unit, unit) * FEWEST <= 1, unit, np.nan).astype(np.float32)


def find_partners(own: np.ndarray, layers: Iterable[np.ndarray]) -> pd.DataFrame:
    """Finds, for each memory, the memory of another model that correlates most. Of tied ones the first one counts.

    Args:
        own: standardised coefficients [prefix, memory].
        layers: the coefficients of each layer of the other model [prefix, memory].
    Returns:
        One row per memory: correlation, matched_layer, matched_memory, next_correlation, p_value; see `MATCHES`.
        A correlation is minus infinity if no memory, or no second one, varies.
    """
    count = own.shape[1]
    highest = np.full((count, OTHERS + 2), -np.inf, np.float32)
    layer_of, memory_of = np.zeros((2, count), np.int64)
    for layer, m in enumerate(layers):
        correlation = np.nan_to_num(own.T @ standardise(m), nan=-np.inf)
        best = correlation.argmax(1)
        better = correlation[np.arange(count), best] > highest[:, 0]
        layer_of[better], memory_of[better] = layer, best[better]
        together = -np.concatenate([highest, correlation], 1)
        highest = -np.sort(np.partition(together, OTHERS + 1, 1)[:, : OTHERS + 2], 1)
    return pd.DataFrame(
        {
            "correlation": highest[:, 0],
            "matched_layer": layer_of,
            "matched_memory": memory_of,
            "next_correlation": highest[:, 1],
            "p_value": p_values(highest),
        }
    )


def p_values(highest: np.ndarray) -> np.ndarray:
    """Probability that the highest correlation stands out as much, if the other model has no partner [memory].

    The memories of a model without a partner are a sample of what a model can have. The gaps between the highest
    numbers of a sample, each times its rank, are like independent draws of one exponential distribution (Rényi 1953),
    whatever the tail of the sample is, as long as it is about exponential over these ranks. So the first gap over the
    mean of k others has the distribution F(2, 2k), with the tail (1 + ratio / k)^-k. Correlations are
    transformed by artanh, so that they have no upper bound.

    Args:
        highest: the highest correlations, descending; minus infinity where there are no more [memory, rank].
    Returns:
        1 where the highest correlation is tied, and where there are no three to compare.
    """
    known = np.where(np.isfinite(highest), np.clip(highest.astype(float), TIED - 1, 1 - TIED), np.nan)
    gaps = np.arange(1, highest.shape[1]) * -np.diff(np.arctanh(known), axis=1)
    k = np.isfinite(gaps[:, 1:]).sum(1)
    others = np.nansum(gaps[:, 1:], 1) / np.maximum(k, 1)
    tells = (others > 0) & (known[:, 0] - known[:, 1] > TIED)
    ratio = np.divide(gaps[:, 0], others, out=np.zeros(len(gaps)), where=tells)
    return (1 + ratio / np.maximum(k, 1)) ** -k.astype(float)
