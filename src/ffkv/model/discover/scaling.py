"""Finds the scaling by which one tensor follows from another."""

from typing import NamedTuple

from torch import Tensor

TOLERANCE = 1e-4  # relative error up to which two tensors count as equal in float32: rounding, with room to spare
ROUNDS = 30  # of alternating least squares, which converges in a few


class Scaling(NamedTuple):
    """arrived = weight * scale * sent."""

    scale: float | Tensor  # one number, or one per dimension [d]
    per_token_weight: bool  # whether there is also a weight per token


def find_scaling(sent: Tensor, arrived: Tensor, tolerance: float) -> Scaling | None:
    """Finds the simplest scaling by which `arrived` follows from `sent`, both [token, d]; None if there is none."""
    z, d = sent.double().reshape(-1, sent.shape[-1]), arrived.double().reshape(-1, arrived.shape[-1])
    number = _ratio(z, d, (0, 1))
    if _close(number * z, d, tolerance):
        return Scaling(_or_one(number, tolerance), False)
    vector = _ratio(z, d, 0)
    if _close(vector * z, d, tolerance):
        return Scaling(vector, False)
    weight = _ratio(z, d, 1)
    if _close(weight * z, d, tolerance):
        return Scaling(1.0, True)
    weight = d.norm(dim=1, keepdim=True) / z.norm(dim=1, keepdim=True).clamp_min(1e-30)
    for _ in range(ROUNDS):
        vector = _ratio(weight * z, d, 0)
        weight = _ratio(vector * z, d, 1)
    return Scaling(vector, True) if _close(weight * vector * z, d, tolerance) else None


def is_per_token(sent: Tensor, arrived: Tensor) -> bool:
    """Tells whether `arrived` is `sent`, both [token, d], times one number per token."""
    z, d = sent.double().reshape(-1, sent.shape[-1]), arrived.double().reshape(-1, arrived.shape[-1])
    return _close(_ratio(z, d, 1) * z, d, TOLERANCE)


def proportion(tensor: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> float | None:
    """Returns the number a with a * tensor = expected; None if there is none."""
    tensor, expected = tensor.double(), expected.double()
    number = _ratio(tensor, expected, tuple(range(tensor.ndim)))
    return _or_one(number, tolerance) if _close(number * tensor, expected, tolerance) else None


def _or_one(number: Tensor, tolerance: float) -> float:
    return 1.0 if abs(number.item() - 1) < tolerance else number.item()


def _ratio(z: Tensor, d: Tensor, dimensions: int | tuple[int, ...]) -> Tensor:
    return (z * d).sum(dimensions, keepdim=True) / (z * z).sum(dimensions, keepdim=True).clamp_min(1e-300)


def _close(tensor: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((tensor - expected).abs().max() < tolerance * expected.abs().max())
