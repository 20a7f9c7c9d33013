"""Named lists of memories, and notes on memories: what people keep of a run, beside its annotations.

Each change is an event: one line in `annotations/<run>/collections/`, where every person, host and process has a
journal. Lists belong to the run and not to a person. A star is membership in the list `starred`. Where a person names
memories, `@starred` stands for those of the list, and `@behaviour:agreement` for the candidates of a behaviour.
"""

import getpass
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, ValidationError, model_validator

from ffkv.base.errors import UserError
from ffkv.base.files.journal import Entry, append_shared, problem_of, read_shared
from ffkv.model.anatomy import MemoryPlaces
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import check_memory, memory_name, parse_memory_name, parse_memory_range
from ffkv.run.results.run_files import RunFiles, unknown

FOLDER = "collections"
STARRED = "starred"
MOST = 10_000  # memories of an event
LONGEST_NOTE = 5000  # characters
BEHAVIOUR = "behaviour:"  # in front of the name of a behaviour. The name of a list has no colon


def list_name(name: str) -> str:
    """Returns the name of a list in the spelling that is kept. Raises ValueError if it cannot be one."""
    name = unicodedata.normalize("NFC", name)
    if not 0 < len(name) <= 60 or not name.isprintable() or set(name) & set(" ,:@"):
        raise ValueError("the name of a list must have 1 to 60 characters, none of them a blank, a comma, ':' or '@'")
    return name


def _note(text: str) -> str:
    lines = ("".join(one if one.isprintable() else " " for one in line) for line in text.splitlines())
    return "\n".join(line.rstrip() for line in lines).strip()


class Event(Entry):
    """A change of a list, or a note. Its identity is that of the model: the corpus may be another one."""

    person: Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,200}$")]
    action: Literal["add", "remove", "rename", "note"]
    collection: Annotated[str, AfterValidator(list_name)] | None = None  # the list; None of a note
    to: Annotated[str, AfterValidator(list_name)] | None = None  # the new name; only of a rename
    memories: Annotated[tuple[Annotated[str, Field(pattern=r"^L\d{1,9}\.\d{1,9}$")], ...], Field(max_length=MOST)] = ()
    # of a note: what the person says of the memories now; "" takes the note back
    text: Annotated[str, Field(max_length=LONGEST_NOTE), AfterValidator(_note)] = ""

    @model_validator(mode="after")
    def _complete(self) -> "Event":
        if (self.action == "note") == bool(self.collection) or (self.action == "rename") != bool(self.to):
            raise ValueError("a note has no list, all else has one, and a rename has two")
        return self


class Kept(NamedTuple):
    """What people keep of a run."""

    lists: dict[str, dict[str, Event]]  # name of a list: its memories, in order, each with the event that added it
    notes: dict[str, dict[str, Event]]  # memory: by each person the latest note
    torn: list[str]  # a sentence per line that is not whole and was left out

    def of(self, memory: str) -> list[str]:
        """Returns the lists that a memory is in."""
        return [name for name, own in self.lists.items() if memory in own]


def replay(events: Iterable[Event]) -> Kept:
    """Returns what events leave, which come in the order of their times. A list without memories is none."""
    lists: dict[str, dict[str, Event]] = {}
    notes: dict[str, dict[str, Event]] = {}
    for event in events:
        name = event.collection or ""
        if event.action == "rename":
            lists[event.to or ""] = lists.get(event.to or "", {}) | lists.pop(name, {})
        for memory in event.memories:
            if event.action == "add":
                lists.setdefault(name, {}).setdefault(memory, event)
            elif event.action == "remove":
                lists.get(name, {}).pop(memory, None)
            elif event.action == "note":
                notes.setdefault(memory, {})[event.person] = event
    said = {memory: {who: note for who, note in by.items() if note.text} for memory, by in notes.items()}
    lists, notes = ({name: own for name, own in each.items() if own} for each in (lists, said))
    return Kept(lists, notes, [])


def read_kept(files: RunFiles) -> Kept:
    """Reads what people keep of a run.

    Raises UserError if a file cannot be read, an event has another form or names a memory that the model does not have,
    or it is about another model.
    """
    entries, torn = read_shared(files.annotations / FOLDER, Event, identity(files))
    sizes = [layer.memories for layer in files.anatomy.layers]
    for place, event in entries:
        try:
            for memory in event.memories:
                check_memory(*parse_memory_name(memory), sizes)
        except UserError as error:
            raise UserError(f"{place}: {error} Correct the line, or move the file away.") from error
    return replay(event for _, event in entries)._replace(torn=torn)


