"""Finds few members that keep a share of a logit difference. What several searches ask for runs in the same passes.

A search is a generator: it yields what it asks for, and goes on when this is known. So a pass has the sets of all orders, of all
prompts, and of all draws of a behaviour.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from ffkv.branches.behaviours.stored import largest
from ffkv.branches.behaviours.subjects import NOTHING, STEPS, Copy, Subject, patch, screen
from ffkv.model.tap.hooks import type_name

GROWTH = 0.2  # how many members more a larger set has: this share of those that it has


class Asked(NamedTuple):
    """Sets of members that prompts run with."""

    sets: Sequence[np.ndarray] | np.ndarray  # numbers of members [set][member]
    but: bool = True  # all memories but those of each set are patched; else those are
    used: np.ndarray | None = None  # the prompts to run; by default all [prompt]


class Chosen(NamedTuple):
    """Members that keep a share of a logit difference, or others beside them."""

    members: np.ndarray
    kept: float = np.nan  # the share that they keep where they were chosen; NaN of members that nothing chose
    reached: bool = False  # whether that is the share that was asked for


Search = Generator[list[Asked], None, Any]  # returns what it finds
KeptBy = Callable[[Sequence[np.ndarray]], Search]  # from sets to the shares that they keep


class Subjects:
    """Prompts on which sets of members are patched. No run is made twice. Members are places of one prompt, or memories."""

    def __init__(self, subjects: Sequence[Subject], group: np.ndarray, of_places: bool = False):
        self.subjects = subjects
        self.group = group  # of each prompt [prompt]
        self.of_places = of_places
        self.all = np.arange(subjects[0].m.numel() if of_places else subjects[0].m.shape[1])  # numbers of all members
        self.whole = np.array([subject.difference for subject in subjects])  # logit differences [prompt]
        self.known: list[dict[tuple[bool, bytes], float]] = [{} for _ in subjects]

    @cached_property
    def without(self) -> np.ndarray:
        """The logit differences when all memories are patched [prompt]."""
        return self.differences([NOTHING])[:, 0]

    def run(self, asked: Iterable[Asked]) -> None:
        """Runs what is not known yet, side by side."""
        missing: list[dict[tuple[bool, bytes], Copy]] = [{} for _ in self.subjects]
        for sets, but, used in asked:
            for own in sets:
                key = _key(own, but)
                for n in range(len(missing)) if used is None else np.flatnonzero(used).tolist():
                    if key not in self.known[n]:
                        missing[n][key] = Copy(self.places(self.subjects[n], own), but)
        numbers = [n for n, copies in enumerate(missing) if copies]
        found = patch([self.subjects[n] for n in numbers], [[*missing[n].values()] for n in numbers]) if numbers else []
        for n, (differences, *_) in zip(numbers, found, strict=True):
            self.known[n] |= zip(missing[n], differences.tolist(), strict=True)

    def differences(self, sets: Sequence[np.ndarray], but: bool = True, used: np.ndarray | None = None) -> np.ndarray:
        """Returns the logit difference of each set, see `Asked` [prompt, set]; NaN for prompts that are not used."""
        self.run([Asked(sets, but, used)])
        found, keys = np.full((len(self.subjects), len(sets)), np.nan), [_key(own, but) for own in sets]
        for n in range(len(found)) if used is None else np.flatnonzero(used).tolist():
            found[n] = [self.known[n][key] for key in keys]
        return found

    def places(self, subject: Subject, members: np.ndarray) -> np.ndarray:
        """Returns the places of members: of memories those at all tokens, token by token."""
        tokens, width = subject.m.shape
        return members if self.of_places else (np.arange(tokens)[:, None] * width + members).ravel()

    def at(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the token of each member, 0 of memories; its layer; and its number there."""
        token, memory = np.divmod(members, self.subjects[0].m.shape[1])
        return token, *self.subjects[0].loaded.anatomy.places_of(memory)

    @cached_property
    def moved(self) -> np.ndarray:
        """The members whose patch changes something, ascending."""
        moves = [(subject.m != subject.base).numpy() for subject in self.subjects]
        return np.flatnonzero(moves[0] if self.of_places else np.any([own.any(0) for own in moves], axis=0))

    def draw_beside(self, members: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draws, for each member, another one of its layer, and of its token, whose patch changes something; none twice.

        Where a layer has too few at a token, all of them are drawn.
        """
        others = np.setdiff1d(self.moved, members)
        (token, layer, _), (of_token, of_layer, _) = self.at(members), self.at(others)
        groups, counts = np.unique(np.stack([token, layer]), axis=1, return_counts=True)
        drawn = [np.zeros(0, np.int64)]
        for (token, layer), count in zip(groups.T, counts, strict=True):
            own = others[(of_token == token) & (of_layer == layer)]
            drawn.append(generator.choice(own, min(count, len(own)), replace=False))
        return np.concatenate(drawn)

    def screen(self, weights: Sequence[np.ndarray]) -> np.ndarray:
        """Screens all prompts in some states, of memories summed over tokens [state, prompt, member].

        `weights`: how near the coefficients of each member are to their own ones, see `subjects.screen`, float32 [state][member].
        """
        states = [
            (subject, torch.from_numpy(own).reshape(-1, subject.m.shape[1]).expand_as(subject.m))
            for own in weights
            for subject in self.subjects
        ]
        rises = np.zeros((len(weights), len(self.subjects), len(self.all)), np.float32)
        # As `patch` computes, so its runs are not made again.
        exact = type_name(self.subjects[0].loaded.model) == "float32"
        for numbers, found, differences in screen(*zip(*states, strict=True)):
            for number, own, difference in zip(numbers, found, differences.tolist(), strict=True):
                state, n = divmod(number, len(self.subjects))
                rises[state, n] = own.reshape(-1, len(self.all)).sum(0)
                if exact and np.isin(weights[state], (0, 1)).all():
                    self.known[n].setdefault(_key(np.flatnonzero(weights[state]), True), difference)
        return rises

    def rises(self) -> np.ndarray:
        """Returns the screens of each prompt on the way from all patched to none [step, prompt, member]."""
        return self.screen([np.full(len(self.all), step, np.float32) for step in np.linspace(0, 1, STEPS)])

    def effects(self, members: np.ndarray, used: np.ndarray | None = None) -> np.ndarray:
        """Returns by how much the logit difference falls when each member is patched alone [prompt, member]. `used`: as above."""
        return self.whole[:, None] - self.differences([*members[:, None]], but=False, used=used)

    def losses(self, members: np.ndarray) -> np.ndarray:
        """Returns by how much less the logit difference is without each member, all others but these patched [prompt, member]."""
        return self.differences([members]) - self.differences(but_one(members))


def but_one(members: np.ndarray) -> list[np.ndarray]:
    """Returns the members without each one."""
    return [np.delete(members, n) for n in range(len(members))]


def _key(members: np.ndarray, but: bool) -> tuple[bool, bytes]:
    return but, np.sort(members).tobytes()


def choose_graphs(
    half: Subjects,
    rises: np.ndarray,
    draws: np.ndarray,
    share: float,
    maximum: int,
    beside: Sequence[Chosen] = (),
    done: Callable[[int], object] = lambda count: None,
) -> list[Chosen]:
    """Finds few members that keep a share of the mean logit difference when all others are patched, for each draw of prompts.

    Two orders lead to a set: that of the mean screen on the way from all patched to none; and, among the members with the largest
    screen anywhere on that way, that of the exact effect when each is patched alone. The latter finds a chain of which no part does
    anything without the others. A set has the first members of an order. Then members are left out, as many at a time as can be, until
    no single one can be left out. The smallest set is taken.

    Args:
        rises: see `Subjects.rises`.
        draws: how many times each prompt counts [draw, prompt].
        share: the share to keep.
        maximum: most members.
        beside: sets that were found in another way.
        done: is called with 1 when the members of a draw are found.
    Returns:
        The members, by layer, of each draw. If no set on the way keeps the share: the one of those that keeps most. None, and NaN as what
        they keep, if all together do not raise the logit difference.
    """
    search = _together((_choose(half, rises, weights, share, maximum, beside) for weights in draws), done)
    while True:
        try:
            half.run(next(search))
        except StopIteration as end:
            found: list[Chosen] = end.value
            return found


def _together(searches: Iterable[Search], done: Callable[[int], object] = lambda count: None) -> Search:
    """Goes on with all searches at a time, each as far as it can; returns what they return. `done`: is called with 1 at each end."""
    open_searches, found = dict(enumerate(searches)), dict[int, Any]()
    while open_searches:
        asked: list[Asked] = []
        for number, search in [*open_searches.items()]:
            try:
                asked += next(search)
            except StopIteration as end:
                found[number] = end.value
                del open_searches[number]
                done(1)
        if asked:
            yield asked
    return [found[number] for number in sorted(found)]


def _choose(
    half: Subjects, rises: np.ndarray, weights: np.ndarray, share: float, maximum: int, beside: Sequence[Chosen]
) -> Search:
    used = weights > 0
    shares = weights[used] / weights.sum()
    whole = shares @ (half.whole - half.without)[used]
    if whole <= 0:
        return Chosen(NOTHING)

    def kept_by(sets: Sequence[np.ndarray]) -> Search:
        yield [Asked(sets, used=used)]
        return shares @ (half.differences(sets, used=used) - half.without[:, None])[used] / whole

    def by_effect(candidates: np.ndarray) -> Search:
        yield [Asked(candidates[:, None], False, used)]
        alone = np.zeros(len(half.all))
        alone[candidates] = shares @ half.effects(candidates, used)[used]
        return (yield from _first(highest(alone, maximum), share, kept_by))

    own = [shares @ of_step[used] for of_step in rises]
    found = yield from _together(
        [
            *(_prune(each, share, kept_by) for each in beside),
            _first(highest(np.mean(own, axis=0), maximum), share, kept_by),
            by_effect(highest(np.max(np.abs(own), axis=0), maximum)),
        ]
    )
    reached = [each for each in found if each.reached]
    best = min(reached, key=lambda each: len(each.members)) if reached else max(found, key=lambda each: each.kept)
    members = np.sort(best.members)
    return best._replace(members=members[np.argsort(half.at(members)[1], kind="stable")])


def _first(order: np.ndarray, share: float, kept_by: KeptBy) -> Search:
    """Returns the first members of an order, as few of the sizes that are tried as keep the share, and of these the fewest."""
    sizes = [0]
    while sizes[-1] < len(order):
        sizes.append(min(len(order), sizes[-1] + max(1, int(GROWTH * sizes[-1]))))
    kept = yield from kept_by([order[:size] for size in sizes])
    reach = np.flatnonzero(kept >= share)
    best = int(reach[0]) if len(reach) else int(kept.argmax())
    return (yield from _prune(Chosen(order[: sizes[best]], float(kept[best]), len(reach) > 0), share, kept_by))


def _prune(chosen: Chosen, share: float, kept_by: KeptBy) -> Search:
    """Leaves out members, those first without which the others keep most, until none can be left out alone.

    Of a set that does not keep the share none are left out.
    """
    members, kept = np.sort(chosen.members), chosen.kept
    if not chosen.reached:
        return chosen
    while len(members):
        rest = yield from kept_by(but_one(members))
        weakest = largest(rest, int((rest >= share).sum()))
        if not len(weakest):
            break
        counts = [len(weakest) >> halved for halved in range(len(weakest).bit_length())]  # down to one, which can go
        fewer = [np.delete(members, weakest[:count]) for count in counts]
        found = yield from kept_by(fewer)
        if not (found >= share).any():  # another batch rounds otherwise
            break
        first = int(np.argmax(found >= share))
        members, kept = fewer[first], float(found[first])
    return Chosen(members, kept, True)


def highest(rises: np.ndarray, count: int) -> np.ndarray:
    """Returns the members with the largest rises above 0, the largest first, at most `count`."""
    order = largest(rises, count)
    return order[rises[order] > 0]
