"""Which calls of a command can fail, and how: the preloaded library of `library.c`, and what it is told."""

import ctypes
import errno
import os
import random
from collections import defaultdict
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

KINDS = OPEN, MAKE, READ, WRITE, SIZE, SYNC, NAME, REMOVE, MAP, LOOK, TAKE = tuple(1 << bit for bit in range(11))
CHANGES = MAKE | WRITE | SIZE | SYNC | NAME
ONCE, ON, SHORT, KILL = range(4)


class Fault(NamedTuple):
    """What happens at the n-th call."""

    kinds: int  # which calls count
    how: int  # ONCE, ON, SHORT or KILL
    error: int = 0  # of the system


FAULTS = {
    "full disk": Fault(CHANGES, ON, errno.ENOSPC),
    "quota": Fault(CHANGES, ONCE, errno.EDQUOT),
    "bad disk": Fault(CHANGES | OPEN | READ | REMOVE | MAP, ONCE, errno.EIO),
    "dead disk": Fault(CHANGES | OPEN | READ | REMOVE | MAP | LOOK, ON, errno.EIO),
    "rights": Fault(OPEN | MAKE | NAME | REMOVE, ONCE, errno.EACCES),
    "open files": Fault(OPEN | MAKE, ONCE, errno.EMFILE),
    "bad folder": Fault(LOOK, ONCE, errno.EIO),
    "closed folder": Fault(LOOK, ONCE, errno.EACCES),
    "memory": Fault(MAP, ONCE, errno.ENOMEM),
    "allocation": Fault(TAKE, ONCE, errno.ENOMEM),
    "short": Fault(READ | WRITE, SHORT),
    "kill": Fault(CHANGES | REMOVE, KILL),
}
MOST = 10  # requests for memory at one place that are tried: there are thousands
COUNTED = Fault(sum(KINDS), ONCE)  # every call counts


class Injector:
    """The preloaded library, which this process and its forks share."""

    def __init__(self, library: str):
        self._library = ctypes.CDLL(library)
        self._library.fault_what.restype = ctypes.c_char_p
        self._library.fault_count.restype = self._library.fault_noted.restype = ctypes.c_long
        self._library.fault_calls.restype = ctypes.POINTER(ctypes.c_uint64)

    def arm(self, folder: Path, fault: Fault | None, number: int) -> None:
        """Lets a call fail that concerns files below a folder: the one of a number, from 1; 0 for none."""
        kinds, how, error = fault or (0, 0, 0)
        self._library.fault_arm(os.fsencode(folder), kinds, ctypes.c_long(number), how, error)

    def disarm(self) -> tuple[int, str]:
        """Lets nothing fail any more. Returns how many calls counted, and the one that was made to fail."""
        found = self._library.fault_count(), self._library.fault_what().decode(errors="replace")
        self._library.fault_arm(b"/nowhere", 0, ctypes.c_long(0), 0, 0)
        return found

    def calls(self) -> list[int]:
        """The calls since the last `arm`, if that let none fail: the kind of each, and a sum of its function and path."""
        return self._library.fault_calls()[: self._library.fault_noted()]


def tells(said: str, error: int) -> bool:
    """Whether a message names the cause."""
    space = ["does not fit", "no space left"] if error in (errno.ENOSPC, errno.EDQUOT) else []
    memory = (
        ["memory does not suffice", "memory is used up", "memory allocation", "bad_alloc"]
        if error == errno.ENOMEM
        else []
    )
    # safetensors does not pass on why a file cannot be opened.
    return any(word in said for word in [os.strerror(error), "it cannot be opened", *space, *memory])


def places_of(calls: list[int], fault: Fault) -> list[list[int]]:
    """The numbers, from 1, of the calls that count for a fault, those of one function on one path together."""
    found = defaultdict(list)
    for number, call in enumerate((call for call in calls if call & fault.kinds), 1):
        found[call].append(number)
    return list(found.values())


def draw(places: dict[str, list[list[int]]], cases: str, choose: random.Random) -> list[tuple[str, int]]:
    """Draws which calls of a command are to fail: of each kind of fault in turn, and of each place before the second of one.

    places: numbers of calls by the name of the fault, as `places_of` gives them. cases: how many are drawn; "0" for all,
    "places" for one of each place. Of requests for memory at most `MOST` of a place are drawn.
    """
    mixed = {}
    for name, groups in places.items():
        most = MOST if FAULTS[name].kinds == TAKE else None
        each = zip_longest(*(choose.sample(group, len(group))[:most] for group in choose.sample(groups, len(groups))))
        first = next(each, ())
        mixed[name] = [number for number in chain(first, *(each if cases != "places" else ())) if number]
    order = choose.sample(list(mixed), len(mixed))
    turns = range(max(map(len, mixed.values())))
    drawn = [(name, mixed[name][turn]) for turn in turns for name in order if turn < len(mixed[name])]
    return drawn if cases == "places" else drawn[: int(cases) or None]
