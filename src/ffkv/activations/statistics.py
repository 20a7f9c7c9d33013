"""What is counted of every key while the model runs: how often it fires, sum, maximum, histogram."""

import numpy as np
import torch
from torch import Tensor

# Floating-point sums depend on their order, and so on the shards; sums of integers do not.
FIXED_POINT = 2.0**-20
# Everything not positive, then powers of two.
HISTOGRAM_EDGES = np.array([-np.inf, 0.0, *2.0 ** np.arange(-6, 5), np.inf], np.float32)
HISTOGRAM_EVERY = 8  # the histogram looks at every eighth sentence: it costs more than the other statistics together


class Statistics:
    """Running statistics of the keys of one layer.

    fires: prefixes with a positive coefficient [key]. total: sum of the coefficient in units of FIXED_POINT [key].
    maximum: the largest coefficient, 0 where none is positive [key]. histogram: prefixes by coefficient, of every
    eighth sentence [key, bin].
    """

    def __init__(self, keys: int, device: str):
        """Nothing seen yet."""
        self.fires = torch.zeros(keys, dtype=torch.int64, device=device)
        self.total = torch.zeros(keys, dtype=torch.int64, device=device)
        self.maximum = torch.zeros(keys, device=device)
        self.histogram = torch.zeros(keys, len(HISTOGRAM_EDGES) - 1, dtype=torch.int64, device=device)

    def add(self, coefficients: Tensor, peaks: Tensor) -> None:
        """Counts a batch.

        Args:
            coefficients: [sentence, token, key], 0 in the padding (which changes none of these statistics).
            peaks: the largest of each sentence [sentence, key].
        """
        self.fires += (coefficients > 0).sum((0, 1))
        self.total += (coefficients.sum((0, 1)).double() / FIXED_POINT).round().long()
        self.maximum = torch.maximum(self.maximum, peaks.amax(0))

    def add_histogram(self, coefficients: Tensor) -> None:
        """Counts coefficients [prefix, key], without padding, into the histogram."""
        keys, bins = self.histogram.shape
        edges = torch.from_numpy(HISTOGRAM_EDGES[1:-1]).to(coefficients.device)
        # Right-closed at zero (zeros are not positive), left-closed above: shift zero to just above itself.
        edges[0] = torch.finfo(torch.float32).tiny
        found = torch.bucketize(coefficients, edges, right=True)
        found += torch.arange(keys, device=found.device) * bins
        self.histogram += found.flatten().bincount(minlength=keys * bins).reshape(keys, bins)
