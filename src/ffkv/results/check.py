"""`ffkv check`: reads every file of a run whole, and says which to delete."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from ffkv.errors import UserError
from ffkv.files.atomic import PARTIAL, PROGRESS, is_written
from ffkv.files.checksums import is_sum, output_of, sum_path, target_of, verify_sum
from ffkv.options import FOLDER


class Problem(NamedTuple):
    """What one step wrote (a file, or a folder) and is not right; why; whether a killed step left it unfinished."""

    path: Path
    reason: str
    unfinished: bool = False


def check_run(folder: Path) -> tuple[int, list[Problem]]:
    """Reads every file of a run.

    Checksums are compared, tables are parsed, and each file is to belong to the run's own model. What a shard has saved
    to go on from is no problem.

    Args:
        folder: `results/<run>`.
    Returns:
        How many files were read, and what is wrong, by path.
    Raises:
        UserError: the folder holds no file of a run.
    """
    read, problems = 0, {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(map(PARTIAL.fullmatch, parts)):
            if PARTIAL.fullmatch(path.name) and not is_written(path):
                problems[path] = Problem(path, "was left unfinished when its step was killed", unfinished=True)
        elif not any(part.endswith(PROGRESS) for part in parts) and _made(path):
            read += path.is_file()
            output, reason = target_of(path), _reason(path, folder)
            if reason:
                problems.setdefault(output, Problem(output, reason))
    if not read and not problems:
        raise UserError(f"{folder} holds no file of a run: name a folder such as results/demo.")
    return read, sorted(problems.values())


def _made(path: Path) -> bool:
    """Whether a step wrote it; of folders, only one that was written as a whole, in which a file may be missing."""
    if path.is_dir():
        return sum_path(path).exists()
    return not is_sum(path) and (path.suffix in READERS or sum_path(output_of(path)).exists())


def _reason(path: Path, folder: Path) -> str | None:
    """What is wrong with a file, or a folder; None where nothing is."""
    try:
        verify_sum(path)
        if path.is_file() and path.suffix in READERS:
            READERS[path.suffix](path, folder)
    except UserError as error:
        return str(error).removeprefix(f"{path} ").split(". Delete ")[0]
    return None


def _read_hdf5(path: Path, folder: Path) -> None:
    from ffkv.files import hdf5

    hdf5.verify(path, _identity(folder))


def _read_table(path: Path, folder: Path) -> None:
    from ffkv.files import tables

    tables.read(path)


def _read_tensors(path: Path, folder: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            file.keys()
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error})") from error


def _read_json(path: Path, folder: Path) -> None:
    import json

    try:
        json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error})") from error


def _identity(folder: Path) -> dict[str, Any]:
    from ffkv.model.anatomy import read_anatomy

    try:
        return read_anatomy(folder / "model").identity
    except UserError:  # not made yet, or a problem of its own
        return {}


READERS: dict[str, Callable[[Path, Path], None]] = {
    ".h5": _read_hdf5,
    ".parquet": _read_table,
    ".csv": _read_table,
    ".safetensors": _read_tensors,
    ".json": _read_json,
}


@click.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Read every file of a run (FOLDER, results/<run>) and say which are damaged or left over."""
    read, problems = check_run(folder)
    for problem in problems:
        click.echo(f"{problem.path}: {problem.reason}")
    if problems:
        names = shlex.join(str(problem.path) for problem in problems)
        place = folder.parent.parent  # targets are named from where results/ stands
        again = shlex.join(str(problem.path.relative_to(place)) for problem in problems if not problem.unfinished)
        raise UserError(
            f"{len(problems)} of what {folder} holds are not right. Delete them:\n  rm -r {names}"
            + (f"\nThen make them again, with the options of your run:\n  snakemake {again}" if again else "")
        )
    click.echo(f"{folder}: {read} files, all whole.")
