"""Lists and notes from Python: what is kept of a run, and how more is kept."""

from collections.abc import Iterable

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.terminal import say
from ffkv.run.results.collections import append_event, choose_memories, members, read_kept
from ffkv.run.results.memory_columns import with_columns
from ffkv.run.results.memory_name import as_names, memory_name
from ffkv.run.results.run import Run, check_run


@with_columns
def collections(run: Run) -> pd.DataFrame:
    """Returns the named lists of memories that people keep of a run, and their notes on memories.

    A line of a journal that is not whole is left out, and told.

    Args:
        run: a finished run.
    Returns:
        One row per memory of a list, the lists by their names; then one row per note.
    Raises:
        UserError: a journal cannot be read, or it is about another model.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> ffkv.collect(run, "dates", ["L1.3", "L1.17"])
        >>> table = ffkv.collections(run)
        >>> table.query("collection == 'dates'")["memory"].tolist()
        ['L1.3', 'L1.17']
    """
    check_run(run)
    kept = read_kept(run.files)
    for line in kept.torn:
        say(line, error=True)
    rows = [
        (name, memory, "", event.person, event.time)
        for name, own in sorted(kept.lists.items())
        for memory, event in own.items()
    ]
    notes = ((memory, event) for memory, by_person in kept.notes.items() for event in by_person.values())
    rows += [("", memory, event.text, event.person, event.time) for memory, event in notes]
    return pd.DataFrame(rows, columns=["collection", "memory", "note", "person", "time"])


def collect(run: Run, name: str, memories: str | Iterable[str], *, remove: bool = False) -> None:
    """Puts memories into a named list of a run, or takes them out. A list without memories is none.

    The list is kept in `annotations/<run>/collections/`, beside the run. `@name` then stands for its memories wherever
    memories are named, as in `ffkv.coefficients(run, texts, "@name")`.

    Args:
        run: a finished run.
        name: name of the list, at most 60 characters without blanks, commas, ":" and "@". A star is the list "starred".
        memories: their names, as in `coefficients`.
        remove: whether they are taken out. Those that are not in the list stay out.
    Raises:
        UserError: the name cannot be one; no such memory, or no such list to take it out of; or the folder cannot be written.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> ffkv.collect(run, "starred", "L1.17")
        >>> run.memories(collection="starred")["name"].tolist()
        ['L1.17']
        >>> ffkv.collect(run, "starred", "@starred", remove=True)
    """
    check_run(run)
    if memories is None:
        raise UserError("memories is None. Write one name or more, such as 'L3.17' or ['L3.17', 'L4'].")
    places = choose_memories(run.files, as_names(memories))
    names = [memory_name(layer, memory) for layer, memory in zip(places.layer.tolist(), places.memory.tolist())]
    if remove:
        own = members(run.files, name)
        names = [each for each in names if each in own]
    if names:
        append_event(run.files, "remove" if remove else "add", collection=name, memories=names)


def note(run: Run, memory: str, text: str) -> None:
    """Writes a note on a memory, in place of your note before. "" takes it back.

    Args:
        run: a finished run.
        memory: name of the memory, as in `Run.memory`.
        text: what you say of it, at most 5,000 characters.
    Raises:
        UserError: there is no such memory, the text is too long, or the folder cannot be written.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> ffkv.note(run, "L1.17", "fires behind numbers")
        >>> ffkv.collections(run)["note"].iloc[-1]
        'fires behind numbers'
    """
    check_run(run)
    append_event(run.files, "note", memories=[run.memory(memory).name], text=text)
