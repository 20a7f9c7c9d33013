"""The command `ffkv check`."""

import shlex
from pathlib import Path

import click

from ffkv.errors import UserError
from ffkv.options import FOLDER


@click.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Read every file of a run and name those that are damaged or unfinished.

    FOLDER is the folder of the run, such as results/demo.
    """
    from ffkv.results.check import check_run

    read, problems = check_run(folder)
    for problem in problems:
        click.echo(f"{problem.path}: {problem.reason}")
    if not problems:
        click.echo(f"{folder}: {read} files, none is damaged or unfinished.")
        return
    nouns, verb, them = ("files", "are", "them") if len(problems) > 1 else ("file", "is", "it")
    place = folder.parent.parent  # Snakemake's targets are relative to the folder that holds results/
    again = shlex.join(str(problem.path.relative_to(place)) for problem in problems if not problem.unfinished)
    raise UserError(
        f"{len(problems)} {nouns} in {folder} {verb} damaged or unfinished. Delete {them}:\n"
        f"  rm -r {shlex.join(str(problem.path) for problem in problems)}"
        + (f"\nThen run their steps again, with the options of your run:\n  snakemake {again}" if again else "")
    )
