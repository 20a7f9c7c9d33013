"""Finds whose fault a failure is, and says it in one sentence: of a full disk or memory, of what the system denies, or of ffkv.

The disks and the memory are asked: how much is free, and whether a folder can be written. What nobody foresaw is a defect,
of which those who mend it get a file. Whether a file of ffkv is damaged, its checksum says (`ffkv.base.files.stored`).
"""

import contextlib
import errno
import os
import platform
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

import ffkv
from ffkv.base.doors import INSIDE, culprit, noted
from ffkv.base.errors import UserError, one_line
from ffkv.base.lookup import DENIED, exists, is_dir, is_file
from ffkv.base.terminal import say

FULL = 100_000  # free bytes below which Snakemake itself stops with a traceback
EXIT_CODE = 70  # "internal software error" in sysexits.h
SPACE = (errno.ENOSPC, errno.EDQUOT)
# How safetensors, tokenizers, HDF5 and pyarrow write an error of the system, which they pass on as text alone.
NUMBERED = re.compile(r"(?:os error|errno =|errno) (\d+)")
# What libraries say in errors of other classes: torch, the system, Triton, HDF5 and tokenizers, C++.
WORDS = (
    *("can't allocate memory", "Cannot allocate memory", "out of memory", "not enough memory"),
    *("memory allocation", "bad_alloc"),
)


class DoesNotFit(UserError):
    """A disk or a quota has no space for an output."""


class BatchTooLarge(UserError):
    """The memory has no space for a batch that a model is to read."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors that it came from, each once, the outermost first."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += [one.__cause__, one.__context__]


def lacks_space(error: BaseException) -> bool:
    """Tells whether an error, or one that it came from, says that a disk or a quota is full."""
    return denied(error, SPACE) != ""


def denied(error: BaseException, codes: Sequence[int] = DENIED) -> str:
    """Returns the system's words if an error, or one that it came from, says that the machine denied something, else "".

    `codes`: the numbers of the system's errors that count.
    """
    for each in causes(error):
        text = str(each)
        numbers = {getattr(each, "errno", None), *map(int, NUMBERED.findall(text))}
        if code := next((code for code in codes if code in numbers or os.strerror(code) in text), None):
            return os.strerror(code)
    return ""


def unwritable(path: Path, unfinished: Path, error: Exception) -> UserError | None:
    """Returns the message about an output that could not be written; None if the error is about something else.

    `unfinished`: what is written of it. `error`: what was raised meanwhile.
    """
    if isinstance(error, DoesNotFit):  # of an output inside of this one, which is named already
        return None
    if lacks_space(error) or (full([path.parent]) and not isinstance(error, UserError)):
        place = path.parent if full([path.parent]) or not full([temporary_folder()]) else temporary_folder()
        free = shutil.disk_usage(place).free if exists(place) else 0
        return DoesNotFit(
            f"{path} does not fit: {_size(unfinished):,} bytes of it are written, and {free:,} bytes are free in {place}"
            f" (or a quota is used up). Free some space, then start the same command again."
        )
    if not isinstance(error, OSError) or error.errno is None:
        words = "" if isinstance(error, UserError) else denied(error)
        return UserError(f"{path} cannot be made: {words}. Check the rights and the disks.") if words else None
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return UserError(f"{path} cannot be written: {error.strerror}. Check the folder's rights and the disk.")
    culprit, own, part = Path(os.fsdecode(error.filename)).absolute(), path.absolute(), unfinished.absolute()
    if culprit in own.parents or culprit.parent == own.parent or part in (culprit, *culprit.parents):
        return UserError(
            f"{path} cannot be written: {error.strerror} ({culprit}). Check the folder's rights and the disk."
        )
    return UserError(f"{path} cannot be made, because of {culprit}: {error.strerror}. Check the rights of that file.")


def _size(path: Path) -> int:
    """Returns the bytes of a file or a folder; 0 if there is none."""
    try:
        states = [entry.stat() for entry in (path, *path.rglob("*")) if is_file(entry)]
        return sum(min(state.st_size, 512 * state.st_blocks) for state in states)  # HDF5 makes files with holes
    except OSError:
        return 0


def check_disk(folders: Iterable[Path]) -> None:
    """Makes sure that folders that exist can be written, and that their disks are not full.

    Raises UserError, which names the folder. Snakemake itself would stop with a traceback.
    """
    folders = list(folders)
    for folder in folders:
        if is_dir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{folder.resolve()} cannot be written: its disk is read-only, or it belongs to somebody else. Change its permissions, or choose another folder with --directory."
            )
    if places := full(folders):
        raise UserError(describe_full(places[0]))


def temporary_folder() -> Path:
    """Returns the folder for temporary files. Raises UserError if none can be written, usually for a full disk."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise UserError(
            f"No folder for temporary files can be written ({error.strerror or error}). Free some space in /tmp, or set"
            " TMPDIR to another folder."
        ) from error


