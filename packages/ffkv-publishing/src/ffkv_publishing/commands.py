"""`ffkv crate` and `ffkv publish`."""

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import exists, find, is_file
from ffkv.base.options import FOLDER, NEW_FOLDER, READABLE, output_option
from ffkv.base.terminal import say


@click.command()
@click.argument("results", type=FOLDER)
@output_option("The zip file to write, such as demo.crate.zip.")
@click.option(
    "--citation", type=READABLE, help="A CITATION.cff: its authors made the run. Without, the one beside results."
)
@click.option(
    "--license", required=True, help="The licence of the results: a name of SPDX, such as CC-BY-4.0, or an address."
)
@click.option("--small", is_flag=True, help="Leave out HDF5 files and weights. They are named with their sums.")
def crate(results: Path, output: Path, citation: Path | None, license: str, small: bool) -> None:
    """Pack a finished run for an archive, such as Zenodo or WorkflowHub: a Workflow Run RO-Crate.

    RESULTS is the folder of the run, such as results/demo. It is not changed. The crate says what each job read, wrote and took. Its
    report is in it if it is in reports/<run>, beside results.
    settings.json is in it as it is: look for paths that you do not want to tell.
    """
    from ffkv.run.results.run import open
    from ffkv_publishing.crate import write_crate

    run = open(results)
    beside = results.resolve().parent.parent
    report, named = beside / "reports" / run.name, citation or beside / "CITATION.cff"
    shown = report if exists(report / "index.html") else None
    left_out = write_crate(run, output, license, shown, named if is_file(named) else None, small)
    left = f" {left_out} files are named with their sums alone." if left_out else ""
    say(f"{output}: the run {run.name}.{left}")


@click.command()
@click.argument("reports", nargs=-1, required=True, type=FOLDER, metavar="REPORTS...")
@click.option(
    "--to",
    type=NEW_FOLDER,
    required=True,
    help="Folder of the site. An older site is replaced; a folder with other files is refused.",
)
@click.option("--export", multiple=True, type=FOLDER, help="A folder that `ffkv export` wrote. Repeat it for more.")
@click.option(
    "--memories", multiple=True, help="Memories that have pages, such as L3.17. Without, those that a report shows."
)
@click.option("--title", default="Feed-forward layers as key-value memories", help="Heading of the first page.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say how large the site is.")
def publish(
    reports: tuple[Path, ...], to: Path, export: tuple[Path, ...], memories: tuple[str, ...], title: str, dry_run: bool
) -> None:
    """Put finished reports into a folder for a static host, such as GitHub Pages or a static Space.

    REPORTS are folders such as reports/demo and reports/comparisons/training. The site has a first page with all of them, pages of memories
    if results/<name> is beside reports, and exports. No file names a folder of this machine. Texts of the corpus are in it: publish
    those that you may give away.
    """
    own = {"index.html", "README.md", ".nojekyll", "reports", *["exports"] * bool(export)}
    others = [] if dry_run else sorted({path.name for path in find(to, "*")} - own)
    if others:  # `atomic` would say so when all reports are written
        raise UserError(f"{to} holds other files ({', '.join(others[:3])}): name another folder, or empty it.")
    from ffkv_publishing.site import write_site

    with TemporaryDirectory() if dry_run else atomic(to, summed=False) as place:
        site = Path(place, "site") if dry_run else Path(place)
        for sentence in write_site(site, reports, export, memories, title):
            say(sentence)
    say("Nothing was written." if dry_run else f"{to / 'index.html'}: open it, or put the folder on a host.")
