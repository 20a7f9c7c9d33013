"""Folds what scales and shifts into the matrices of a dictionary, and checks what comes out."""

from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv_dictionaries.files import AGAIN
from ffkv_dictionaries.forms import Dictionary

SMALLEST_NORM = 1e-8  # of a value that is divided by, as in SAELens
ROWS = 4096  # of a matrix that are multiplied in float64 at a time


def fold(path: Path, made: Dictionary, subtract: Tensor | None = None, unit_norm: bool = False) -> Dictionary:
    """Returns the dictionary m = act(E (x - s) + a), ŷ = Σ m_i v_i + b + S x, in the form of `Dictionary`.

    Args:
        path: its file, for messages.
        made: its tensors; they are changed in place. Its threshold may be None where none was said: that is a ReLU's.
        subtract: s [d].
        unit_norm: whether values are divided by their norms, and rows of E and a are multiplied by them. What is said of the
            threshold and of the largest is of the products.
    Raises:
        UserError: k is above the number of units; what comes out is not finite.
    """
    encoder, decoder, bias = made.encoder, made.decoder, made.encoder_bias
    units = len(encoder)
    if made.largest > units:
        raise UserError(
            f"{path} has {units:,} units, and its config says that the {made.largest:,} largest are kept (k). {AGAIN}"
        )
    if unit_norm:
        norms = torch.linalg.vector_norm(decoder, dim=1).clamp(min=SMALLEST_NORM)
        decoder /= norms[:, None]
        encoder *= norms[:, None]
        bias = bias * norms
    if subtract is not None:
        shift = torch.cat([rows.double() @ subtract.double() for rows in encoder.split(ROWS)])
        bias = (bias.double() - shift).float()
    threshold = made.threshold if made.threshold is not None or made.largest else torch.zeros(units)
    found = Dictionary(
        encoder, bias, decoder, made.decoder_bias, threshold, made.largest, made.either_sign, made.skip, made.told
    )
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, Tensor) and not torch.isfinite(value).all():
            raise UserError(f"{path}: {field.name} is not finite, after all that scales it is folded into it. {AGAIN}")
    return found


def of_jumprelu(threshold: Tensor) -> Tensor:
    """The threshold of an activation that is 0 below its threshold, and below 0 as well [unit]."""
    return threshold.clamp(min=0)
