"""P-values: by controls, and adjusted for the number of tests."""

import math

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


def fewest_significant(tests: int, controls: int) -> int:
    """Returns how many of some tests must have the smallest p-value, 1 / (controls + 1), so that any of them is significant.

    By Benjamini and Hochberg, k of n p-values are significant if they are up to k / n times the false discovery rate.
    """
    return math.ceil(round(tests / (SIGNIFICANT * (controls + 1)), 9))


def tell_floor(tests: int, controls: int) -> str:
    """Says how many of some tests must be significant together, and how many controls one alone needs; "" if it has them."""
    if (least := fewest_significant(tests, controls)) <= 1:
        return ""
    few = (
        f"{least} or more of them are significant, or none is" if least <= tests else "none of them can be significant"
    )
    needed = math.ceil(tests / SIGNIFICANT) - 1
    return f"A p-value is at least 1/{controls + 1}: so {few}. With {needed} controls, one alone can be."


def permutation_p(own: float, controls: np.ndarray) -> float:
    """Computes the share of controls, with the memory, whose effect is as large: (1 + #{|E_j| >= |E_i|}) / (R + 1).

    An effect that is smaller by 0.01 % is as large: logits of the same change differ by that much in rounding.
    """
    return float((1 + (np.abs(controls) >= abs(own) * (1 - 1e-4)).sum()) / (len(controls) + 1))
