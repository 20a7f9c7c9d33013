"""`ffkv init`."""

from pathlib import Path

import click

from ffkv.base.options import WRITABLE
from ffkv.base.terminal import say


@click.command()
@click.argument("folder", type=WRITABLE, default=".")
def init(folder: Path) -> None:
    """Prepare FOLDER for runs: a Snakefile, a commented config.yaml, and profiles for a workstation and for SLURM.

    The Snakefile uses the workflow that is installed with ffkv. Existing files are never overwritten.
    """
    from ffkv.workflow.start import write_start

    for path in write_start(folder):
        say(path)
    say(f"Edit {folder / 'config.yaml'}, then run `snakemake` in {folder}.")
