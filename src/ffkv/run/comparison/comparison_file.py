"""The folder of a comparison: what was measured, as tables."""

import json
from dataclasses import dataclass
from pathlib import Path, PurePath

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.bounded import read_json
from ffkv.base.files.checksums import verify_sum
from ffkv.base.files.fault import unreadable
from ffkv.base.lookup import exists
from ffkv.base.settings import Comparison
from ffkv.run.comparison.tables import TABLES

FACTS = "comparison.json"
FILES = {table.name: PurePath(table.path).name for table in TABLES}


@dataclass(frozen=True)
class Measured:
    """A comparison, measured: its tables (`ffkv.run.comparison.tables`), which may be empty."""

    name: str
    settings: Comparison
    memories: str  # how memories are found in other runs: "by_number", "by_correlation" or "no"
    runs: pd.DataFrame
    curves: pd.DataFrame
    differences: pd.DataFrame
    by_memory: pd.DataFrame
    by_layer: pd.DataFrame
    matches: pd.DataFrame
    behaviours: pd.DataFrame
    behaviour_memories: pd.DataFrame
    behaviour_overlaps: pd.DataFrame

    @property
    def same_depth(self) -> bool:
        """Whether all models have the same number of layers."""
        return self.runs["layers"].nunique() == 1


def write_comparison(measured: Measured, folder: Path | str) -> None:
    """Writes a comparison into a new folder: `comparison.json` and its tables. Raises UserError: see `files.atomic`."""
    facts = {"name": measured.name, "memories": measured.memories, "settings": measured.settings.model_dump()}
    with atomic(folder) as temporary:
        temporary.mkdir()
        (temporary / FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        for name, file in FILES.items():
            if len(frame := getattr(measured, name)):
                write = frame.to_parquet if file.endswith(".parquet") else frame.to_csv
                with (temporary / file).open("wb") as opened:
                    write(opened, index=False)


def read_comparison(folder: Path | str) -> Measured:
    """Reads what `write_comparison` wrote.

    Raises UserError if the folder holds none, a file in it is damaged, or another version of ffkv wrote it.
    """
    folder = Path(folder)
    verify_sum(folder)
    try:
        facts = read_json(folder / FACTS)
        settings = Comparison.model_validate(facts["settings"])
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no comparison: {folder / FACTS} does not exist.") from error
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(folder / FACTS, error) from error
    frames = {}
    for table in TABLES:
        path, texts = folder / FILES[table.name], [column.name for column in table.columns if column.dtype == "str"]
        frames[table.name] = tables.read(path, texts) if exists(path) else pd.DataFrame(columns=table.names)
        if lacking := [name for name in table.names if name not in frames[table.name]]:
            raise UserError(
                f"{path} has no column {lacking[0]}: another version of ffkv wrote it. Measure the comparison again."
            )
        numbers = {column.name: column.dtype for column in table.columns if column.dtype.startswith("float")}
        frames[table.name] = frames[table.name].astype(numbers)  # a column without a number reads as one of texts
    return Measured(name=facts["name"], settings=settings, memories=facts["memories"], **frames)
