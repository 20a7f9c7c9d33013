"""`ffkv recover`."""

import sys
from pathlib import Path

import click

from ffkv.base.options import FOLDER
from ffkv.base.terminal import say


@click.command()
@click.option("--directory", "folder", type=FOLDER, default=".", show_default=True, help="The folder of snakemake.")
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
    from ffkv.base.process import recover

    folder = folder.resolve()
    recover.refuse_other_folders(folder)
    recover.refuse_living(folder, insist)
    jobs = recover.slurm_jobs(folder)
    processes, files = recover.local_orphans(folder, jobs), recover.unfinished_files(folder)
    lines = [f"SLURM job {job.number}, {job.state.lower()}: {job.step}" for job in jobs]
    lines += [f"process {process.pid}: {recover.command_line(process)[:100]}" for process in processes]
    lines += [f"unfinished: {path.relative_to(folder)}" for path in files]
    lines += ["the folder is locked"] if recover.is_locked(folder) else []
    say("\n".join(lines) or f"Nothing is left behind in {folder}.")
    if not lines:
        return
    if not cancelling and not (sys.stdin.isatty() and click.confirm("Cancel, delete and unlock?")):
        say("Nothing was changed. `ffkv recover --cancel` cancels, deletes and unlocks all of this.")
        return
    recover.cancel(folder, jobs, processes)
    for path in recover.unfinished_files(folder):
        recover.delete(path)
    recover.unlock(folder)
    say("Done. Start the same snakemake command again.")
