"""`ffkv crate` and `ffkv publish`."""

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import exists, is_file
from ffkv.base.options import FOLDER, READABLE, WRITABLE, output_option
from ffkv.base.terminal import say


@click.command()
@click.argument("results", type=FOLDER)
@output_option("The zip file to write, such as demo.crate.zip.")
@click.option(
    "--report/--no-report", default=True, show_default=True, help="Whether reports/<run> is in it, if it is there."
)
@click.option(
    "--citation",
    type=READABLE,
    help="A CITATION.cff: its authors made the run. By default the one beside the folder results.",
)
@click.option("--no-citation", is_flag=True, help="Name nobody who made the run.")
@click.option(
    "--license", required=True, help="The licence of the results: a name of SPDX, such as CC-BY-4.0, or an address."
)
@click.option("--small", is_flag=True, help="Leave out HDF5 files and weights. They are named with their sums.")
def crate(
    results: Path, output: Path, report: bool, citation: Path | None, no_citation: bool, license: str, small: bool
) -> None:
    """Pack a finished run for an archive, such as Zenodo or WorkflowHub: a Workflow Run RO-Crate.

    RESULTS is the folder of the run, such as results/demo. It is not changed. The crate says what each job read, wrote and took.
    settings.json is in it as it is: look for paths that you do not want to tell.
    """
    if citation and no_citation:
        raise UserError("--citation and --no-citation exclude each other. Name one of them.")
    from ffkv.run.results.run import open
    from ffkv_publishing.crate import write_crate

    run = open(results)
    beside = results.resolve().parent.parent
    page, named = beside / "reports" / run.name, citation or beside / "CITATION.cff"
    shown = page if report and exists(page / "index.html") else None
    left_out = write_crate(run, output, license, shown, named if is_file(named) and not no_citation else None, small)
    left = f" {left_out} files are named with their sums alone." if left_out else ""
    say(f"{output}: the run {run.name}.{left}")


@click.command()
@click.argument("reports", nargs=-1, required=True, type=FOLDER, metavar="REPORTS...")
@click.option(
    "--to",
    "folder",
    type=WRITABLE,
    required=True,
    help="The folder of the site. A site that is there is replaced as a whole.",
)
@click.option(
    "--export", "exports", multiple=True, type=FOLDER, help="A folder that `ffkv export` wrote. It can be repeated."
)
@click.option(
    "--memories",
    multiple=True,
    help="A memory that has a page, or a list of them. By default those that a report shows.",
)
@click.option(
    "--title", default="Feed-forward layers as key-value memories", show_default=True, help="Heading of the first page."
)
@click.option("--dry-run", "-n", is_flag=True, help="Only say how large the site is.")
def publish(
    reports: tuple[Path, ...],
    folder: Path,
    exports: tuple[Path, ...],
    memories: tuple[str, ...],
    title: str,
    dry_run: bool,
) -> None:
    """Put finished reports into a folder for a static host, such as GitHub Pages or a static Space.

    REPORTS are folders such as reports/demo and reports/comparisons/training. The site has a first page with all of them, pages of memories
    if results/<name> is beside reports, and exports. No file names a folder of this machine. Texts of the corpus are in it: publish
    those that you may give away.
    """
    from ffkv_publishing.site import write_site

    with TemporaryDirectory() if dry_run else atomic(folder, summed=False) as place:
        site = Path(place, "site") if dry_run else Path(place)
        for sentence in write_site(site, reports, exports, memories, title):
            say(sentence)
    say(
        "Nothing was written."
        if dry_run
        else f"{folder / 'index.html'}: open it in a browser, or put the folder on a host."
    )
