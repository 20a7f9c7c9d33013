"""The small tables of a run: the CSV files that figures draw."""

import contextlib
from pathlib import Path

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.settings import EMBEDDED, Settings
from ffkv.branches.registry import BRANCHES
from ffkv.run.results.expected import TABLES


def table_files(folder: Path, settings: Settings) -> dict[str, Path]:
    """Returns the CSV file of each table of a run, by the file's name without its ending.

    A table that only an earlier run with other settings needed is left out.
    """
    unused = {table.path for table in TABLES.values() if not table.applies(settings)}
    unused |= {table.path for branch in BRANCHES.values() if not branch.is_in(settings) for table in branch.tables}
    paths = sorted(folder.glob("*/*.csv"))
    return {path.stem: path for path in paths if path.relative_to(folder).as_posix() not in unused}


def read_table(path: Path) -> pd.DataFrame:
    """Reads a CSV file. Text of strangers stays text, also where it reads "nan" or "1".

    A column without any value becomes a column of NaN: a CSV file cannot say of which type it is.
    """
    described = TABLES.get(f"{path.parent.name}/{path.name}")
    texts = described.foreign if described else []
    frame = tables.read(path, texts=texts)
    empty = frame.columns[frame.isna().all()]
    return frame.assign(**{column: float("nan") for column in empty if column not in texts})


def read_benchmarks(folder: Path, settings: Settings) -> pd.DataFrame:
    """Reads how much time and memory each rule took, from the files that Snakemake wrote. See `RunFiles.benchmarks`.

    Files of earlier runs with more shards or layer groups are left out, and so is the report's own file.
    """
    unused = {"report.tsv"} if settings.model.checkpoint == EMBEDDED else {"report.tsv", "train.tsv"}
    found = []
    for path in sorted(folder.rglob("*.tsv")):
        name = path.relative_to(folder)
        parts = settings.shards if path.parent.name in ("triggers", "sampled_prefixes") else settings.layer_groups
        if int(path.stem) >= parts if path.stem.isdigit() else str(name) in unused:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError):  # a power cut left the file half-written
            measured = pd.read_csv(path, sep="\t").apply(pd.to_numeric, errors="coerce")
            found.append((name.with_suffix("").parts[0], measured["s"].sum(), measured["max_rss"].max()))
    jobs = pd.DataFrame(found, columns=["rule", "seconds", "memory"])
    return jobs.groupby("rule", sort=False, as_index=False).agg(
        jobs=("seconds", "size"), seconds=("seconds", "sum"), longest=("seconds", "max"), memory=("memory", "max")
    )


def unknown(word: str, name: object, valid: list[str]) -> UserError:
    """Returns the error for a name that does not exist, with all names that do."""
    return UserError(f"There is no {word} {str(name)!r}. Choose one of: {', '.join(valid)}.")
