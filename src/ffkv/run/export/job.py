"""What every format is given, and what it gives back."""

import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.base.lookup import is_dir
from ffkv.base.streams import Purpose, random_stream
from ffkv.run.export.records import Record
from ffkv.run.export.selection import Selection
from ffkv.run.export.store import Store
from ffkv.run.results.run import Run


def definitions(package: str, of: str, **values: Any) -> dict[str, str]:
    """Returns what the numbers of a format are, by their names.

    `package`: whose `definitions.toml` says it. `of`: the table in this file. `values`: what stands in braces there.
    """
    texts = tomllib.loads((files(package) / "definitions.toml").read_text(encoding="utf-8"))[of]
    return {name: text.format(**values) for name, text in texts.items()}


@dataclass(frozen=True)
class Job:
    """An export."""

    run: Run
    store: Store  # the coefficients of its memories on their sentences
    model_id: str  # the model's name in the other tool
    set_name: str  # the name of this set of memories in the other tool

    @property
    def selection(self) -> Selection:
        """The memories and their sentences."""
        return self.store.selection

    def random(self, record: Record) -> np.random.Generator:
        """Draws the sentences of a memory."""
        return random_stream(self.run.settings.seed, Purpose.EXPORTED_SAMPLE, record.layer, record.memory)


@dataclass(frozen=True)
class Unit:
    """A file or a folder that is written as a whole."""

    path: str  # its path below the output folder
    places: range  # places of the memories that it is about
    write: Callable[[Path, Iterable[Record]], None]  # writes it at a path, from the records of these memories


@dataclass(frozen=True)
class Format:
    """A format of another tool."""

    # sentences of trigger examples of each side that are shown of a memory, if nobody asks for another number
    examples: int
    sentences: int  # random sentences, likewise
    units: Callable[[Job], list[Unit]]  # the files of an export
    definitions: dict[str, str]  # what the numbers of this format are: the sidecar file says it
    logits: bool = False  # whether it shows logits of values
    dense: bool = False  # whether it needs every coefficient on every sentence
    finish: Callable[[Job, Path], None] | None = None  # writes what is about the whole export; None if nothing is
    left_out: bool = False  # whether the format cannot hold memories without a positive trigger example


def folder_unit(
    path: str,
    places: range,
    content: Callable[[Record], Any],
    name: Callable[[Record], int] = lambda record: record.memory,
) -> Unit:
    """Makes a folder with a JSON file per memory, `<name>.json`; `content` is what the file holds, None if there is none."""

    def write(folder: Path, records: Iterable[Record]) -> None:
        folder.mkdir()
        for record in records:
            if (made := content(record)) is not None:
                write_json(folder / f"{name(record)}.json", made)

    return Unit(path, places, write)


def write_json(path: Path, content: Any) -> None:
    """Writes JSON as UTF-8. A number that JSON cannot hold is a defect: see `records.numbers`."""
    path.write_text(json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")), encoding="utf-8")


def public_name(run: Run) -> str:
    """Returns the checkpoint's name; of a folder only the last part, so that no path of this machine is published."""
    checkpoint = run.anatomy.checkpoint
    return Path(checkpoint).name if is_dir(checkpoint) or Path(checkpoint).is_absolute() else checkpoint
