"""What weights say of memories: cosines of what a memory reads and writes, and what the head reads of what it writes.

The cosines stand beside those of permuted memories, and the types of memories follow from them. Of the head, two questions are asked:
which directions of the residual stream it ignores, and which one is that of frequent tokens.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.multiple_tests import q_values
from ffkv.branches.roles.tables import ATYPICAL, READOUT, TYPES
from ffkv.model.head.head import Head

PERMUTATIONS = 20  # so that the smallest p-value is below 0.05 of a layer's memories
BAND = (0.025, 0.975)  # of permuted memories
PROBES = 64  # vectors that the head reads at a time
TOKENS = 4096  # that are multiplied at a time: their products are added in float64
TRIED = 4  # random vectors that tell whether the head is a matrix on directions
PROPORTIONAL = 0.9999  # least cosine between what the head and the matrix give to them
NOTHING = 1e-5  # of the mean eigenvalue of WᵀW: a direction below it writes nothing but rounding


class Cosines(NamedTuple):
    """Cosines of two vectors of each memory of a layer."""

    own: np.ndarray  # float32 [memory]; NaN where a vector is not known or has no length
    p: np.ndarray  # two-sided p-value among permuted memories [memory]; NaN where there is none
    q: np.ndarray  # adjusted for the memories of the layer (Benjamini-Hochberg)
    null_mean: float  # of permuted memories
    null_low: float  # lower end of their middle 95 %
    null_high: float

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of `BY_MEMORY`, by the ends of their names."""
        return {"_cosine": self.own, "_p": self.p, "_q": self.q}


def compare(a: Tensor, b: Tensor, generator: np.random.Generator) -> Cosines:
    """Compares two vectors of each memory, a_i and b_i [memory, d], with pairs of different memories, a_i and b_j.

    The memories are put into a random order. Each a_i meets the b_j of the next 20 memories of this order, or of all others
    if there are fewer. These cosines of all memories together are the null: the p-value is twice the smaller share of
    them at or beyond the own cosine, with the own one among them.
    """
    a, b = (vectors / vectors.norm(dim=1, keepdim=True) for vectors in (a, b))
    own = (a * b).sum(1).numpy()
    p, q = (np.full(len(own), np.nan) for _ in range(2))
    known = np.flatnonzero(np.isfinite(own))
    if len(known) < 2:
        return Cosines(own, p, q, *[np.nan] * 3)
    order = torch.from_numpy(generator.permutation(known))
    a, b = a[order], torch.cat([b[order]] * 2)
    shifts = range(1, min(PERMUTATIONS, len(known) - 1) + 1)
    null = torch.cat([torch.linalg.vecdot(a, b[shift : shift + len(a)]) for shift in shifts]).sort().values.numpy()
    below = np.searchsorted(null, own[known], side="right")
    above = len(null) - np.searchsorted(null, own[known])
    p[known] = np.minimum(1, 2 * (1 + np.minimum(below, above)) / (1 + len(null)))
    q[known] = q_values(p[known], len(known))
    return Cosines(own, p, q, float(null.mean()), *np.quantile(null, BAND).tolist())


def name_types(threshold: float, key_value: np.ndarray, gate_value: np.ndarray, gate_up: np.ndarray) -> np.ndarray:
    """Names the type of each memory [memory] by its three cosines [memory] (Gerstner and Schütze 2025, section 3).

    A cosine counts as 1 above the threshold, as -1 below its negative, else as 0. Without a gate, the cosine of key and value
    alone decides. "" where the cosines that decide are not known.
    """
    cosines = (key_value, gate_value, gate_up)
    kv, gv, gu = (np.where(np.abs(cosine) > threshold, np.sign(cosine), 0) for cosine in cosines)
    gated = np.isfinite(gate_value)
    enriching, conditional, proportional, orthogonal, conditionally_depleting, depleting = TYPES
    along = [kv > 0, kv < 0]
    typed = np.select(
        [*(side & ((gv != 0) | ~gated) for side in along), *along, gated & (gv != 0)],
        [enriching, depleting, conditional, conditionally_depleting, proportional],
        orthogonal,
    ).astype(object)
    atypical = gated & (gu != kv * gv) & ((kv != 0) | (gv != 0))
    typed[atypical] = ATYPICAL + typed[atypical]
    typed[~np.isfinite(key_value)] = ""
    return typed


