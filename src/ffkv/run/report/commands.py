"""`ffkv report`."""

from pathlib import Path

import click

from ffkv.base.options import FOLDER, output_option
from ffkv.base.terminal import say


@click.command()
@click.option("--results", type=FOLDER, required=True, help="The run's folder, results/<run>.")
@output_option("The HTML file to write, reports/<run>/index.html.")
def report(results: Path, output: Path) -> None:
    """Write the HTML report of a run.

    The report is one file that opens from disk, without network and without scripts. The folder `figures` beside it
    gets each figure as an SVG file.
    """
    from ffkv.run.report.step import write_report
    from ffkv.run.results.run import open

    write_report(open(results), output)
    say(f"{output}: open it in a browser.")
