"""What people, machines and tests said, as tables of ffkv's own form."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ffkv.apps.annotation.records import Record
from ffkv.apps.annotation.sheets import Origin, SecretKey
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.bounded import read_json
from ffkv.base.files.provenance import check_identities
from ffkv.base.lookup import find
from ffkv.run.annotation_tables import BY_PREFIX, MACHINE_FILES, PATTERNS

TESTS = "tests"
# `machine/<model>/settings.json` in `annotations/<run>`; tables beside it.
FOLDER, SETTINGS = "machine", "settings.json"
CHANGES = {"annotator": "str", "occasion": "int64", "sample": "str", "row": "int64", "other": "int64", "related": "str"}


class Ratings(NamedTuple):
    """What annotators said, but for items that they are not done with."""

    patterns: pd.DataFrame  # a row per pattern (`PATTERNS`). Patterns that are marked in too few prefixes are left out.
    by_prefix: pd.DataFrame  # a row per prefix of a judged key, with the category of the prefix (`BY_PREFIX`)
    changes: pd.DataFrame  # a row per judged change (`CHANGES`)


def tabulate(records: Iterable[Record], secrets: Mapping[str, SecretKey], minimum: int) -> Ratings:
    """Makes tables of records.

    If an annotator judged the same key several times, the first item counts as occasion 0, and the others as 1, 2, ...:
    an item that repeats another one, or one of a later sheet.

    `records`: the latest of each annotator and item; `secrets`: the secret keys of the sheets, by name; `minimum`:
    fewest prefixes of a pattern. Raises UserError if a record is of an item that no sheet has, or marks a prefix that
    its item has not.
    """
    said = [_with_origin(record, secrets) for record in records if record.done]
    said.sort(key=lambda each: (each[0].annotator, each[0].sheet, bool(each[1].repeats), each[0].item))
    occasions: dict[tuple, int] = {}
    patterns, prefixes, changes = [], [], []
    for record, origin in said:
        of_sheet = record.sheet if origin.sample == "random" else ""  # each sheet has controls of its own
        what = (record.annotator, of_sheet, origin.layer, origin.memory, origin.row, origin.other)
        occasion = occasions[what] = occasions.get(what, -1) + 1
        if record.kind == "change":
            changes.append((record.annotator, occasion, origin.sample, origin.row, origin.other, record.related))
            continue
        kept = [pattern for pattern in record.patterns if len(pattern.prefixes) >= minimum]
        place = (record.annotator, occasion, origin.sample, record.sheet, origin.layer, origin.memory)
        for number, pattern in enumerate(kept):
            ranks = sorted(origin.ranks[prefix] for prefix in pattern.prefixes)
            patterns.append((*place, number, pattern.kind, pattern.label, len(ranks), ranks))
        for prefix, rank in sorted(enumerate(origin.ranks), key=lambda each: each[1]):
            families = {pattern.kind for pattern in kept if prefix in pattern.prefixes}
            category = " and ".join(family for family in ("shallow", "semantic") if family in families)
            prefixes.append((*place, rank, category or "none"))
    judged = pd.DataFrame(changes, columns=[*CHANGES]).astype(CHANGES)
    return Ratings(PATTERNS.frame(patterns), BY_PREFIX.frame(prefixes), judged)


def _with_origin(record: Record, secrets: Mapping[str, SecretKey]) -> tuple[Record, Origin]:
    what = f"{record.annotator} judged the item {record.item} of the sheet {record.sheet}"
    if record.sheet not in secrets or record.item not in secrets[record.sheet].origins:
        raise UserError(f"{what}, and no secret key has it. Put the sheet's file back into the folder secret/.")
    origin = secrets[record.sheet].origins[record.item]
    if (record.kind == "change") != (origin.row >= 0):
        raise UserError(f"{what} as a {record.kind}, which it is not. Correct the record, or move its file away.")
    if any(prefix >= len(origin.ranks) for pattern in record.patterns for prefix in pattern.prefixes):
        raise UserError(
            f"{what}, and marked a prefix that it does not have: it has {len(origin.ranks)}. Correct the record, or"
            " move its file away."
        )
    return record, origin


def with_tests(said: Ratings, patterns: pd.DataFrame, by_prefix: pd.DataFrame) -> Ratings:
    """Adds rows of `keys/patterns` and `keys/by_prefix`: what the statistical tests found, as one more annotator."""
    own = {"annotator": TESTS, "occasion": 0, "sheet": ""}
    patterns = patterns.assign(**own, ranks=patterns["ranks"].map(list))[PATTERNS.names]
    both = zip(said, (patterns, by_prefix.assign(**own)[BY_PREFIX.names]))
    patterns, by_prefix = (pd.concat(parts, ignore_index=True) for parts in both)
    return Ratings(patterns, by_prefix, said.changes)


def read_machines(folder: Path, belongs_to: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Reads the labels and scores of all machines in `annotations/<run>`: tables by their names, sorted by machine.

    They have no rows if no machine explained memories. Raises UserError if a file is damaged or missing, or belongs to
    another model, tokenizer or corpus than the run.
    """
    places = []
    for path in find(folder / FOLDER, f"*/{SETTINGS}"):
        try:
            about = read_json(path)
            places.append((str(about["model"]), path.parent))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read. Run `ffkv annotate machine` again with --replay.") from error
        check_identities(path, about, belongs_to)
    found = {}
    for file, described in MACHINE_FILES.items():
        rows: list[list[Any]] = []
        for model, place in sorted(places):
            table = tables.read(place / file, texts=[*described.foreign, "label"])
            rows += table.assign(annotator=f"machine:{model}")[described.names].to_numpy(object).tolist()
        found[described.name] = described.frame(rows)
    return found
