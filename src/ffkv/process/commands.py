"""`ffkv recover`."""

import shutil
import sys
from pathlib import Path

import click

from ffkv.options import FOLDER


@click.command()
@click.option(
    "--directory",
    "folder",
    type=FOLDER,
    default=".",
    show_default=True,
    help="The folder in which snakemake ran (its --directory).",
)
@click.option(
    "--cancel",
    "cancelling",
    is_flag=True,
    help="Clean up without asking. Without this option, outside a terminal, the command only lists.",
)
@click.option("--insist", is_flag=True, help="Assume that a snakemake that was started on another host has ended.")
def recover(folder: Path, cancelling: bool, insist: bool) -> None:
    """Clean up after snakemake was killed: end its running steps, delete unfinished files, unlock the folder.

    Then start the same snakemake command again.
    """
    from ffkv.process.processes import command_line
    from ffkv.process.recover import (
        cancel,
        is_locked,
        local_orphans,
        refuse_living,
        slurm_jobs,
        unfinished_files,
        unlock,
    )

    folder = folder.resolve()
    refuse_living(folder, insist)
    jobs = slurm_jobs(folder)
    processes, files = local_orphans(folder, jobs), unfinished_files(folder)
    lines = [f"SLURM job {job.number}, {job.state.lower()}: {job.step}" for job in jobs]
    lines += [f"process {process.pid}: {command_line(process)[:100]}" for process in processes]
    lines += [f"unfinished: {path.relative_to(folder)}" for path in files]
    lines += ["the folder is locked"] if is_locked(folder) else []
    click.echo("\n".join(lines) or f"Nothing is left behind in {folder}.")
    if not lines:
        return
    if not cancelling and not (sys.stdin.isatty() and click.confirm("Cancel, delete and unlock?")):
        click.echo("Nothing was changed. `ffkv recover --cancel` cancels, deletes and unlocks all of this.")
        return
    cancel(folder, jobs, processes)
    for path in unfinished_files(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    unlock(folder)
    click.echo("Done. Start the same snakemake command again.")
