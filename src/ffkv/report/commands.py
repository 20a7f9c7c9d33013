"""`ffkv report`."""

from pathlib import Path

import click

from ffkv.options import WRITABLE


@click.command()
@click.option(
    "--results",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The run's folder of tables, results/<run>.",
)
@click.option(
    "--settings",
    type=click.Path(path_type=Path),
    required=True,
    help="The run's complete settings as JSON, results/<run>/settings.json.",
)
@click.option("--output", type=WRITABLE, required=True, help="The file to write, reports/<run>/index.html.")
def report(folder: Path, settings: Path, output: Path) -> None:
    """Write the HTML report of a run.

    One file that opens from disk, without network and without scripts. Each figure also stands as an SVG file in the
    folder `figures` beside it.
    """
    from ffkv.files.atomic import atomic
    from ffkv.report.page import exhibits, render
    from ffkv.report.results import read_results

    results = read_results(folder, settings)
    shown = exhibits(results)
    page = render(results, shown)
    for name, exhibit in shown.items():
        with atomic(output.parent / "figures" / f"{name}.svg", summed=False) as temporary:
            temporary.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{exhibit.svg}', encoding="utf-8")
    with atomic(output, summed=False) as temporary:
        temporary.write_text(page, encoding="utf-8")
    click.echo(f"{output}: open it in a browser.")
