"""Triggers packed into integers, so that the running top t of every key is a sort.

A trigger is one 64-bit integer. Its highest bits are those bits of its positive float32 coefficient that count for the
order (see `ties`); they sort as the number does. Below them is the complement of its place in the corpus, then the rest
of the coefficient, and the last bit holds the sign of its gate. No two places are equal, so what is below them never
decides. The t largest integers are then the t highest coefficients, tied ones by sentence and position: the result does
not depend on the order in which prefixes are seen, and one state is merged into another by inserting it. The lowest
coefficients are the highest of -m.
"""

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.ties import FINE, FINE_BITS

PLACES = 2**31  # places in a corpus that 31 bits can tell apart
PLACE_SHIFT = FINE_BITS + 1
ROUGH_SHIFT = PLACE_SHIFT + 31
NOTHING = 0  # no trigger


def start(keys: int, t: int, device: torch.device | str) -> Tensor:
    """Returns an empty state [key, t]."""
    return torch.full((keys, t), NOTHING, dtype=torch.int64, device=device)


def pack(coefficients: Tensor, places: Tensor, gates: Tensor | int = 0) -> Tensor:
    """Returns one integer per candidate; arguments of one shape, whichever.

    `coefficients` are positive float32, `places` below 2^31; `gates`: whether the gate is positive.
    """
    bits = coefficients.contiguous().view(torch.int32).to(torch.int64)
    place = (PLACES - 1 - places) << PLACE_SHIFT
    return ((bits >> FINE_BITS) << ROUGH_SHIFT) | place | ((bits & FINE) << 1) | gates


def unpack(best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients (float32), places (int64) and gates (bool) of packed triggers; 0, -1 and False for no trigger."""
    bits = ((best >> ROUGH_SHIFT) << FINE_BITS) | ((best >> 1) & FINE)
    places = PLACES - 1 - ((best >> PLACE_SHIFT) & (PLACES - 1))
    return bits.to(torch.int32).view(torch.float32), torch.where(best == NOTHING, -1, places), (best & 1).bool()


def least_tied(coefficients: Tensor) -> Tensor:
    """Returns the smallest number that is tied with each of some positive float32 coefficients."""
    return (coefficients.contiguous().view(torch.int32) & ~FINE).view(torch.float32)


def edges(best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the place of each key's t-th best, and what a coefficient must exceed before and behind it [key] each.

    `best`: the state [key, t].
    """
    last = best[:, -1].contiguous()
    bits = (last >> ROUGH_SHIFT) << FINE_BITS
    # Tied coefficients win from an earlier place, and lose from a later one.
    before, behind = (
        torch.where(last == NOTHING, 0, edge).to(torch.int32).view(torch.float32)
        for edge in ((bits - 1).clamp(min=0), bits | FINE)
    )
    return unpack(last)[1], before, behind


def floor(edges: tuple[Tensor, Tensor, Tensor], places: Tensor) -> Tensor:
    """Returns what a coefficient must exceed to compete with each key's t-th best [sentence, key].

    `places`: place of each sentence's first prefix [sentence].
    """
    place, before, behind = edges
    return torch.where(places[:, None] > place, behind, before)


def highest(packed: Tensor, t: int) -> Tensor:
    """Returns the t highest of each row, descending on the CPU [key, t]."""
    if packed.device.type != "cpu":
        return packed.topk(t, sorted=False).values
    # NumPy sorts with vector instructions: six times as fast as a partial sort without them.
    return torch.from_numpy(np.sort(packed.numpy(), axis=1)[:, -t:]).flip(1)


def in_order(best: Tensor) -> Tensor:
    """Sorts the state of a GPU, each row descending [key, t]."""
    return best.sort(1, descending=True).values


def insert(best: Tensor, keys: Tensor, packed: Tensor) -> None:
    """Merges candidates on the CPU, for keys in any order [candidate], into the state, each row descending [key, t], in place."""
    if not len(keys):
        return
    order = keys.argsort()
    hit, counts = torch.unique_consecutive(keys[order], return_counts=True)
    rows = torch.repeat_interleave(counts)
    columns = torch.arange(len(keys)) - (counts.cumsum(0) - counts)[rows]
    t = best.shape[1]
    together = best.new_full((len(hit), t + int(counts.max())), NOTHING)
    together[:, :t] = best[hit]
    together[rows, t + columns] = packed[order]
    best[hit] = highest(together, t)
