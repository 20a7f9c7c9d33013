"""The traces that a person asked for, so that the page of a trace can lead back to them.

Prompts may be private. They lie in `annotations/<run>/traces/`, in files that only the person can read.
"""

from ffkv.apps.explorer.shelf import Held
from ffkv.base.errors import UserError
from ffkv.base.files.journal import Entry, append_shared, read_shared, shared_files
from ffkv.run.results.collections import identity, person

FOLDER = "traces"
SHOWN = 20


class Traced(Entry):
    """A trace that was asked for. Its identity is that of the model."""

    asked: dict[str, str]  # what its address asks


def remember(held: Held, asked: dict[str, str] | None) -> tuple[list[Traced], str]:
    """Keeps a trace unless it is the last one; None: keeps nothing. Returns the last traces, the latest first, each once,
    and why the history cannot be read or written; "" if it can.
    """
    folder = held.run.files.annotations / FOLDER
    found: list[Traced] = []
    problem = ""
    try:
        found = [entry for _, entry in read_shared(folder, Traced, writer=person())[0]]
        if asked is not None and (not found or found[-1].asked != asked):
            found.append(Traced(asked=asked, identity=identity(held.run.files)))
            append_shared(folder, person(), found[-1], 0o600)
    except UserError as error:
        problem = str(error)
    each_once: dict[tuple, Traced] = {}
    for one in reversed(found):
        each_once.setdefault(tuple(sorted(one.asked.items())), one)
    return [*each_once.values()][:SHOWN], problem


def clear(held: Held) -> None:
    """Deletes the person's history of traces of a run, also what other explorers kept. Raises UserError if it cannot."""
    for path in shared_files(held.run.files.annotations / FOLDER, person()):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{path} cannot be deleted: {error.strerror}. Check its rights.") from error
