"""Chooses few members that, when all others are patched, keep a share of a logit difference. A member is a memory, or a memory at a
token."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

GROWTH = 0.2  # how many members more a larger set has: this share of those that it has
KeptBy = Callable[[Sequence[np.ndarray]], np.ndarray]  # from sets to the shares that they keep


class Chosen(NamedTuple):
    """Members that keep a share of a logit difference."""

    members: np.ndarray  # ascending
    kept: float  # the share that they keep
    reached: bool  # whether that is the share that was asked for


def choose(
    screens: Sequence[np.ndarray],
    effects_of: Callable[[np.ndarray], np.ndarray],
    kept_by: KeptBy,
    share: float,
    maximum: int,
    others: Sequence[Chosen] = (),
) -> Chosen:
    """Finds few members that keep a share of the logit difference when all others are patched.

    Two orders lead to a set: that of the mean screen on the way from all patched to none; and, among the members with the largest
    screen anywhere on that way, that of the exact effect when each is patched alone. The latter finds a chain of which no part does
    anything without the others. A set has the first members of an order. Then members are left out, as many at a time as can be, until
    no single one can be left out. The smallest set is taken.

    Args:
        screens: on the way from all patched to none, by how much the logit difference rises if each gets its own coefficient
            back [step][member].
        effects_of: from members to by how much the logit difference falls if each is patched alone.
        kept_by: the shares that sets of members keep.
        share: the share to keep.
        maximum: most members.
        others: sets that were found in another way.
    Returns:
        The members. If no set on the way keeps the share: the one of those that keeps most.
    """
    candidates = highest(np.max(np.abs(screens), axis=0), maximum)
    alone = np.zeros(len(screens[0]))
    if len(candidates):
        alone[candidates] = effects_of(candidates)
    orders = highest(np.mean(screens, axis=0), maximum), highest(alone, maximum)
    found = [*others, *(_first(order, share, kept_by) for order in orders)]
    if reached := [_prune(each, share, kept_by) for each in found if each.reached]:
        return min(reached, key=lambda each: len(each.members))
    best = max(found, key=lambda each: each.kept)
    return best._replace(members=np.sort(best.members))


def fewest(sizes: np.ndarray, share: float) -> np.ndarray:
    """Returns the fewest numbers whose sizes are a share of all sizes together, the largest first."""
    order = np.argsort(-sizes, kind="stable")
    summed = sizes[order].cumsum()
    count = int(np.searchsorted(summed, share * summed[-1] * (1 - 1e-12))) + 1 if len(summed) and summed[-1] else 0
    return order[:count]


def _first(order: np.ndarray, share: float, kept_by: KeptBy) -> Chosen:
    """Returns the first members of an order, as few of the sizes that are tried as keep the share."""
    sizes = [0]
    while sizes[-1] < len(order):
        sizes.append(min(len(order), sizes[-1] + max(1, int(GROWTH * sizes[-1]))))
    kept = kept_by([order[:size] for size in sizes])
    reach = np.flatnonzero(kept >= share)
    best = int(reach[0]) if len(reach) else int(kept.argmax())
    return Chosen(order[: sizes[best]], float(kept[best]), len(reach) > 0)


def highest(rises: np.ndarray, count: int) -> np.ndarray:
    """Returns the members with the largest rises above 0, the largest first, at most `count`."""
    order = np.argsort(-rises, kind="stable")[:count]
    return order[rises[order] > 0]


def _prune(chosen: Chosen, share: float, kept_by: KeptBy) -> Chosen:
    """Leaves out members, those first without which the others keep most, until none can be left out alone."""
    members, kept = np.sort(chosen.members), chosen.kept
    while len(members):
        rest = kept_by([np.delete(members, n) for n in range(len(members))])
        weakest = np.argsort(-rest, kind="stable")[: int((rest >= share).sum())]
        if not len(weakest):
            break
        counts = [len(weakest) >> halved for halved in range(len(weakest).bit_length())]  # down to one, which can go
        fewer = [np.delete(members, weakest[:count]) for count in counts]
        found = kept_by(fewer)
        if not (found >= share).any():  # another batch rounds otherwise
            break
        first = int(np.argmax(found >= share))
        members, kept = fewer[first], float(found[first])
    return Chosen(members, kept, True)


def random_members(
    members: np.ndarray, moves: np.ndarray, layer_offset: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Draws, for each member, another one of its layer, and of its token, whose patch changes something; none twice.

    Where a layer has too few at a token, all of them are drawn.

    Args:
        members: numbers in `moves`, laid out flat.
        moves: whether the patch of each changes something [token, memory]; of memories at all tokens [1, memory].
        layer_offset: first memory of each layer, and the number of all.
    """
    token, memory = np.divmod(members, moves.shape[1])
    layer = np.searchsorted(layer_offset, memory, "right") - 1
    groups, counts = np.unique(np.stack([token, layer]), axis=1, return_counts=True)
    drawn = [np.zeros(0, np.int64)]
    for (token, layer), count in zip(groups.T, counts, strict=True):
        own = slice(layer_offset[layer], layer_offset[layer + 1])
        others = np.setdiff1d(token * moves.shape[1] + own.start + np.flatnonzero(moves[token, own]), members)
        drawn.append(generator.choice(others, min(count, len(others)), replace=False))
    return np.concatenate(drawn)
