"""How one tensor follows from another that a block has scaled on the way."""

from typing import NamedTuple

import torch
from torch import Tensor

ROUNDS = 30  # of alternating least squares; it converges in a few


class Fit(NamedTuple):
    """arrived = weight * scale * sent.

    scale: a number, or one a dimension [d]. weighted: whether there is a weight a token.
    """

    scale: float | Tensor
    weighted: bool


def fit(sent: Tensor, arrived: Tensor, tolerance: float) -> Fit | None:
    """The simplest scaling by which `arrived` follows from `sent`, both [token, d]; None where none does."""
    z, d = sent.double().reshape(-1, sent.shape[-1]), arrived.double().reshape(-1, arrived.shape[-1])
    number = _ratio(z, d, (0, 1))
    if _close(number * z, d, tolerance):
        return Fit(1.0 if abs(number.item() - 1) < tolerance else number.item(), False)
    vector = _ratio(z, d, 0)
    if _close(vector * z, d, tolerance):
        return Fit(vector, False)
    weight = _ratio(z, d, 1)
    if _close(weight * z, d, tolerance):
        return Fit(1.0, True)
    weight = d.norm(dim=1, keepdim=True) / z.norm(dim=1, keepdim=True).clamp_min(1e-30)
    for _ in range(ROUNDS):
        vector = _ratio(weight * z, d, 0)
        weight = _ratio(vector * z, d, 1)
    return Fit(vector, True) if _close(weight * vector * z, d, tolerance) else None


def tokens_weights(parts: Tensor, total: Tensor) -> Tensor:
    """The weight of each part in a total, by token: least squares.

    Args:
        parts: [part, token, d]. total: [token, d].
    Returns:
        Weights [part, token], so that total = sum_p weight_p parts_p; 0 for a part that is zero.
    """
    parts, total = parts.double(), total.double()
    products = torch.einsum("ptd,qtd->tpq", parts, parts)
    onto = torch.einsum("ptd,td->tp", parts, total)
    return (torch.linalg.pinv(products, hermitian=True) @ onto[..., None])[..., 0].T


def proportion(found: Tensor, expected: Tensor, tolerance: float) -> float | None:
    """The number a with a * found = expected; None where there is none."""
    found, expected = found.double(), expected.double()
    number = _ratio(found, expected, tuple(range(found.ndim)))
    if not _close(number * found, expected, tolerance):
        return None
    return 1.0 if abs(number.item() - 1) < tolerance else number.item()


def _ratio(z: Tensor, d: Tensor, dimensions: int | tuple[int, ...]) -> Tensor:
    return (z * d).sum(dimensions, keepdim=True) / (z * z).sum(dimensions, keepdim=True).clamp_min(1e-300)


def _close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found - expected).abs().max() < tolerance * expected.abs().max())