class Readout(NamedTuple):
    """The head as a matrix on directions, centred over the vocabulary: W [vocabulary, d], up to a factor."""

    ignored: Tensor  # an orthonormal basis of the directions that W writes the least for [d, direction]
    gram: Tensor  # WᵀW [d, d]
    unigram: Tensor  # Wᵀf [d], of the centred log-frequencies f of the tokens
    length: float  # of f
    centres: bool  # whether the head takes the mean off a vector first, as LayerNorm does


def read_matrix(head: Head, width: int, layer: int) -> Tensor | None:
    """Returns what each token's logit reads of a direction, up to a factor that all directions share [d, vocabulary].

    The head reads the unit vectors. None if it is no matrix on directions: what it gives to some random vectors is then not
    in proportion to their products with the matrix.
    """
    zero = head.uncapped(torch.zeros(1, width), layer)
    units = width**0.5 * torch.eye(width)
    matrix = torch.cat([head.uncapped(some, layer) - zero for some in units.split(PROBES)])
    vectors = torch.randn(TRIED, width, generator=torch.Generator().manual_seed(0))
    read = head.uncapped(vectors, layer) - zero
    cosines = torch.cosine_similarity(read.double(), (vectors @ matrix).double())
    return matrix if bool((cosines > PROPORTIONAL).all()) else None


def ignores_mean(head: Head, width: int, layer: int) -> bool:
    """Tells whether the head gives the same logits to a vector and to one with another mean, as after a LayerNorm."""
    vectors = torch.randn(TRIED, width, generator=torch.Generator().manual_seed(0))
    return torch.allclose(head.logits(vectors, layer), head.logits(vectors + 1, layer), rtol=1e-3, atol=1e-3)


def make_readout(matrix: Tensor, counts: np.ndarray, share: float, centres: bool) -> Readout:
    """Makes the readout of the matrix of `read_matrix`, which is centred in place.

    `matrix`: what each token's logit reads [d, vocabulary]. `counts`: how often each token occurs [vocabulary]. `share`: of the
    d directions, what counts as ignored; at least one does, and all that W writes nothing for. `centres`: see `Readout`; the
    mean is then no direction.
    """
    matrix -= matrix.mean(1, keepdim=True)
    width = len(matrix)
    gram = torch.zeros(width, width, dtype=torch.float64)
    for some in matrix.split(TOKENS, 1):
        gram += some @ some.T
    mean = gram.trace() / width if centres else 0  # puts the mean behind all other directions
    eigenvalues, directions = torch.linalg.eigh(gram + mean)
    nothing = int((eigenvalues < NOTHING * gram.trace() / width).sum())
    ignored = directions[:, : max(1, round(share * width), nothing)]
    frequency = np.log(counts + 1.0)
    f = torch.from_numpy(frequency - frequency.mean())
    unigram = matrix @ f.float()
    return Readout(ignored.float(), gram.float(), unigram, float(f.norm()), centres)


def measure(readout: Readout | None, values: Tensor) -> dict[str, np.ndarray]:
    """Measures values [memory, d] against a readout, if there is one.

    Returns, each [memory] in float32, NaN where a value or what it writes is zero: `ignored_share`, the share of the squared
    length in ignored directions; `unigram_cosine`, the cosine with Wᵀf; `unigram_correlation`, the correlation over the
    vocabulary of Wv with f.
    """
    if readout is None:
        return {column.name: np.full(len(values), np.nan, np.float32) for column in READOUT}
    v = values - values.mean(1, keepdim=True) if readout.centres else values
    squared, along = v.square().sum(1), v @ readout.unigram
    written = ((v @ readout.gram) * v).sum(1).clamp(min=0).sqrt()
    found = (
        (v @ readout.ignored).square().sum(1) / squared,
        along / (squared.sqrt() * readout.unigram.norm()),
        along / (written * readout.length),
    )
    return {column.name: numbers.numpy() for column, numbers in zip(READOUT, found, strict=True)}
