"""Reads every file of a run, and finds those that are damaged or unfinished."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.base.files.atomic import PARTIAL, PROGRESS, is_written
from ffkv.base.files.bounded import read_json
from ffkv.base.files.checksums import Damaged, output_of, sum_path, target_of, verify_sum
from ffkv.base.files.fault import unreadable
from ffkv.base.files.provenance import Foreign, check_identities
from ffkv.base.lookup import exists, is_dir, is_file
from ffkv.base.process.apart import Lost, apart
from ffkv.base.settings import Settings
from ffkv.model.anatomy import read_anatomy
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run_files import read_settings, split_of

PATIENCE, SLOWEST = 60, 2**20  # seconds that each file may take, and how many bytes of it a slow disk reads per second
NO_RUN = "{} holds no file of a run. Name a folder such as results/demo."


class Problem(NamedTuple):
    """A file or a folder that one step wrote, or should have written, and that cannot be used as it is."""

    path: Path  # the file or the folder
    # "damaged": it differs from its checksum; "foreign": it is of another run or version; "unfinished": a killed step
    # left it behind; "missing": no step has made it yet, or somebody deleted it; "doubtful": it cannot be read, or has
    # no checksum, so nobody can tell whether it is whole
    kind: str
    reason: str  # a sentence about it


def check_run(folder: Path) -> tuple[int, list[Problem]]:
    """Reads every file of a run.

    The function compares checksums, reads tables and datasets, and compares the model, tokenizer and corpus that a file
    belongs to with the run's own. It names every file that a finished run has and this one lacks. The state that a
    shard saves to continue from is not a problem.

    Returns:
        The number of files that were read, and the problems, sorted by path.
    Raises:
        UserError: the folder holds no file of a run.
    """
    if os.access(folder, os.R_OK | os.X_OK):
        # Has a step written, or begun to write, any file in its place? Other folders may be large.
        places = [folder / name for name in expected_files(Settings())]
        # Not Path.is_file, which raises an error inside a folder that may not be entered.
        if not any(os.path.isfile(path) or any(path.parent.glob(f".{path.name}.*")) for path in places):  # noqa: PTH113
            raise UserError(NO_RUN.format(folder))
    problems: dict[Path, Problem] = {}
    whole = _outputs(folder, problems)
    for path, found in zip(whole, apart(lambda path: _look_at(path, folder), whole, _seconds), strict=True):
        if isinstance(found, Lost):
            reason = f"was made to harm, or the memory is used up: the process that read it {found.how}."
            found = Problem(target_of(path), "doubtful", reason)
        if found:
            problems.setdefault(found.path, found)
    read = sum(map(os.path.isfile, whole))
    if not read and not problems:
        raise UserError(NO_RUN.format(folder))
    for path in _missing(folder):
        problems.setdefault(
            path, Problem(path, "missing", "does not exist: it was deleted, or its step has not ended yet.")
        )
    return read, sorted(problems.values())


def _outputs(folder: Path, problems: dict[Path, Problem]) -> list[Path]:
    """Returns what steps wrote below a folder, sorted. What is unfinished, or may not be listed, is a problem."""
    found = []
    for path in _walk(folder, problems):
        parts = path.relative_to(folder).parts
        try:
            if any(map(PARTIAL.fullmatch, parts)):
                if PARTIAL.fullmatch(path.name) and not is_written(path):
                    problems[path] = Problem(path, "unfinished", "is unfinished: its step was killed.")
            elif not any(part.endswith(PROGRESS) for part in parts) and _is_output(path):
                found.append(path)
        except OSError as error:  # of a folder that may be listed and not entered
            problems.setdefault(path, _closed(path, error))
    return found


def _seconds(path: Path) -> float:
    """Returns how long the reading of a file may take. HDF5 goes round in circles in some files that were made for that."""
    return PATIENCE + (os.path.getsize(path) if os.path.exists(path) else 0) / SLOWEST  # noqa: PTH110, PTH202


def _walk(folder: Path, problems: dict[Path, Problem]) -> list[Path]:
    """Returns all entries below a folder, sorted; a folder that may not be entered is a problem."""

    def note(error: OSError) -> None:
        path = Path(error.filename)
        problems[path] = _closed(path, error)

    below = os.walk(folder, onerror=note)
    return sorted(Path(place, name) for place, folders, files in below for name in (*folders, *files))


def _closed(path: Path, error: OSError) -> Problem:
    return Problem(path, "doubtful", f"cannot be read: {error.strerror}. Check its rights.")


def _missing(folder: Path) -> list[Path]:
    try:
        settings = read_settings(folder)
    except (UserError, OSError):  # what is wrong with it is said anyway
        return [folder / "settings.json"] if _is_gone(folder / "settings.json") else []
    return [folder / name for name in expected_files(settings) if _is_gone(folder / name)]


def _is_gone(path: Path) -> bool:
    try:
        return not exists(path)
    except OSError:  # the folder above it may not be entered, which is said anyway
        return False


def _is_output(path: Path) -> bool:
    """Tells whether a step wrote this.

    Of folders, only those that were written as a whole: a file in them may be missing.
    """
    if is_dir(path):
        return exists(sum_path(path))
    return not path.name.startswith(".") and (path.suffix in READERS or exists(sum_path(output_of(path))))


def _look_at(path: Path, folder: Path) -> Problem | None:
    output = target_of(path)
    try:
        verify_sum(path)
        if is_file(path) and path.suffix in READERS:
            READERS[path.suffix](path, folder)
    except Damaged as error:
        kind, reason = "damaged", str(error).split(". Delete ")[0] + "."
    except Foreign as error:
        kind, reason = "foreign", str(error)
    except UserError as error:
        kind, reason = "doubtful", str(error)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        kind, reason = "doubtful", str(unreadable(path, error))
    else:
        if exists(sum_path(output_of(path))):
            return None
        kind = "doubtful"
        reason = "has no checksum beside it, so nobody can tell whether it is whole. Ignore this if you changed it."
    return Problem(output, kind, reason.removeprefix(f"{output} "))


def _identity(path: Path, folder: Path) -> dict[str, Any]:
    """Returns what a file must belong to. A model or a corpus that is missing or damaged is a problem of its own."""
    identity: dict[str, Any] = {}
    with contextlib.suppress(UserError):
        identity |= read_anatomy(folder / "model").identity
    split = split_of(path.relative_to(folder))
    with contextlib.suppress(UserError):
        if split:
            with hdf5.open(folder / "corpus" / f"{split}.h5", "corpus") as corpus:
                identity["corpus_hash"] = corpus.attrs["corpus_hash"]
    return identity


def _read_table(path: Path, folder: Path) -> None:
    check_identities(path, tables.read(path).attrs, _identity(path, folder))


def _read_tensors(path: Path, folder: Path) -> None:
    with safe_open(path, "numpy") as file:
        file.keys()


def _read_json(path: Path, folder: Path) -> None:
    read_json(path)
    if path == folder / "settings.json":
        read_settings(folder)


READERS: dict[str, Callable[[Path, Path], object]] = {
    ".h5": lambda path, folder: hdf5.verify(path, _identity(path, folder)),
    ".parquet": _read_table,
    ".csv": _read_table,
    ".safetensors": _read_tensors,
    ".json": _read_json,
}
