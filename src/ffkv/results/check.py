"""Reads every file of a run, and finds those that are damaged or unfinished."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from ffkv.errors import UserError
from ffkv.files import hdf5, tables
from ffkv.files.atomic import PARTIAL, PROGRESS, is_written
from ffkv.files.checksums import is_sum, output_of, sum_path, target_of, verify_sum
from ffkv.model.anatomy import read_anatomy
from ffkv.results.run_files import SPLIT_OF


class Problem(NamedTuple):
    """A file or a folder that one step wrote and that cannot be used.

    Attributes:
        path: the file or the folder.
        reason: why it cannot be used.
        unfinished: whether a killed step left it behind.
    """

    path: Path
    reason: str
    unfinished: bool = False


def check_run(folder: Path) -> tuple[int, list[Problem]]:
    """Reads every file of a run.

    The function compares checksums, reads tables and datasets, and compares the model, tokenizer and corpus that a file
    belongs to with the run's own. The state that a shard saves to continue from is no problem.

    Returns:
        The number of files that were read, and the problems, sorted by path.
    Raises:
        UserError: the folder holds no file of a run.
    """
    read, problems = 0, {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(map(PARTIAL.fullmatch, parts)):
            if PARTIAL.fullmatch(path.name) and not is_written(path):
                problems[path] = Problem(path, "is unfinished: its step was killed", unfinished=True)
        elif not any(part.endswith(PROGRESS) for part in parts) and _is_output(path):
            read += path.is_file()
            output, reason = target_of(path), _reason(path, folder)
            if reason:
                problems.setdefault(output, Problem(output, reason))
    if not read and not problems:
        raise UserError(f"{folder} holds no file of a run. Name a folder such as results/demo.")
    return read, sorted(problems.values())


def _is_output(path: Path) -> bool:
    """Whether a step wrote this. Of folders, only those that were written as a whole: a file in them may be missing."""
    if path.is_dir():
        return sum_path(path).exists()
    return not is_sum(path) and (path.suffix in READERS or sum_path(output_of(path)).exists())


def _reason(path: Path, folder: Path) -> str | None:
    """Why a file or a folder cannot be used; None where it can be."""
    try:
        verify_sum(path)
        if path.is_file() and path.suffix in READERS:
            READERS[path.suffix](path, folder)
    except UserError as error:
        return str(error).removeprefix(f"{path} ").split(". Delete ")[0]
    except (OSError, ValueError, SafetensorError) as error:
        return f"is damaged ({error})"
    return None


def _identity(path: Path, folder: Path) -> dict[str, Any]:
    """What a file must belong to. A model or a corpus that is missing or damaged is a problem of its own."""
    identity: dict[str, Any] = {}
    with contextlib.suppress(UserError):
        identity |= read_anatomy(folder / "model").identity
    split = SPLIT_OF.get(path.relative_to(folder).parts[0].removesuffix(".h5"))
    with contextlib.suppress(UserError):
        if split:
            with hdf5.open(folder / "corpus" / f"{split}.h5", "corpus") as corpus:
                identity["corpus_hash"] = corpus.attrs["corpus_hash"]
    return identity


def _read_table(path: Path, folder: Path) -> None:
    hdf5.check_identities(path, tables.read(path).attrs, _identity(path, folder))


def _read_tensors(path: Path, folder: Path) -> None:
    with safe_open(path, "numpy") as file:
        file.keys()


READERS: dict[str, Callable[[Path, Path], object]] = {
    ".h5": lambda path, folder: hdf5.verify(path, _identity(path, folder)),
    ".parquet": _read_table,
    ".csv": _read_table,
    ".safetensors": _read_tensors,
    ".json": lambda path, folder: json.loads(path.read_text()),
}
