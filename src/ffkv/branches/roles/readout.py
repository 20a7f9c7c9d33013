"""What the head reads of a direction in the residual stream: which ones it ignores, and which one is that of frequent tokens."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.branches.roles.tables import READOUT
from ffkv.model.head.head import Head

PROBES = 64  # vectors that the head reads at a time
TOKENS = 4096  # that are multiplied at a time: their products are added in float64
TRIED = 4  # random vectors that tell whether the head is a matrix on directions
PROPORTIONAL = 0.9999  # least cosine between what the head and the matrix give to them
NOTHING = 1e-5  # of the mean eigenvalue of WᵀW: a direction below it writes nothing but rounding


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

    Args:
        matrix: what each token's logit reads [d, vocabulary].
        counts: how often each token occurs [vocabulary].
        share: share of the d directions that counts as ignored. At least one does, and all that W writes nothing for.
        centres: see `Readout`. The mean is then no direction.
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
