"""Statistics of every key while the model runs: firing, sum, largest and smallest coefficient, histogram."""

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES

# The exponent of a float32 is eight bits above 23 of mantissa, 127 more than the power of two.
MANTISSA, BIAS = 23, 127
LAST_BIN = len(HISTOGRAM_EDGES) - 2
BEFORE = BIAS + int(np.log2(HISTOGRAM_EDGES[2])) - 2  # bin = exponent - BEFORE


class Statistics:
    """Running statistics of the keys of one layer."""

    def __init__(self, keys: int, device: torch.device | str):
        """Starts with no prefix."""
        counts = torch.zeros(keys, dtype=torch.int64, device=device)
        self.fires = counts  # number of prefixes with a positive coefficient [key]
        self.fires_negative = counts.clone()  # number of prefixes with a negative coefficient [key]
        self.total = counts.clone()  # sum of the coefficient, in units of FIXED_POINT [key]
        self.finite = torch.ones(keys, dtype=torch.bool, device=device)  # whether every coefficient was finite [key]
        self.maximum = torch.zeros(keys, device=device)  # largest coefficient; 0 if none is positive [key]
        self.minimum = torch.zeros(keys, device=device)  # smallest coefficient; 0 if none is negative [key]
        # number of prefixes by coefficient, of every eighth sentence [key, bin]
        self.histogram = torch.zeros(keys, LAST_BIN + 1, dtype=torch.int64, device=device)
        self._first_bin = torch.arange(keys, dtype=torch.int32, device=device) * (LAST_BIN + 1)  # [key]

    def add(self, parts: Tensor, peaks: Tensor, troughs: Tensor | None) -> None:
        """Counts a batch of coefficients.

        `parts`: `sums` of each part of it [part, 2 or 3, key]. `peaks`, `troughs`: the largest and the smallest coefficient
        of some sentences each [part, key]; no troughs if none is negative.
        """
        totals, *fires = parts.unbind(1)  # [part, key] each
        self.finite &= torch.isfinite(totals).all(0)
        self.total += (totals.double() / FIXED_POINT).round().long().sum(0)
        self.fires += fires[0].long().sum(0)
        self.maximum = torch.maximum(self.maximum, peaks.amax(0))
        if troughs is not None:
            self.fires_negative += fires[1].long().sum(0)
            self.minimum = torch.minimum(self.minimum, troughs.amin(0))

    def add_histogram(self, coefficients: Tensor, times: Tensor | None = None) -> None:
        """Counts coefficients [prefix, key], without padding, into the histogram, each once or `times` [prefix]."""
        keys, bins = self.histogram.shape
        # The bits above the mantissa are the exponent, negative for a negative number. 0 is for 0 and for subnormal numbers.
        exponent = coefficients.contiguous().view(torch.int32) >> MANTISSA
        bin_of = (exponent - BEFORE).clamp_(1, LAST_BIN).mul_(exponent > 0)
        bin_of += self._first_bin
        weights = None if times is None else times[:, None].expand_as(bin_of).flatten()
        self.histogram += _tally(bin_of.flatten(), weights, keys * bins).reshape(keys, bins)


def _tally(numbers: Tensor, weights: Tensor | None, size: int) -> Tensor:
    """Counts each number below `size` [size], or adds its whole weights."""
    if numbers.device.type == "cpu":
        return numbers.bincount(None if weights is None else weights.double(), minlength=size).long()
    return _tally_without_waiting(numbers, weights, size)


def _tally_without_waiting(numbers: Tensor, weights: Tensor | None, size: int) -> Tensor:
    """Does what `_tally` does, on a GPU, for which `bincount` would wait."""
    ones = torch.ones_like(numbers, dtype=torch.int64) if weights is None else weights
    return ones.new_zeros(size).index_add_(0, numbers, ones)


def sums(coefficients: Tensor, multiplicity: Tensor, two_sided: bool) -> Tensor:
    """Adds up coefficients, contiguous [token, key], each as often as `multiplicity` says [token].

    Returns the sum of the coefficients and the number of positive ones, and of negative ones if it is `two_sided`
    [2 or 3, key]. The numbers are exact, see `describe`.
    """
    # A product with a row of counts reads each coefficient once, without a copy.
    sums = multiplicity.new_empty(3 if two_sided else 2, coefficients.shape[1])
    torch.mv(coefficients.to(multiplicity.dtype).T, multiplicity, out=sums[0])
    compared = torch.empty_like(coefficients, dtype=multiplicity.dtype)
    for compare, number in zip((torch.gt, torch.lt), sums[1:]):
        torch.mv(compare(coefficients, 0, out=compared).T, multiplicity, out=number)
    return sums
