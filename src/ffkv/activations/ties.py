"""When two coefficients are tied: the rule that orders triggers the same whatever the batches, the threads and the device.

The last digits of a coefficient depend on the shape of the batch and on the machine. So the order of triggers looks at
the first 15 significant binary digits only: coefficients that agree in them differ by less than 0.01 % and are tied.
Tied prefixes come in the order of the corpus, also where the list of a key ends.
"""

import numpy as np

# Digits of a float32 that do not count, of the 23 after its first one.
FINE_BITS = 9
FINE = 2**FINE_BITS - 1


def rough(coefficient: np.ndarray) -> np.ndarray:
    """Returns whole numbers that sort as the sizes of float32 coefficients do, and are equal for tied ones; -1 for 0."""
    digits = np.abs(coefficient).view(np.int32) >> FINE_BITS
    return np.where(coefficient == 0, -1, digits)


def tied_first(coefficient: np.ndarray) -> np.ndarray:
    """Tells for which keys other trigger examples are tied with the first one [key].

    `coefficient`: that of each trigger example, 0 where there is none [key, rank].
    """
    digits = rough(coefficient[:, :2])
    return (digits.shape[1] > 1) & (digits[:, 0] >= 0) & (digits[:, 0] == digits[:, -1])
