"""What is counted of every key while the model runs: how often it fires, sum, extremes, histogram."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES

# The exponent of a float32 is eight bits above 23 of mantissa, 127 more than the power of two.
MANTISSA, BIAS = 23, 127
LAST_BIN = len(HISTOGRAM_EDGES) - 2
BEFORE = BIAS + int(np.log2(HISTOGRAM_EDGES[2])) - 2  # an exponent so much above this belongs to bin 1, 2, ...


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
        self.histogram = torch.zeros(keys, LAST_BIN + 1, dtype=torch.int64, device=device)

    def add(self, coefficients: Tensor, competes: Tensor, peaks: Tensor) -> None:
        """Counts a batch.

        Args:
            coefficients: [token, key], contiguous. competes: 1.0 where a prefix ends that competes, 0.0 at other tokens
                [token]. peaks: the largest of each sentence [sentence, key].
        """
        # Products with a row of ones and zeros read each coefficient once, where it lies.
        sums = competes @ coefficients
        self.finite &= torch.isfinite(sums)
        self.total += (sums.double() / FIXED_POINT).round().long()
        self.fires += _count(torch.gt, coefficients, competes)
        self.maximum = torch.maximum(self.maximum, peaks.amax(0))

    def add_negative(self, coefficients: Tensor, competes: Tensor, troughs: Tensor) -> None:
        """Counts the negative coefficients of a batch. troughs: the smallest of each sentence [sentence, key]."""
        self.fires_negative += _count(torch.lt, coefficients, competes)
        self.minimum = torch.minimum(self.minimum, troughs.amin(0))

    def add_histogram(self, coefficients: Tensor) -> None:
        """Counts coefficients [prefix, key], without padding, into the histogram."""
        keys, bins = self.histogram.shape
        # The bits above the mantissa: the exponent, below 0 where the number is. 0, and what is too small for a power, is no positive number.
        exponent = coefficients.contiguous().view(torch.int32) >> MANTISSA
        found = (exponent - BEFORE).clamp_(1, LAST_BIN).mul_(exponent > 0)
        found += torch.arange(keys, dtype=torch.int32, device=found.device) * bins
        self.histogram += found.flatten().bincount(minlength=keys * bins).reshape(keys, bins)


def _count(compared: Callable[..., Tensor], coefficients: Tensor, competes: Tensor) -> Tensor:
    """On how many prefixes the coefficient compares so with 0 [key]. Exact below 2^24 tokens a batch."""
    return (competes @ compared(coefficients, 0, out=torch.empty_like(coefficients))).long()
