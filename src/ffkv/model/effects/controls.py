"""Whether an effect is larger than those of its controls."""

import numpy as np


def permutation_p(own: float, controls: np.ndarray) -> float:
    """Computes the share of controls, with the memory, whose effect is as large: (1 + #{|E_j| >= |E_i|}) / (R + 1)."""
    return float((1 + (np.abs(controls) >= abs(own)).sum()) / (len(controls) + 1))
