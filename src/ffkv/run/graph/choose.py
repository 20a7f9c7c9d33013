"""Chooses few places whose memories, alone unpatched, keep a share of a logit difference."""

import numpy as np

from ffkv.branches.behaviours import smallest
from ffkv.branches.behaviours.smallest import GROWTH, Chosen, KeptBy, highest
from ffkv.branches.behaviours.subject import Subject, mask_of, patch, screen, screens

FIRST = 2  # how many places a set that grows gets at a time at least


def choose(subject: Subject, share: float, maximum: int, kept_by: KeptBy) -> Chosen:
    """Finds few places that keep a share of the logit difference when all others are patched.

    Beside the two ways of `smallest.choose`, a set grows by the places with the largest screen while all others are patched.

    Args:
        share: the share to keep.
        maximum: most places.
        kept_by: the shares that sets of places keep.
    Returns:
        The places. If no set on the way keeps the share: the one of those that keeps most.
    """

    def effects_of(places: np.ndarray) -> np.ndarray:
        return subject.difference - patch(subject, [*places[:, None]])[0]

    grown = _grow(subject, share, maximum, kept_by)
    return smallest.choose(screens(subject), effects_of, kept_by, share, maximum, [grown])


def _grow(subject: Subject, share: float, maximum: int, kept_by: KeptBy) -> Chosen:
    """Takes the places with the largest screen while all others are patched, and screens again each time."""
    places, best = np.zeros(0, np.int64), Chosen(np.zeros(0, np.int64), 0.0, False)
    while not best.reached and len(places) < maximum:
        rises = screen(subject, mask_of(subject, [places], False)[0].float())
        rises[places] = 0
        more = highest(rises, min(max(FIRST, int(GROWTH * len(places))), maximum - len(places)))
        if not len(more):
            break
        places = np.concatenate([places, more])
        kept = float(kept_by([places])[0])
        best = Chosen(places, kept, kept >= share) if kept > best.kept else best
    return best
