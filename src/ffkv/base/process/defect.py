"""The last handler: an exception that nobody foresaw becomes one sentence, and a file for those who mend it."""

import platform
import sys
import tempfile
import traceback
from importlib.metadata import distributions
from pathlib import Path

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files.fault import causes, denied, lacks_space
from ffkv.base.system.memory import is_out_of_memory, out_of_memory

EXIT_CODE = 70  # "internal software error" in sysexits.h


def explain(error: BaseException) -> tuple[str, int]:
    """Returns what to say of an exception that reached the command line, and the exit code.

    A full disk, a full memory and what the system denies are the user's to mend. Everything else is a defect of ffkv: its traceback, the
    versions and the command are written to a file. The traceback holds code, no variables and no text of the corpus.
    """
    reason = " ".join(str(error).split())[:300]
    if isinstance(error, UserError):
        return str(error), 2
    if lacks_space(error):
        place = Path(tempfile.gettempdir())
        return f"There is no space left on a disk ({reason}). Free some space, also in {place}, then start again.", 2
    if is_out_of_memory(error):
        return str(out_of_memory(error)), 2
    if words := denied(error):
        return f"The system says: {words} ({reason}). Check rights, disks and `ulimit -a`, then start again.", 2
    try:
        place = write_defect(error)
        told = f"The traceback, the versions and the command are in {place}."
    except OSError:
        traceback.print_exception(error)
        told = "The traceback is above."
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