def identity(files: RunFiles) -> dict[str, str]:
    """Returns the hash of the model, which the events of a run keep."""
    return {"model_hash": files.anatomy.model_hash}


def append_event(files: RunFiles, action: str, memories: Sequence[str] = (), **about: Any) -> None:
    """Appends an event of the person whose process this is; several if the memories are many. `about`: other fields.

    Raises UserError if a name or a text cannot be kept, the folder cannot be written, or the disk is full.
    """
    about = {"person": person(), "action": action, "identity": identity(files)} | about
    for start in range(0, max(1, len(memories)), MOST):
        try:
            event = Event.model_validate(about | {"memories": memories[start : start + MOST]})
        except ValidationError as error:
            where, problem = problem_of(error)
            raise UserError(f"This cannot be kept ({where}): {problem}.") from error
        append_shared(files.annotations / FOLDER, event.person, event)


def person() -> str:
    """Returns the name of the account, or its number if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def members(files: RunFiles, name: str) -> dict[str, Event]:
    """Returns the memories of a list, each with the event that added it. Raises UserError if there is no such list."""
    lists = read_kept(files).lists
    name = unicodedata.normalize("NFC", name)
    if name not in lists:
        none = f"Nobody has made a list of memories of {files.folder} yet: `ffkv collect` makes one."
        raise unknown(f"list in {files.annotations / FOLDER} called", name, sorted(lists)) if lists else UserError(none)
    return lists[name]


def expand(files: RunFiles, names: Sequence[str]) -> list[str]:
    """Returns names of memories, as a person gives them, with those of a list in place of `@list`, and the candidates of a
    behaviour in place of `@behaviour:agreement`.

    A name may hold several, with commas between. Raises UserError if there is no such list or behaviour.
    """
    parts = [part.strip() for name in names for part in name.split(",")]
    return [name for part in parts for name in (_named(files, part[1:]) if part.startswith("@") else [part])]


def _named(files: RunFiles, name: str) -> Iterable[str]:
    if not name.startswith(BEHAVIOUR):
        return members(files, name)
    found = indexes.candidates(files, name.removeprefix(BEHAVIOUR))
    return map(memory_name, found["layer"].tolist(), found["memory"].tolist())


def choose_memories(files: RunFiles, names: Sequence[str]) -> MemoryPlaces:
    """Layers and numbers of the memories that a person names, each memory once, in order. No names: all memories.

    A name is "L3.17" (or "3.17", "3/17", "L3D17"), "L3.17-40" from 17 to 40, "L3", all of a layer, "@starred", those of a
    list, or "@behaviour:agreement", the candidates of a behaviour. It can hold several, with commas between them. Raises
    UserError if it has another form, or there is no such memory, layer, list or behaviour.
    """
    sizes = [layer.memories for layer in files.anatomy.layers]
    chosen = [np.full(size, not len(names)) for size in sizes]
    for part in expand(files, names):
        layer, first, last = parse_memory_range(part, sizes)
        chosen[layer][first : last + 1] = True
    return files.anatomy.places_of(np.flatnonzero(np.concatenate(chosen)))


def collected(files: RunFiles, name: str) -> pd.DataFrame:
    """Finds the memories of a list: row (in flat arrays), detects, note, added_by, added of each; see `Run.memories`.

    Raises UserError if there is no such list, or it cannot be read.
    """
    own, notes = members(files, name.removeprefix("@")), read_kept(files).notes
    places = (parse_memory_name(memory) for memory in own)
    found = pd.DataFrame({"row": [files.anatomy.layer_offset[layer] + memory for layer, memory in places]})
    detects = indexes.trigger_patterns(files).drop_duplicates("row").set_index("row")["label"]
    return found.assign(
        detects=found["row"].map(detects).fillna("").astype(str),
        note=[told(notes.get(memory, {})) for memory in own],
        added_by=[event.person for event in own.values()],
        added=[event.time for event in own.values()],
    )


def told(notes: Mapping[str, Event]) -> str:
    """Returns the notes on a memory in one text: "anna: fires on dates; ben: no"."""
    return "; ".join(f"{who}: {note.text}" for who, note in sorted(notes.items()))
