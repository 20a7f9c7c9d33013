"""The settings of a finished run, the files that it has by them, the descriptions of its tables, and what an earlier ffkv did not write."""

import contextlib
import functools
import json
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ffkv.base.doors import brought_by, entries, load_all
from ffkv.base.errors import UserError
from ffkv.base.files.columns import WILD, Table
from ffkv.base.files.stored import Foreign, unreadable, verify_sum
from ffkv.base.lookup import exists, find, is_dir, parse_json, read_bytes
from ffkv.base.settings.messages import sentences
from ffkv.base.terminal import say
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


def read_settings(folder: Path) -> Settings:
    """Reads the settings of the run `results/<run>`. Those that its ffkv did not know have their defaults. A section that this ffkv
    does not know, or that another version of a package of others wrote, is left out, and told, if the run has a folder of its name:
    it is of a branch, which nothing else needs.

    Raises UserError: there are none, or they are damaged, or one is impossible, or this ffkv does not know it (`Foreign`).
    """
    path = folder / "settings.json"
    verify_sum(path)
    try:
        text = read_bytes(path)
        if not isinstance(read := parse_json(text), dict):
            raise ValueError("it is no mapping of settings")
        strange = {name: why for name in sorted(read) if is_dir(folder / name) and (why := _strange(name, read[name]))}
        for name, why in strange.items():
            _say_left_out(folder / name, why)
            del read[name]
        return Settings.of_file(json.dumps(read) if strange else text)
    except FileNotFoundError as error:
        runs: list[str] = []
        with contextlib.suppress(UserError, OSError):  # what may not be looked at gives no hint
            for each in find(folder, "*"):
                with contextlib.suppress(UserError, OSError):
                    runs += [str(each)] * exists(each / "settings.json")
        named = f"{folder} has these runs: {', '.join(runs[:10])}. Name one"
        which = named if runs else "Name the folder of a finished run, such as results/demo"
        raise UserError(f"{path} does not exist. {which}.") from error
    except ValidationError as error:
        problem = sentences(Settings, error)[0].rstrip(".")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    raise Foreign(
        f"{path} holds the settings of another version of ffkv: {problem}. Run `snakemake` again with the same settings"
        " file, which repeats what has changed, or read the run with the ffkv that wrote it."
    )


def _strange(name: str, section: Any) -> str:
    """Says why a section of settings cannot be read, and with it the branch of a package of others; "" if it can, or is of ffkv."""
    if name not in Settings.model_fields:
        return "its branch is of a package that is not installed or broken."
    package = brought_by("branches", name)
    try:
        if package:
            Settings.of_file(json.dumps({name: section}))
        return ""
    except ValidationError as error:
        return (
            f"another version than {package} of its package wrote its settings. {sentences(Settings, error)[0].rstrip('.')}. Run `snakemake`"
            " again with the same settings file, or install the version that made it."
        )


@functools.cache
def _say_left_out(folder: Path, why: str) -> None:
    say(f"{folder} is left out: {why}", error=True)


def expected_files(settings: Settings) -> list[str]:
    """Returns the files, and the folders written as one, that the steps of a run write: paths below its folder."""
    names = [*WHOLE, *(["checkpoint"] if settings.model.checkpoint == EMBEDDED else [])]
    # Shards of triggers are deleted when they are merged.
    names += [f"sampled_prefixes/{shard}.h5" for shard in range(settings.shards)]
    return names + [path for branch in BRANCHES.values() for path in branch.files(settings)]


def unmeasured(folder: Path, settings: Settings) -> dict[str, list[str]]:
    """Returns what an earlier ffkv, which made a run, did not measure: the columns that a table lacks, by its path below the folder.

    A table that is not there has no columns; nor has a branch, which stands there by its name, if it does not need to be asked for. Of a run whose settings have
    all sections of this ffkv, no table was left out: one that is not there is missing. Raises UserError if a table is damaged.
    """
    from ffkv.base.files import tables  # needs pandas, which rules do without

    own = Settings.model_fields.keys() - entries("branches").keys()  # a package of others may have come after the run
    applying = {name for name, branch in BRANCHES.items() if branch.applies is None or branch.applies(settings)}
    found: dict[str, list[str]] = {name: [] for name in BRANCHES if name in applying and not settings.knows(name)}
    for path in expected_files(settings):
        known, there = table_of(path), exists(folder / path)
        if known and known.since and not there and not all(map(settings.knows, own)):
            found[path] = []
        if known and there and (later := [column.name for column in known.columns if column.since]):
            columns = tables.read_names(folder / path)
            if lacking := [name for name in later if name not in columns]:
                found[path] = lacking
    return found
