"""`ffkv annotate`: `sheets`, `write-csv`, `import`, `agreement`."""

from pathlib import Path

import click

from ffkv.apps.annotation.options import ANNOTATIONS, RESULTS
from ffkv.apps.machine.commands import machine
from ffkv.base.options import FOLDER, READABLE, output_option, seed_option
from ffkv.base.terminal import say

SHEET = click.option("--sheet", required=True, help="Name of the sheet, such as keys.")
PERSON = click.option("--annotator", required=True, help="Name of the person, as the sheet has it.")


@click.group()
def annotate() -> None:
    """Annotation: what people and machines say about keys, and whether they agree."""


@annotate.command()
@RESULTS
@click.option("--annotator", "annotators", multiple=True, required=True, help="Name of a person; repeat it.")
@click.option("--name", default="", help="What the sheets are called: <name>-keys and <name>-changes.")
@click.option("--per-layer", type=click.IntRange(0), default=10, show_default=True, help="Number of keys per layer.")
@click.option(
    "--changes",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="Number of predictions that the last layer changes.",
)
@click.option(
    "--controls",
    type=click.FloatRange(0, 10),
    default=0.2,
    show_default=True,
    help="Number of controls: random prefixes instead of trigger examples, and random second tokens. A share of the number"
    " of keys, and of changes.",
)
@click.option(
    "--shared",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Share of the items that all people judge. The others are dealt out.",
)
@click.option(
    "--repeated",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Share of a person's items that the person judges twice.",
)
@seed_option
@ANNOTATIONS
def sheets(
    results: Path,
    annotators: tuple[str, ...],
    name: str,
    per_layer: int,
    changes: int,
    controls: float,
    shared: float,
    repeated: float,
    seed: int,
    annotations: Path | None,
) -> None:
    """Make blind sheets for people.

    RESULTS is the folder of a finished run, such as results/demo. People fill the sheets in a browser (`ffkv explore`), or in a
    spreadsheet. Nothing in a sheet tells what its items are. The folder secret/ tells it.
    """
    import ffkv
    from ffkv.apps.annotation.draw import SheetDesign
    from ffkv.apps.annotation.sheets import annotations_folder
    from ffkv.apps.annotation.step import make_sheets

    design = SheetDesign(annotators, per_layer, changes, controls, shared, repeated, seed)
    run = ffkv.open(results)
    folder = annotations or annotations_folder(run)
    for path in make_sheets(run, folder, design, name):
        say(path)
    say(f"Open the sheets in a browser: ffkv explore {results}. Keep {folder / 'secret'} from those who judge.")


@annotate.command()
@RESULTS
@SHEET
@PERSON
@ANNOTATIONS
@output_option("CSV file to write.")
def write_csv(results: Path, sheet: str, annotator: str, annotations: Path | None, output: Path) -> None:
    """Write a person's items for a spreadsheet, with what the person has said so far."""
    import ffkv
    from ffkv.apps.annotation.sheets import annotations_folder, read_sheet
    from ffkv.apps.annotation.step import write_person

    folder = annotations or annotations_folder(ffkv.open(results))
    say(write_person(folder, read_sheet(folder, sheet), annotator, output))


@annotate.command(name="import")
@RESULTS
@click.argument("file", type=READABLE)
@SHEET
@PERSON
@ANNOTATIONS
def import_csv(results: Path, file: Path, sheet: str, annotator: str, annotations: Path | None) -> None:
    """Take over what a person wrote into a CSV file.

    FILE is a file of `ffkv annotate sheets` or `ffkv annotate write-csv`, as a spreadsheet saved it.
    """
    import ffkv
    from ffkv.apps.annotation.sheets import annotations_folder
    from ffkv.apps.annotation.step import import_person

    run = ffkv.open(results)
    folder = annotations or annotations_folder(run)
    new, done, items = import_person(run, folder, sheet, annotator, file)
    say(f"{new} items say something new. {done} of the {items} items of {annotator} are done.")


@annotate.command()
@click.option("--results", type=FOLDER, required=True, help="Folder of the run, results/<run>.")
@click.option("--annotations", type=FOLDER, required=True, help="Folder of the run's annotations, annotations/<run>.")
@output_option("Folder to write into, results/<run>/annotation.")
def agreement(results: Path, annotations: Path, output: Path) -> None:
    """Turn what people and machines said into tables, and measure how far they and the tests agree."""
    import ffkv
    from ffkv.apps.annotation.step import DETAILS, compare_annotators
    from ffkv.base.files import tables

    for name, table in compare_annotators(ffkv.open(results), annotations).items():
        tables.write(table, output / f"{name}.{'parquet' if name in DETAILS else 'csv'}")


annotate.add_command(machine)
