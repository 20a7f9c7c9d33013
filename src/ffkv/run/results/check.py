"""Reads every file of a run, and finds those that are damaged or unfinished."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, stored, tables
from ffkv.base.files.atomic import PARTIAL, PROGRESS, is_written
from ffkv.base.files.datasets import Checked
from ffkv.base.lookup import exists, is_dir, is_file, read_json, strange_entries
from ffkv.base.process.workers import Lost, apart
from ffkv.branches.settings import Settings
from ffkv.model.anatomy import ANATOMY_FILE, read_anatomy
from ffkv.run.results.expected import EARLIER, expected_files, read_settings, table_of, unmeasured
from ffkv.run.results.run_files import RECORDS, checked, leaves, split_of

PATIENCE, SLOWEST = 60, 2**20  # seconds that each file may take, and how many bytes of it a slow disk reads per second
NO_RUN = "{} holds no file of a run. Name a folder such as results/demo."


class Problem(NamedTuple):
    """A file or a folder that one step wrote, or should have written, and that cannot be used as it is."""

    path: Path  # the file or the folder
    # "damaged": it differs from its checksum; "foreign": it is of another run or version; "unfinished": a killed step
    # left it behind; "missing": no step has made it yet, or somebody deleted it; "doubtful": it cannot be read, or has
    # no checksum, so nobody can tell whether it is whole; "trust": it asks for what a person alone can allow; "earlier":
    # an earlier ffkv did not write it
    kind: str
    reason: str  # a sentence about it


def check_run(folder: Path) -> tuple[int, list[Problem]]:
    """Reads every file of a run.

    The function compares checksums, reads tables and datasets, and compares the model, tokenizer and corpus that a file
    belongs to with the run's own. It names every file that a finished run has and this one lacks, and what asks for trust.
    The state that a shard saves to continue from is not a problem. Files are opened in a process of their own.

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
    with contextlib.suppress(OSError):  # of a folder that may not be listed, which is said anyway
        for path, what in strange_entries(folder):
            problems[path] = Problem(path, "doubtful", f"{what}. It was not read.")
    whole = [path for path in _outputs(folder, problems) if path not in problems]
    for path, found in zip(whole, apart(lambda path: _look_at(path, folder), whole, _seconds), strict=True):
        if isinstance(found, Lost):
            reason = f"was made to harm, or the memory is used up: the process that read it {found.how}."
            found = Problem(stored.target_of(path), "doubtful", reason)
        if found:
            problems.setdefault(found.path, found)
    read = sum(map(os.path.isfile, whole))
    if not read and not problems:
        raise UserError(NO_RUN.format(folder))
    every = apart(lambda find: list(find(folder)), [_missing, _earlier, _requests], lambda find: PATIENCE)
    # What ended a process is named already.
    missing, earlier, requests = (found if isinstance(found, list) else [] for found in every)
    problems = {problem.path: problem for problem in (*missing, *earlier)} | problems
    return read, sorted([*problems.values(), *requests])


def _outputs(folder: Path, problems: dict[Path, Problem]) -> list[Path]:
    """Returns what steps wrote below a folder, sorted. What is unfinished, or may not be listed or entered, is a problem."""

    def closed(error: OSError, path: Path | None = None) -> None:
        path = path or Path(error.filename)
        problems.setdefault(path, Problem(path, "doubtful", f"cannot be read: {error.strerror}. Check its rights."))

    found, below = [], os.walk(folder, onerror=closed)
    for path in sorted(Path(place, name) for place, folders, files in below for name in (*folders, *files)):
        parts = path.relative_to(folder).parts
        try:
            if any(map(PARTIAL.fullmatch, parts)):
                if PARTIAL.fullmatch(path.name) and not is_written(path):
                    problems[path] = Problem(path, "unfinished", "is unfinished: its step was killed.")
            elif not any(part.endswith(PROGRESS) for part in parts) and _is_output(path):
                found.append(path)
        except OSError as error:  # of a folder that may be listed and not entered
            closed(error, path)
    return found


def _seconds(path: Path) -> float:
    """Returns how long the reading of a file may take. HDF5 goes round in circles in some files that were made for that."""
    return PATIENCE + (os.path.getsize(path) if os.path.exists(path) else 0) / SLOWEST  # noqa: PTH110, PTH202


def _missing(folder: Path) -> Iterator[Problem]:
    names = ["settings.json"]
    with contextlib.suppress(UserError, OSError):  # what is wrong with it is said anyway
        names = expected_files(read_settings(folder))
    for name in names:
        with contextlib.suppress(OSError):  # the folder above it may not be entered, which is said anyway
            if not exists(folder / name):
                reason = "does not exist: it was deleted, or its step has not ended yet."
                yield Problem(folder / name, "missing", reason)


