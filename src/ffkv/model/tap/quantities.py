"""The quantities of a feed-forward layer that a tap can read."""

from collections.abc import Callable
from enum import StrEnum

from torch import Tensor

from ffkv.model.anatomy import Layer


class Quantity(StrEnum):
    """A quantity by the letter of the paper (section 3.1). Members are in the order in which a layer computes them.

    y = s (m V + b), with s = 1 unless a norm follows the layer.
    """

    FF_INPUT = "x"  # [sentence, token, d]
    GATE = "g"  # whether the gate of each memory is positive [sentence, token, d_m]; gated layers only
    COEFFICIENTS = "m"  # [sentence, token, d_m]
    BIAS = "b"  # what the layer adds beside its memories, before a norm or map after it [sentence, token, d]
    FACTOR = "s"  # by which a norm after the layer scales each token [sentence, token, 1]; only with such a norm
    FF_OUTPUT = "y"  # as it is added to the residual [sentence, token, d]
    BLOCK_OUTPUT = "o"  # [sentence, token, d]
    END = "e"  # what the head reads [sentence, token, d]; only for a last layer whose o is something else


OnTensor = Callable[[Layer, Quantity, Tensor], None]
