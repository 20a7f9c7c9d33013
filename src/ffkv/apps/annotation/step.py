"""Makes sheets, takes what people wrote into them, and compares annotators."""

from pathlib import Path

import pandas as pd

from ffkv.apps.annotation import summaries
from ffkv.apps.annotation.csv_sheets import read_csv, write_csv
from ffkv.apps.annotation.draw import SheetDesign, draw_changes, draw_keys
from ffkv.apps.annotation.ratings import Ratings, of_tests, tabulate
from ffkv.apps.annotation.records import Record, append_record, identity_of, read_records
from ffkv.apps.annotation.sheets import Sheet, read_secret, read_sheet, sheet_names, write_sheet
from ffkv.apps.machine.tables import read_machines
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.terminal import say
from ffkv.run.results.run import Run

DRAWN = {"keys": draw_keys, "changes": draw_changes}
DETAILS = ("patterns", "by_prefix", "machine_labels", "machine_scores")  # tables that are kept as parquet


def make_sheets(run: Run, folder: Path | str, design: SheetDesign, name: str = "") -> list[Path]:
    """Makes a sheet of keys and one of changes of the last layer, and a CSV file of each for every person.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
        design: how many keys, changes and controls, for whom.
        name: what the sheets are called: `<name>-keys` and `<name>-changes`; "": `keys` and `changes`.
    Returns:
        The files of the sheets, then the CSV files.
    Raises:
        UserError: a sheet of this name exists; nobody, or somebody twice, is named; the run has no key or change to judge.
    Examples:
        >>> design = ffkv.SheetDesign(annotators=("anna",), per_layer=1, changes=1)
        >>> paths = ffkv.make_sheets(ffkv.open("results/tiny"), "annotations/tiny", design)
        >>> [path.name for path in paths if path.suffix == ".csv"]
        ['keys.anna.csv', 'changes.anna.csv']
    """
    folder = Path(folder)
    check_design(design)
    wanted = {"keys": design.per_layer, "changes": design.changes}
    drawn = [draw(run, f"{name}-{kind}" if name else kind, design) for kind, draw in DRAWN.items() if wanted[kind] > 0]
    for sheet, _ in drawn:
        if sheet.name in sheet_names(folder):
            raise UserError(
                f"{folder} has a sheet {sheet.name!r} already, and people may have begun with it. Choose another name with"
                " --name."
            )
    sheets = [write_sheet(folder, *both) for both in drawn]
    return sheets + [
        write_person(folder, sheet, annotator, folder / "csv" / f"{sheet.name}.{annotator}.csv")
        for sheet, _ in drawn
        for annotator in sheet.orders
    ]


def check_design(design: SheetDesign) -> None:
    """Refuses a design without people, with a name that cannot be part of a file's name, or with nothing to judge."""
    if not design.annotators:
        raise UserError("Nobody is named. Name each person with --annotator, such as --annotator anna.")
    for annotator in design.annotators:
        if not annotator.replace("-", "").replace("_", "").isalnum() or len(annotator) > 40:
            raise UserError(f"The name {annotator!r} has other characters than letters, digits, - and _. Shorten it.")
    if len({annotator.casefold() for annotator in design.annotators}) < len(design.annotators):
        raise UserError(
            "Two people have the same name, so nobody could tell apart what they say. Name them differently."
        )
    if design.per_layer <= 0 and design.changes <= 0:
        raise UserError("There is nothing to judge: give --per-layer, --changes, or both.")


def write_person(folder: Path, sheet: Sheet, annotator: str, path: Path) -> Path:
    """Writes a person's items, with what the person has said so far, as a CSV file. Returns its path.

    Raises:
        UserError: the sheet is not for this person.
    """
    write_csv(path, sheet, annotator, latest_of_person(folder, sheet, annotator))
    return path


def latest_of_person(folder: Path, sheet: Sheet, annotator: str) -> dict[str, Record]:
    """The latest record of each item of a sheet that a person said something about."""
    records = read_records(folder, sheet.identity, f"person:{annotator}").latest
    return {record.item: record for record in records if record.sheet == sheet.name}


def import_person(run: Run, folder: Path, name: str, annotator: str, path: Path) -> tuple[int, int, int]:
    """Takes over what a person wrote into a CSV file. What was said before with the same words is not said again.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
        name: name of the sheet.
        annotator: name of the person.
        path: the CSV file.
    Returns:
        Number of items with something new, number of items of the file that are done, and number of items of the sheet.
    Raises:
        UserError: see `read_csv`; nothing is taken over then.
    """
    sheet = read_sheet(folder, name, identity_of(run.files.identity("train")))
    before, said = latest_of_person(folder, sheet, annotator), read_csv(path, sheet, annotator)
    new = [record for record in said if not _is_same(record, before.get(record.item))]
    for record in new:
        append_record(folder, record)
    return len(new), sum(record.done for record in said), len(sheet.orders[annotator])


def _is_same(record: Record, before: Record | None) -> bool:
    return before is not None and record == before.model_copy(update={"time": record.time})


def compare_annotators(run: Run, folder: Path | str) -> dict[str, pd.DataFrame]:
    """Turns what people and machines said into tables, and measures how far they and the tests agree.

    Items that an annotator is not done with are left out. A line of a file that is not whole is left out, and told.

    Args:
        run: the finished run.
        folder: `annotations/<run>`.
    Returns:
        The tables by the name of their file, without its ending. `patterns` and `by_prefix` hold what each annotator said, in
        the form of `keys/patterns` and `keys/by_prefix`. `machine_labels` and `machine_scores` hold how machines explained
        memories, and how good that is. The `attrs` of these four hold the identities of model, tokenizer and corpus. The
        others are summaries. The tests are among the annotators of `annotators`, `figure_2_by_annotator` and `agreement`.
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
    of_all = _with_tests(run, said)
    return {
        "patterns": tables.identify(said.patterns, identity),
        "by_prefix": tables.identify(said.by_prefix, identity),
        "annotators": summaries.describe_annotators(of_all),
        "figure_2_by_annotator": summaries.count_categories(of_all.by_prefix, len(run.anatomy.layers)),
        "agreement": summaries.measure_agreement(of_all, run.settings.seed),
        "related_changes": summaries.count_related(said.changes),
        "machine_labels": tables.identify(machines["machine_labels"], identity),
        "machine_scores": tables.identify(machines["machine_scores"], identity),
        "machine_scores_by_layer": machines["machine_scores_by_layer"],
    }


def _with_tests(run: Run, said: Ratings) -> Ratings:
    """What annotators said, and what the statistical tests found in all sampled keys, as one more annotator."""
    patterns, by_prefix = of_tests(run.files.details("keys/patterns"), run.files.details("keys/by_prefix"))
    return Ratings(
        pd.concat([said.patterns, patterns], ignore_index=True),
        pd.concat([said.by_prefix, by_prefix], ignore_index=True),
        said.changes,
    )