def _earlier(folder: Path) -> Iterator[Problem]:
    with contextlib.suppress(UserError, OSError):  # what is wrong with a file is said anyway
        for name, columns in unmeasured(folder, read_settings(folder)).items():
            what = f"has no {', '.join(columns)}" if columns else "is not there"
            yield Problem(folder / name, "earlier", f"{what}: {EARLIER}.")


def _requests(folder: Path) -> Iterator[Problem]:
    """Yields what the run asks for and does not get unless a person allows it, each time (docs/security.md)."""
    with contextlib.suppress(UserError, OSError):  # what is wrong with the file is said anyway
        if (anatomy := read_anatomy(folder / "model")).trust_remote_code:
            reason = f"asks to run Python code that {anatomy.checkpoint} brings. Only --trust-remote-code allows it, each time."
            yield Problem(folder / "model" / ANATOMY_FILE, "trust", reason)
    with contextlib.suppress(UserError, OSError):
        settings = read_settings(folder)
        if leaves(settings.annotation.folder):
            reason = f"names {settings.annotation.folder} as the folder of annotations. Only --annotations allows it, each time."
            yield Problem(folder / "settings.json", "trust", reason)


def _is_output(path: Path) -> bool:
    """Tells whether a step wrote this; of folders, only as a whole: a file in them may be missing."""
    if is_dir(path):
        return exists(stored.sum_path(path))
    return not path.name.startswith(".") and (path.suffix in READERS or exists(stored.sum_path(stored.output_of(path))))


def _look_at(path: Path, folder: Path) -> Problem | None:
    output = stored.target_of(path)
    try:
        stored.verify_sum(path)
        if is_file(path) and path.suffix in READERS:
            READERS[path.suffix](path, folder)
    except stored.Damaged as error:
        kind, reason = "damaged", str(error).split(". Delete ")[0] + "."
    except stored.Foreign as error:
        kind, reason = "foreign", str(error)
    except UserError as error:
        kind, reason = "doubtful", str(error)
    except Exception as error:  # a file may be made so that a library fails in any way
        kind, reason = "doubtful", str(stored.unreadable(path, error))
    else:
        if exists(stored.sum_path(stored.output_of(path))):
            return None
        kind = "doubtful"
        reason = "has no checksum beside it, so nobody can tell whether it is whole. Ignore this if you changed it."
    return Problem(output, kind, reason.removeprefix(f"{output} "))


def _belonging(path: Path, folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns what a file must belong to, and the lengths of dimensions that its model and corpus tell.

    A model or a corpus that is missing or damaged is a problem of its own.
    """
    identity, sizes = dict[str, Any](), dict[str, int]()
    with contextlib.suppress(UserError):
        anatomy = read_anatomy(folder / "model")
        identity |= anatomy.identity
        sizes |= {"width": anatomy.width, "token_id": anatomy.vocabulary}
    with contextlib.suppress(UserError):
        if split := split_of(path.relative_to(folder)):
            with hdf5.open(folder / "corpus" / f"{split}.h5", "corpus") as corpus:
                identity["corpus_hash"] = corpus.attrs["corpus_hash"]
                sizes["sentence"] = int(corpus.attrs["sentences"])
    return identity, sizes


def _read_table(path: Path, folder: Path) -> None:
    name = path.relative_to(folder).as_posix()
    table = tables.read(path, known.foreign if (known := table_of(name)) else [])
    stored.check_identities(path, table.attrs, _belonging(path, folder)[0])
    checked(path, name, table)


def _read_datasets(path: Path, folder: Path) -> None:
    identity, sizes = _belonging(path, folder)
    with hdf5.open(path, None, identity) as file:
        if record := RECORDS.get(file.attrs["kind"]):
            Checked(file, record, sizes).check()
            return
    hdf5.verify(path, identity)


def _read_tensors(path: Path, folder: Path) -> None:
    with safe_open(path, "numpy") as file:
        file.keys()


def _read_json(path: Path, folder: Path) -> None:
    read_json(path)
    if path == folder / "settings.json":
        read_settings(folder)


READERS: dict[str, Callable[[Path, Path], object]] = {
    ".h5": _read_datasets,
    ".parquet": _read_table,
    ".csv": _read_table,
    ".safetensors": _read_tensors,
    ".json": _read_json,
}
