"""`ffkv annotate`: `sheets`, `write-csv`, `import`, `agreement`."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffkv.base.options import ANNOTATIONS, FOLDER, READABLE, output_option, takes
from ffkv.base.terminal import say
from ffkv_annotation.settings import Sheets

if TYPE_CHECKING:
    from ffkv.run.results.run import Run

SHEET = click.option("--sheet", required=True, help="Name of the sheet, such as keys.")
PERSON = click.option("--annotator", required=True, help="Name of the person, as the sheet has it.")


def of_run(command: Callable) -> Callable:
    """Adds RESULTS and `--annotations`, and hands the command the run and the folder of its annotations."""

    @click.argument("results", type=FOLDER)
    @ANNOTATIONS
    @functools.wraps(command)
    def with_run(results: Path, annotations: Path | None, **options: Any) -> None:
        import ffkv

        run = ffkv.open(results, annotations=annotations)
        command(run=run, annotations=run.files.annotations, **options)

    return with_run


@click.group()
def annotate() -> None:
    """Annotation: what people and machines say about keys, and whether they agree."""


@annotate.command()
@of_run
@takes(Sheets)
def sheets(run: "Run", annotations: Path, sheets: Sheets) -> None:
    """Make blind sheets for people.

    RESULTS is the folder of a finished run, such as results/demo. People fill the sheets in a browser (`ffkv explore`),
    or in a spreadsheet. Nothing in a sheet tells what its items are. The folder secret/ tells it.
    """
    from ffkv_annotation.step import make_sheets

    for path in make_sheets(run, annotations, sheets):
        say(path)
    say(f"Open the sheets in a browser: ffkv explore {run.folder}. Keep {annotations / 'secret'} from those who judge.")


@annotate.command()
@of_run
@SHEET
@PERSON
@output_option("CSV file to write.")
def write_csv(run: "Run", annotations: Path, sheet: str, annotator: str, output: Path) -> None:
    """Write a person's items for a spreadsheet, with what the person has said so far."""
    from ffkv_annotation.sheets import read_sheet
    from ffkv_annotation.step import write_person

    say(write_person(annotations, read_sheet(annotations, sheet), annotator, output))


@annotate.command(name="import")
@of_run
@click.argument("file", type=READABLE)
@SHEET
@PERSON
def import_csv(run: "Run", annotations: Path, file: Path, sheet: str, annotator: str) -> None:
    """Take over what a person wrote into a CSV file.

    FILE is a file of `ffkv annotate sheets` or `ffkv annotate write-csv`, as a spreadsheet saved it.
    """
    from ffkv_annotation.step import import_person

    new, done, items = import_person(run, annotations, sheet, annotator, file)
    say(f"Items that say something new: {new}. Done: {done} of the {items} items of {annotator}.")


@annotate.command()
@click.option("--results", type=FOLDER, required=True, help="Folder of the run, results/<run>.")
@click.option("--annotations", type=FOLDER, required=True, help="Folder of the run's annotations, annotations/<run>.")
@output_option("Folder to write into, results/<run>/annotation.")
def agreement(results: Path, annotations: Path, output: Path) -> None:
    """Turn what people and machines said into tables, and measure how far they and the tests agree."""
    import ffkv
    from ffkv.base.files import tables
    from ffkv.run.annotation_tables import TABLES
    from ffkv_annotation.step import compare_annotators

    found = compare_annotators(ffkv.open(results), annotations)
    for table in TABLES:
        tables.write(found[table.name], output / Path(table.path).name)
