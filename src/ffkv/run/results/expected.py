"""The files that a finished run has, by its settings, the descriptions of its tables, and what an earlier ffkv did not write."""

import functools
import re
from pathlib import Path

from ffkv.base.doors import load_all
from ffkv.base.files.columns import WILD, Table
from ffkv.base.lookup import exists
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import EMBEDDED, Settings
from ffkv.run import annotation_tables

WHOLE = (
    *("settings.json", "model", "values.h5"),
    *("corpus/train.h5", "corpus/validation.h5", "triggers.h5", "sampled_prefixes.h5"),
)
EARLIER = "an earlier ffkv made the run, which did not measure it"
# All tables of a run, by their paths; those by group of layers with {group}.
TABLES: dict[str, Table] = {
    table.path: table
    for tables in (
        *(step.writes for rules in load_all("rules")[0].values() for step in rules.values()),
        *(branch.tables for branch in BRANCHES.values()),
        annotation_tables.TABLES,
    )
    for table in tables
    if isinstance(table, Table)
}


@functools.cache
def table_of(name: str) -> Table | None:
    """Returns the description of a table, by its path below the folder of the run, such as `values/by_memory/0.parquet`."""
    patterns = ((WILD.sub("[^/]+", path.replace(".", r"\.")), table) for path, table in TABLES.items())
    return next((table for pattern, table in patterns if re.fullmatch(pattern, name)), None)


def expected_files(settings: Settings) -> list[str]:
    """Returns the files, and the folders written as one, that the steps of a run write: paths below its folder."""
    names = [*WHOLE, *(["checkpoint"] if settings.model.checkpoint == EMBEDDED else [])]
    # Shards of triggers are deleted when they are merged.
    names += [f"sampled_prefixes/{shard}.h5" for shard in range(settings.shards)]
    return names + [path for branch in BRANCHES.values() for path in branch.files(settings)]


def unmeasured(folder: Path, settings: Settings) -> dict[str, list[str]]:
    """Returns what an earlier ffkv, which made a run, did not measure: the columns that a table lacks, by its path below the folder.

    A table that is not there has no columns; nor has a branch, which stands there by its name, if it does not need to be asked for. There is nothing of runs of
    this ffkv. Raises UserError if a table is damaged.
    """
    from ffkv.base.files import tables  # needs pandas, which rules do without

    applying = {name for name, branch in BRANCHES.items() if branch.applies is None or branch.applies(settings)}
    found: dict[str, list[str]] = {name: [] for name in BRANCHES if name in applying and not settings.knows(name)}
    for path in expected_files(settings):
        known, there = table_of(path), exists(folder / path)
        if known and known.since and not there:
            found[path] = []
        if known and there and (later := [column.name for column in known.columns if column.since]):
            columns = tables.read_names(folder / path)
            if lacking := [name for name in later if name not in columns]:
                found[path] = lacking
    return found
