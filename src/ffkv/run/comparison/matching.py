"""Memories of models of other sizes or seeds, matched by the correlation of their coefficients over the same text.

Two such models share no numbering of memories. A high correlation alone does not show that a memory has a partner: the
highest of many correlations is high by chance too. So each layer of the other model is also rotated: random directions
in the space of its coefficients say what a model with the same coefficients, but without memories of its own, would
give.
"""

import itertools

import numpy as np
import pandas as pd

from ffkv.base.streams import Purpose, random_stream
from ffkv.run.comparison.compared import Compared, same_prefixes
from ffkv.run.comparison.tables import MATCHES
from ffkv.run.results.run import Run

ROUNDING = 1e-12  # a sum of squared deviations below it, relative to the squares, is rounding of equal coefficients


def match_memories(compared: Compared, seed: int = 0) -> pd.DataFrame:
    """Finds, for random memories of the first run, the memory of each other run whose coefficients correlate most.

    Args:
        compared: the runs. Runs that did not sample the same validation prefixes as the first one are left out.
    Returns:
        The table `MATCHES`. Memories whose coefficient never changes are left out.
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
    for number, run in enumerate(compared.runs[1:], 1):
        if same_prefixes(first, run):
            found.append(place.assign(run=run.name, **_best(own, run, seed, number)))
    return pd.concat(found, ignore_index=True)[MATCHES.names] if found else MATCHES.frame([])


def _coefficients(run: Run, rows: np.ndarray) -> np.ndarray:
    """Coefficients of some memories [prefix, memory], read layer by layer as they are stored."""
    parts = []
    with run.files.open_sampled_prefixes() as file:
        for start, stop in itertools.pairwise(run.anatomy.layer_offset):
            chosen = rows[(rows >= start) & (rows < stop)] - start
            if len(chosen):
                parts.append(file["m"][:, start:stop][:, chosen])
    return np.concatenate(parts, 1)


def _best(own: np.ndarray, run: Run, seed: int, number: int) -> dict[str, np.ndarray]:
    """Returns the last four columns of `MATCHES`, from standardised coefficients [prefix, memory]."""
    highest, rotated = np.full((2, own.shape[1]), -np.inf)
    layer_of, memory_of = np.zeros((2, own.shape[1]), np.int64)
    with run.files.open_sampled_prefixes() as file:
        for layer, (start, stop) in enumerate(itertools.pairwise(run.anatomy.layer_offset)):
            m = file["m"][:, start:stop].astype(np.float32)
            memory, correlation = highest_correlation(own, standardise(m))
            better = correlation > highest
            highest[better], layer_of[better], memory_of[better] = correlation[better], layer, memory[better]
            turned = m @ random_rotation(stop - start, random_stream(seed, Purpose.COMPARISON_ROTATION, number, layer))
            rotated = np.maximum(rotated, highest_correlation(own, standardise(turned))[1])
    return dict(zip(MATCHES.names[3:], (highest, layer_of, memory_of, rotated), strict=True))


def standardise(m: np.ndarray) -> np.ndarray:
    """Returns columns with a mean of 0 and a length of 1, float32 [prefix, memory]; NaN if a column never changes."""
    m = m.astype(np.float32)
    deviations = m - m.mean(0)
    squares = np.einsum("ij,ij->j", deviations, deviations, dtype=np.float64)
    changes = squares > ROUNDING * np.einsum("ij,ij->j", m, m, dtype=np.float64)
    return deviations / np.where(changes, np.sqrt(squares), np.nan).astype(np.float32)


def highest_correlation(own: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds, for each memory, the other memory that correlates most, and the correlation; -inf if no other one changes.

    Both are standardised coefficients [prefix, memory].
    """
    correlation = np.nan_to_num(own.T @ others, nan=-np.inf)
    best = correlation.argmax(1)
    return best, correlation[np.arange(len(best)), best]


def random_rotation(size: int, stream: np.random.Generator) -> np.ndarray:
    """Returns a random orthogonal matrix, uniform over all of them (Haar measure), float32 [size, size]."""
    import torch  # whose QR stays in float32, several times as fast as numpy's

    q, r = torch.linalg.qr(torch.from_numpy(stream.standard_normal((size, size), np.float32)))
    return (q * torch.sign(torch.diagonal(r))).numpy()
