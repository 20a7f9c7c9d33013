"""What annotators said, as tables of ffkv's own form: which patterns which key has, and which prefixes they cover."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from ffkv.apps.annotation.records import Record
from ffkv.apps.annotation.sheets import Origin, SecretKey
from ffkv.base.errors import UserError
from ffkv.run.annotation_tables import BY_PREFIX, PATTERNS

TESTS = "tests"
CHANGES = {"annotator": "str", "occasion": "int64", "sample": "str", "row": "int64", "other": "int64", "related": "str"}


class Ratings(NamedTuple):
    """What annotators said, but for items that they are not done with."""

    patterns: pd.DataFrame  # a row per pattern (`PATTERNS`). Patterns that are marked in too few prefixes are left out.
    by_prefix: pd.DataFrame  # a row per prefix of a judged key, with the category of the prefix (`BY_PREFIX`)
    changes: pd.DataFrame  # a row per judged change (`CHANGES`)


def category_of(families: Iterable[str]) -> str:
    """Returns the category of a prefix that has patterns of these families."""
    return " and ".join(family for family in ("shallow", "semantic") if family in families) or "none"


def tabulate(records: Iterable[Record], secrets: Mapping[str, SecretKey], minimum: int) -> Ratings:
    """Makes tables of records.

    If an annotator judged the same key several times, the first item counts as occasion 0, and the others as 1, 2, ...:
    an item that repeats another one, or one of a later sheet.

    Args:
        records: the latest record of each annotator and item, in any order.
        secrets: the secret keys of the sheets, by name.
        minimum: fewest prefixes of a pattern.
    Raises:
        UserError: a record is of an item that no sheet has, or marks a prefix that its item has not.
    """
    said = sorted((_with_origin(record, secrets) for record in records if record.done), key=_order)
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
            about = (number, pattern.kind, pattern.label, len(ranks), ranks)
            patterns.append((*place, *about))
        for prefix, rank in sorted(enumerate(origin.ranks), key=lambda each: each[1]):
            families = {pattern.kind for pattern in kept if prefix in pattern.prefixes}
            prefixes.append((*place, rank, category_of(families)))
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


def _order(said: tuple[Record, Origin]) -> tuple:
    record, origin = said
    return record.annotator, record.sheet, bool(origin.repeats), record.item


def of_tests(patterns: pd.DataFrame, by_prefix: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Puts what the statistical tests said into the form of `Ratings.patterns` and `Ratings.by_prefix`.

    Args:
        patterns: rows of `keys/patterns`.
        by_prefix: rows of `keys/by_prefix`.
    """
    own = {"annotator": TESTS, "occasion": 0, "sheet": ""}
    tested = patterns.assign(**own, ranks=patterns["ranks"].map(list))[PATTERNS.names]
    return tested, by_prefix.assign(**own)[BY_PREFIX.names]
