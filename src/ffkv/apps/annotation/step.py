"""Makes sheets, takes what people wrote into them, and compares annotators."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ffkv.apps.annotation import summaries
from ffkv.apps.annotation.csv_sheets import read_csv, write_csv
from ffkv.apps.annotation.draw import draw_changes, draw_keys
from ffkv.apps.annotation.ratings import read_machines, tabulate, with_tests
from ffkv.apps.annotation.records import Record, append_record, identity_of, read_records
from ffkv.apps.annotation.settings import Sheets
from ffkv.apps.annotation.sheets import Sheet, is_begun, read_secret, read_sheet, write_sheet
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.lookup import exists
from ffkv.base.terminal import say
from ffkv.run.results.run import Run

DRAWN = {"keys": draw_keys, "changes": draw_changes}


def make_sheets(run: Run, folder: Path | str, design: Sheets) -> list[Path]:
    """Makes a sheet of keys and one of changes of the last layer, and a CSV file of each for every person.

    The same call goes on after an interruption. It leaves the CSV files of its sheets as they are: a person may have begun.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
        design: how many keys, changes and controls, for whom.
    Returns:
        The files of the sheets, then the CSV files.
    Raises:
        UserError: another sheet of this name exists; neither keys nor changes are asked for; the run has none to judge.
    Examples:
        >>> design = ffkv.Sheets(annotators=["anna"], per_layer=1, changes=1)
        >>> paths = ffkv.make_sheets(ffkv.open("results/tiny"), "annotations/tiny", design)
        >>> [path.name for path in paths if path.suffix == ".csv"]
        ['keys.anna.csv', 'changes.anna.csv']
    """
    folder = Path(folder)
    wanted = {"keys": design.per_layer, "changes": design.changes}
    prefix = f"{design.name}-" if design.name else ""
    drawn = [draw(run, f"{prefix}{kind}", design) for kind, draw in DRAWN.items() if wanted[kind]]
    if not drawn:
        raise UserError("There is nothing to judge: give --per-layer, --changes, or both.")
    begun = [is_begun(folder, sheet) for sheet, _ in drawn]
    paths = [write_sheet(folder, *both) for both in drawn]
    for (sheet, _), was_begun in zip(drawn, begun):
        for annotator in sheet.orders:
            path = folder / "csv" / f"{sheet.name}.{annotator}.csv"
            paths.append(path if was_begun and exists(path) else write_person(folder, sheet, annotator, path))
    return paths


def write_person(folder: Path, sheet: Sheet, annotator: str, path: Path) -> Path:
    """Writes a person's items as a CSV file, see `write_csv`, with what the person has said so far. Returns its path."""
    write_csv(path, sheet, annotator, latest_of_person(folder, sheet, annotator))
    return path


def latest_of_person(folder: Path, sheet: Sheet, annotator: str) -> dict[str, Record]:
    """Returns the latest record of each item of a sheet that a person said something about."""
    return _latest(folder, sheet, f"person:{annotator}")


def _latest(folder: Path, sheet: Sheet, annotator: str) -> dict[str, Record]:
    records = read_records(folder, sheet.identity, annotator).latest
    return {record.item: record for record in records if record.sheet == sheet.name}


def append_new(folder: Path, sheet: Sheet, annotator: str, said: Iterable[Record]) -> int:
    """Appends the records that say something else than the annotator's latest ones. Returns their number."""
    before = _latest(folder, sheet, annotator)
    new = [record for record in said if not record.repeats(before.get(record.item))]
    for record in new:
        append_record(folder, record)
    return len(new)


def import_person(run: Run, folder: Path, name: str, annotator: str, path: Path) -> tuple[int, int, int]:
    """Takes over what a person wrote into a CSV file. What was said before with the same words is not said again.

    Returns the number of items with something new, of items of the file that are done, and of items of the sheet.
    Raises UserError: see `read_csv`; nothing is taken over then.
    """
    sheet = read_sheet(folder, name, identity_of(run.files.identity("train")))
    said = read_csv(path, sheet, annotator)
    new = append_new(folder, sheet, f"person:{annotator}", said)
    return new, sum(record.done for record in said), len(sheet.orders[annotator])


def compare_annotators(run: Run, folder: Path | str) -> dict[str, pd.DataFrame]:
    """Turns what people and machines said into tables, and measures how far they and the tests agree.

    Items that an annotator is not done with are left out. A line of a file that is not whole is left out, and told.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
    Returns:
        The tables of `ffkv.run.annotation_tables` by their names. Those about single patterns, prefixes, labels and
        scores hold the identities of model, tokenizer and corpus in their `attrs`. The tests are among the annotators
        of `annotators`, `figure_2_by_annotator` and `agreement`.
    Raises:
        UserError: a record or a label belongs to another run, or the secret key of a sheet is missing.
    Examples:
        >>> tables = ffkv.compare_annotators(ffkv.open("results/tiny"), "annotations/tiny")
        >>> len(tables["agreement"])  # nobody has judged anything
        0
    """
    folder, identity = Path(folder), run.files.identity("train")
    records = read_records(folder, identity)
    for line in records.torn:
        say(line, error=True)
    machines = read_machines(folder, identity)
    if not any(record.done for record in records.latest):
        say(f"Nobody is done with an item of a sheet in {folder} yet. Figure 2 is about the tests alone.", error=True)
    sheets = {record.sheet for record in records.latest if record.done}
    secrets = {name: read_secret(folder, name, identity_of(identity)) for name in sheets}
    said = tabulate(records.latest, secrets, run.settings.keys.minimum_prefixes)
    of_all = with_tests(said, run.files.details("keys/patterns"), run.files.details("keys/by_prefix"))
    return {
        "patterns": tables.identify(said.patterns, identity),
        "by_prefix": tables.identify(said.by_prefix, identity),
        "annotators": summaries.describe_annotators(of_all),
        "figure_2_by_annotator": summaries.count_categories(of_all.by_prefix, len(run.anatomy.layers)),
        "agreement": summaries.measure_agreement(of_all),
        "related_changes": summaries.count_related(said.changes),
        **{name: tables.identify(table, identity) for name, table in machines.items()},
    }
