"""Adjusts p-values for the number of tests."""

import numpy as np

SIGNIFICANT = 0.05  # false discovery rate up to which an effect of an intervention counts


def q_values(p_values: np.ndarray, hypotheses: int) -> np.ndarray:
    """Benjamini-Hochberg adjusted p-values [tested].

    Each of the hypotheses without a p-value here has the p-value 1.
    """
    order = np.argsort(p_values)
    adjusted = np.asarray(p_values, float)[order] * hypotheses / np.arange(1, len(order) + 1)
    result = np.empty(len(order))
    result[order] = np.minimum(np.minimum.accumulate(adjusted[::-1])[::-1], 1)
    return result
