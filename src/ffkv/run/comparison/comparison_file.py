"""The folder of a comparison: what was measured, as tables."""

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.checksums import verify_sum
from ffkv.base.files.fault import unreadable
from ffkv.base.settings import Comparison

FACTS = "comparison.json"
# Columns that are text in every row, also where a text reads "nan" or "1".
TEXTS = ("top_token", "reference_token", "run", "reference", "baseline", "label", "paired_by", "kind", "checkpoint")
FRAMES = {"runs": ".csv", "curves": ".csv", "differences": ".csv", "by_layer": ".csv", "by_memory": ".parquet"}
FRAMES |= {"matches": ".csv"}


@dataclass(frozen=True)
class Measured:
    """A comparison, measured.

    Attributes:
        name: its name.
        settings: its settings.
        memories: how memories are found in other runs: "by_number", "by_correlation" or "no".
        runs: what is known of each run, one row per run: run, label, checkpoint, architecture, layers, memories,
            corpus, model_hash, corpus_hash.
        curves: the curves of all figures, see `ffkv.run.comparison.curves`.
        differences: the differences of each run from the first one, see `ffkv.run.comparison.curves`.
        by_memory: see `ffkv.run.comparison.same_memories.follow_memories`; empty unless memories are found by number.
        by_layer: likewise.
        matches: see `ffkv.run.comparison.matching.match_memories`; empty unless they are found by correlation.
    """

    name: str
    settings: Comparison
    memories: str
    runs: pd.DataFrame
    curves: pd.DataFrame
    differences: pd.DataFrame
    by_memory: pd.DataFrame
    by_layer: pd.DataFrame
    matches: pd.DataFrame

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
        for name, ending in FRAMES.items():
            if len(frame := getattr(measured, name)):
                write = frame.to_parquet if ending == ".parquet" else frame.to_csv
                write(temporary / f"{name}{ending}", index=False)


def read_comparison(folder: Path | str) -> Measured:
    """Reads what `write_comparison` wrote. Raises UserError if the folder holds none, or a file in it is damaged."""
    folder = Path(folder)
    verify_sum(folder)
    try:
        facts = json.loads((folder / FACTS).read_text())
        settings = Comparison.model_validate(facts["settings"])
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no comparison: {folder / FACTS} does not exist.") from error
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(folder / FACTS, error) from error
    paths = {name: folder / f"{name}{ending}" for name, ending in FRAMES.items()}
    frames = {name: tables.read(path, texts=TEXTS) if path.exists() else pd.DataFrame() for name, path in paths.items()}
    return Measured(name=facts["name"], settings=settings, memories=facts["memories"], **frames)
