"""Chooses few places whose memories, alone unpatched, keep a share of a logit difference; and random ones beside them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ffkv.run.graph.subject import Subject, mask_of, patch, screen

STEPS = 5  # from all patched to none, with both
FIRST, GROWTH = 2, 0.2  # how many places a set gets at a time: so many, or this share of those it has


class Chosen(NamedTuple):
    """Places that keep a share of a logit difference."""

    places: np.ndarray  # ascending
    kept: float  # the share that they keep
    reached: bool  # whether that is the share that was asked for


def choose(
    subject: Subject, share: float, maximum: int, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> Chosen:
    """Finds few places that keep a share of the logit difference when all others are patched.

    Three ways lead to a set. It grows by the places with the largest screen while all others are patched, which is measured anew each
    time. Or it has the places with the largest mean screen on the way from all patched to none. Or, of the places with the largest
    screen anywhere on that way, it has those with the largest exact effect when each is patched alone: this finds a chain of which no part
    does anything without the others. Then members are left out, as many at a time as can be, until no single one can be left out. The
    smallest set is taken.

    Args:
        share: the share to keep.
        maximum: most places.
        kept_by: the shares that sets of places keep.
    Returns:
        The places. If no set on the way keeps the share: the one of those that keeps most.
    """
    screens = [screen(subject, torch.full_like(subject.m, step)) for step in np.linspace(0, 1, STEPS)]
    sizes = np.max(np.abs(screens), axis=0)
    candidates = _highest(sizes, maximum)
    alone = np.zeros(subject.m.numel())
    if len(candidates):
        alone[candidates] = (
            subject.difference - patch(subject, [candidates[n : n + 1] for n in range(len(candidates))])[0]
        )
    orders = _highest(np.mean(screens, axis=0), maximum), _highest(alone, maximum)
    found = [_grow(subject, share, maximum, kept_by), *(_first(order, share, kept_by) for order in orders)]
    if reached := [_prune(each, share, kept_by) for each in found if each.reached]:
        return min(reached, key=lambda each: len(each.places))
    best = max(found, key=lambda each: each.kept)
    return best._replace(places=np.sort(best.places))


def _grow(
    subject: Subject, share: float, maximum: int, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> Chosen:
    places, best = np.zeros(0, np.int64), Chosen(np.zeros(0, np.int64), 0.0, False)
    while not best.reached and len(places) < maximum:
        rises = screen(subject, mask_of(subject, [places], False)[0].float())
        rises[places] = 0
        more = _highest(rises, min(max(FIRST, int(GROWTH * len(places))), maximum - len(places)))
        if not len(more):
            break
        places = np.concatenate([places, more])
        kept = float(kept_by([places])[0])
        best = Chosen(places, kept, kept >= share) if kept > best.kept else best
    return best


def _first(order: np.ndarray, share: float, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Chosen:
    """Returns the first places of an order, as few of the sizes that are tried as keep the share."""
    sizes = [0]
    while sizes[-1] < len(order):
        sizes.append(min(len(order), sizes[-1] + max(1, int(GROWTH * sizes[-1]))))
    kept = kept_by([order[:size] for size in sizes])
    reach = np.flatnonzero(kept >= share)
    best = int(reach[0]) if len(reach) else int(kept.argmax())
    return Chosen(order[: sizes[best]], float(kept[best]), len(reach) > 0)


def _highest(rises: np.ndarray, count: int) -> np.ndarray:
    """Returns the places with the largest rises above 0, the largest first, at most `count`."""
    order = np.argsort(-rises, kind="stable")[:count]
    return order[rises[order] > 0]


def _prune(chosen: Chosen, share: float, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Chosen:
    """Leaves out members, those first without which the others keep most, until none can be left out alone."""
    places, kept = np.sort(chosen.places), chosen.kept
    while len(places):
        rest = kept_by([np.delete(places, n) for n in range(len(places))])
        weakest = np.argsort(-rest, kind="stable")[: int((rest >= share).sum())]
        if not len(weakest):
            break
        counts = [len(weakest) >> halved for halved in range(len(weakest).bit_length())]  # down to one, which can go
        fewer = [np.delete(places, weakest[:count]) for count in counts]
        found = kept_by(fewer)
        if not (found >= share).any():  # another batch rounds otherwise
            break
        first = int(np.argmax(found >= share))
        places, kept = fewer[first], float(found[first])
    return Chosen(places, kept, True)


def random_places(subject: Subject, places: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draws, for each place, another one of its layer and token whose patch changes something; none twice.

    Where a layer has too few at a token, all of them are drawn.
    """
    memories, offset = subject.m.shape[1], np.asarray(subject.loaded.anatomy.layer_offset)
    moves = (subject.m != subject.base).numpy()
    groups, counts = np.unique(np.stack([places // memories, subject.layer_of(places)]), axis=1, return_counts=True)
    drawn = [np.zeros(0, np.int64)]
    for (token, layer), count in zip(groups.T, counts, strict=True):
        own = slice(offset[layer], offset[layer + 1])
        others = np.setdiff1d(token * memories + own.start + np.flatnonzero(moves[token, own]), places)
        drawn.append(generator.choice(others, min(count, len(others)), replace=False))
    return np.concatenate(drawn)
