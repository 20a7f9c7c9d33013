"""What is counted of every key while the model runs: how often it fires, sum, extremes, histogram."""

from collections.abc import Callable

import torch
from torch import Tensor

from ffkv.activations.data import FIXED_POINT, HISTOGRAM_EDGES


class Statistics:
    """Running statistics of the keys of one layer.

    fires, fires_negative: prefixes with a positive, with a negative coefficient [key]. total: sum of the coefficient in
    units of FIXED_POINT [key]. maximum, minimum: the largest and the smallest coefficient, 0 where none is positive, where
    none is negative [key]. finite: whether every coefficient was [key]. histogram: prefixes by coefficient, of every eighth sentence [key, bin].
    """

    def __init__(self, keys: int, device: str):
        """Nothing seen yet."""
        self.fires = torch.zeros(keys, dtype=torch.int64, device=device)
        self.fires_negative = torch.zeros(keys, dtype=torch.int64, device=device)
        self.total = torch.zeros(keys, dtype=torch.int64, device=device)
        self.finite = torch.ones(keys, dtype=torch.bool, device=device)
        self.maximum = torch.zeros(keys, device=device)
        self.minimum = torch.zeros(keys, device=device)
        self.histogram = torch.zeros(keys, len(HISTOGRAM_EDGES) - 1, dtype=torch.int64, device=device)

    def add(self, coefficients: Tensor, peaks: Tensor) -> None:
        """Counts a batch.

        Args:
            coefficients: [sentence, token, key], 0 in the padding (which changes none of these statistics).
            peaks: the largest of each sentence [sentence, key].
        """
        self.fires += _count(torch.gt, coefficients)
        sums = coefficients.sum((0, 1))
        self.finite &= torch.isfinite(sums)
        self.total += (sums.double() / FIXED_POINT).round().long()
        self.maximum = torch.maximum(self.maximum, peaks.amax(0))

    def add_negative(self, coefficients: Tensor, troughs: Tensor) -> None:
        """Counts the negative coefficients of a batch. troughs: the smallest of each sentence [sentence, key]."""
        self.fires_negative += _count(torch.lt, coefficients)
        self.minimum = torch.minimum(self.minimum, troughs.amin(0))

    def add_histogram(self, coefficients: Tensor) -> None:
        """Counts coefficients [prefix, key], without padding, into the histogram."""
        keys, bins = self.histogram.shape
        edges = torch.from_numpy(HISTOGRAM_EDGES[1:-1].copy()).to(coefficients.device)
        # Right-closed at zero (zeros are not positive), left-closed above: shift zero to just above itself.
        edges[0] = torch.finfo(torch.float32).tiny
        found = torch.bucketize(coefficients, edges, right=True)
        found += torch.arange(keys, device=found.device) * bins
        self.histogram += found.flatten().bincount(minlength=keys * bins).reshape(keys, bins)


def _count(compared: Callable[..., Tensor], coefficients: Tensor) -> Tensor:
    """On how many prefixes the coefficient compares so with 0 [key]."""
    # Ones are written as numbers, which torch adds up several times faster than truths; exact below 2^24 tokens a batch.
    return compared(coefficients, 0, out=torch.empty_like(coefficients)).sum((0, 1)).long()
