"""The files that a finished run has, by its settings, and the descriptions of its tables."""

from ffkv.base.files.columns import Table
from ffkv.base.settings import EMBEDDED, Settings
from ffkv.branches.registry import BRANCHES
from ffkv.corpus.embedded.tables import TRAINING
from ffkv.run import annotation_tables

WHOLE = (
    "settings.json",
    "model",
    "values.h5",
    "corpus/train.h5",
    "corpus/validation.h5",
    "triggers.h5",
    "sampled_prefixes.h5",
)
# All tables of a run, by their paths; those by group of layers with {group}.
TABLES: dict[str, Table] = {
    table.path: table
    for tables in ([TRAINING], *(branch.tables for branch in BRANCHES.values()), annotation_tables.TABLES)
    for table in tables
}


def expected_files(settings: Settings) -> list[str]:
    """Returns the files, and the folders written as one, that the steps of a run write: paths below its folder."""
    names = [*WHOLE, *(["checkpoint"] if settings.model.checkpoint == EMBEDDED else [])]
    # Shards of triggers are deleted when they are merged.
    names += [f"sampled_prefixes/{shard}.h5" for shard in range(settings.shards)]
    return names + [path for branch in BRANCHES.values() for path in branch.files(settings)]