def temporary_folders() -> list[Path]:
    """Returns the folders that libraries may take for temporary files: some obey the environment. Raises: see `temporary_folder`."""
    named = (Path(os.environ[name]) for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name))
    return [temporary_folder(), *named]


def full(folders: Iterable[Path]) -> list[Path]:
    """Returns the folders whose disk is full, one per disk. Those of a disk that does not answer are not among them."""
    found: dict[int, Path] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            # /proc has no bytes.
            if is_dir(folder) and (disk := shutil.disk_usage(folder)).free < min(FULL, disk.total):
                found.setdefault(folder.stat().st_dev, folder.resolve())
    return [*found.values()]


def describe_full(folder: Path) -> str:
    """Returns the message about a full disk. The workflow shows it: a step cannot write it into a log on that disk."""
    return f"The disk of {folder} is full. Free some space, then start the same command again."


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Free bytes of memory. A limit of the process's control group (version 2) counts as memory."""
    import psutil  # which few commands need

    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (float((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return max(min(free, limit - used + float(cached)), 0.0)


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an error says that the memory of a GPU, or of the machine, does not suffice."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(word in str(error) for word in WORDS)


def out_of_memory(error: BaseException, weights: float = 0.0, kind: type[UserError] = UserError) -> UserError:
    """Makes the message about an error of `is_out_of_memory`: what is needed, what there is, and which settings help.

    `weights`: bytes of the model's weights; 0 if no model is loaded. `kind`: of the error.
    """
    reason = f" ({one_line(error)})" if str(error) else ""
    needed = f" The weights alone take {_gib(weights)}." if weights else ""
    torch = sys.modules.get("torch")
    if type(error).__name__ == "OutOfMemoryError" and torch is not None and torch.cuda.is_available():
        states = [torch.cuda.mem_get_info(gpu) for gpu in range(torch.cuda.device_count())]
        there = ", ".join(f"GPU {gpu} has {_gib(total)}, {_gib(free)} free" for gpu, (free, total) in enumerate(states))
    else:
        there = f"{_gib(free_memory())} of the machine's memory is free"
    return kind(
        f"The memory does not suffice{reason}.{needed} Now {there}. What helps: model.dtype bfloat16 (half the weights);"
        " fewer batches.tokens; model.max_memory (keeps weights on other GPUs, in the CPU's memory and on the"
        " disk); model.gpus (more GPUs for a job); model.device cpu; fewer jobs at the same time; more shards or layer_groups."
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def explain(error: BaseException) -> tuple[str, int]:
    """Returns what to say of an exception that reached the command line, and the exit code.

    A full disk, a full memory, a GPU that fails and what the system denies are the user's to mend. Everything else is a defect of ffkv: its traceback, the
    versions and the command are written to a file. The traceback holds code, no variables and no text of the corpus.
    """
    reason = one_line(error)
    if isinstance(error, UserError):
        return " ".join([str(error), *(f"({INSIDE}{package}.)" for package in noted(error))]), 2
    if lacks_space(error):
        place = Path(tempfile.gettempdir())
        return f"There is no space left on a disk ({reason}). Free some space, also in {place}, then start again.", 2
    if is_out_of_memory(error):
        return str(out_of_memory(error)), 2
    if type(error).__name__ == "AcceleratorError" or reason.startswith(("CUDA error", "CUDA driver error")):  # torch's
        return f"The GPU failed ({reason}). See `nvidia-smi`, then start again; `model.device: cpu` does without it.", 2
    if words := denied(error):
        return f"The system says: {words} ({reason}). Check rights, disks and `ulimit -a`, then start again.", 2
    try:
        place = write_defect(error)
        told = f"The traceback, the versions and the command are in {place}."
    except OSError:
        say("".join(traceback.format_exception(error)), error=True, name=False)
        told = "The traceback is above."
    if package := culprit(error):
        return (
            f"This is most likely a defect of the package {package}: {type(error).__name__}: {reason}. {told} Tell its developers."
            " Without this package and its settings, all else runs."
        ), EXIT_CODE
    return (
        f"This is a defect of ffkv, not of your files: {type(error).__name__}. {told} Please report it to the developers"
        " of ffkv with that text; it holds the names of your files, and no text of your corpus."
    ), EXIT_CODE


def write_defect(error: BaseException) -> Path:
    """Writes what the developers need into a new file of the temporary folder. Raises OSError if it cannot."""
    versions = sorted(f"{one.name} {one.version}" for one in distributions() if one.name)
    frames = "".join(traceback.format_tb(error.__traceback__))
    kinds = " <- ".join(type(each).__name__ for each in causes(error))
    lines = [
        f"ffkv {ffkv.__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {' '.join(sys.argv)}",
        "",
        "Traceback (most recent call last):",
        frames + kinds,  # not their messages, which can quote the corpus
        "",
        *versions,
    ]
    with tempfile.NamedTemporaryFile("w", prefix="ffkv-defect-", suffix=".txt", delete=False, errors="replace") as file:
        file.write("\n".join(lines) + "\n")
    return Path(file.name)
