"""`ffkv recover`: after a hard kill of Snakemake, ends what it left running, deletes unfinished files, unlocks the folder.

A killed Snakemake leaves its jobs alive, in SLURM and here, and never takes them up again. The same command started beside
them would submit each a second time.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import click
import psutil

from ffkv.errors import UserError
from ffkv.files.atomic import PARTIAL, is_written
from ffkv.options import FOLDER
from ffkv.process.processes import command_line, is_orphan, is_snakemake, is_step, runs, signal, works_in

PREFIX = "ffkv_"  # of job names: slurm-jobname-prefix in profiles/slurm
OWNER = Path(".snakemake/ffkv_owner.json")
LOCKS = Path(".snakemake/locks")
SLURM_LOGS = Path(".snakemake/slurm_logs")
ANSWER_SECONDS, END_SECONDS = 60, 120  # for an answer of SLURM, and for what was cancelled to be gone


class Job(NamedTuple):
    """A SLURM job of this folder."""

    number: str
    state: str
    step: str  # the rule and its wildcards


class Owner(NamedTuple):
    """The snakemake that last started in a folder."""

    host: str
    pid: int
    local: bool  # whether all its jobs are processes of that host


def note_owner(local: bool) -> None:
    """Writes which process works in the current folder. The workflow calls this when it starts."""
    OWNER.parent.mkdir(exist_ok=True)
    OWNER.write_text(json.dumps(Owner(socket.gethostname(), os.getpid(), local)._asdict()) + "\n")


def refuse_living(folder: Path, insist: bool = False) -> None:
    """Makes sure that no snakemake works in the folder.

    insist: believe that one which started on another host is gone.
    Raises:
        UserError: one is alive here, or may be alive on another host; names it.
    """
    owner, host = _owner(folder), socket.gethostname()
    for process in psutil.process_iter():
        named = owner is not None and (owner.host, owner.pid) == (host, process.pid)
        if is_snakemake(process) and (named or works_in(process, folder)):
            raise UserError(
                f"snakemake is still at work in {folder}: process {process.pid}. Nothing is left behind; stop it and its steps with\n"
                f"  kill -INT -- -{os.getpgid(process.pid)}\nand wait until it has ended."
            )
    if owner and owner.host != host and is_locked(folder) and not insist:
        raise UserError(
            f"A snakemake that started on {owner.host} (process {owner.pid}) has locked {folder} and may still be at work. "
            f"Run `ffkv recover` on {owner.host}; if that snakemake is surely gone, add --insist."
        )


def slurm_jobs(folder: Path) -> list[Job]:
    """The jobs that this workflow submitted from the folder and that are not over.

    SLURM is not asked where there is none, nor for a folder whose jobs all ran on the host itself.

    Raises:
        UserError: SLURM does not answer.
    """
    owner = _owner(folder)
    local = (owner is None or owner.local) and not (folder / SLURM_LOGS).exists()
    if shutil.which("squeue") is None or local:
        return []
    rows = [line.split("|", 4) for line in _slurm("squeue", "--me", "--noheader", "--format=%i|%T|%j|%k|%Z")]
    return [
        Job(number, state, comment.removeprefix("rule_").replace("_wildcards_", " "))
        for number, state, name, comment, place in rows
        if name.startswith(PREFIX) and Path(place).resolve() == folder.resolve()
    ]


def local_orphans(folder: Path, jobs: list[Job]) -> list[psutil.Process]:
    """Processes of steps at work in the folder on this host, that no process which is alive started.

    jobs: of SLURM, whose processes are SLURM's business even where a node is this host.
    """
    numbers, found = {job.number for job in jobs}, {}
    for process in psutil.process_iter():
        try:
            if not (is_step(process) and works_in(process, folder) and is_orphan(process)):
                continue
            if process.environ().get("SLURM_JOB_ID") not in numbers:
                found |= {one.pid: one for one in (process, *process.children(recursive=True))}
        except (psutil.Error, ProcessLookupError):  # over meanwhile, or another user's
            continue
    return list(found.values())


def unfinished_files(folder: Path) -> list[Path]:
    """What killed steps left under a temporary name; not what a step that lives writes."""
    return [
        path
        for place in ("results", "reports")
        for path in sorted((folder / place).rglob(".*.partial"))
        if PARTIAL.fullmatch(path.name)
        and not is_written(path)
        and not any(PARTIAL.fullmatch(parent.name) for parent in path.parents)
    ]


def is_locked(folder: Path) -> bool:
    """Whether Snakemake would refuse to start in the folder."""
    return any((folder / LOCKS).glob("*.lock"))


def unlock(folder: Path) -> None:
    """What `snakemake --unlock` does, without the need to read the workflow."""
    shutil.rmtree(folder / LOCKS, ignore_errors=True)


def cancel(folder: Path, jobs: list[Job], processes: list[psutil.Process]) -> None:
    """Ends jobs and processes, and waits until they are gone: they write until then.

    Raises:
        UserError: SLURM does not answer, or something does not end.
    """
    for process in processes:
        signal(process.terminate)
    if jobs:
        _slurm("scancel", *(job.number for job in jobs))
    for process in psutil.wait_procs(processes, END_SECONDS / 4)[1]:
        signal(process.kill)
    left = [f"process {process.pid}" for process in psutil.wait_procs(processes, 10)[1] if runs(process)]
    deadline = time.monotonic() + END_SECONDS
    while (jobs := slurm_jobs(folder) if jobs else []) and time.monotonic() < deadline:
        time.sleep(1)
    left += [f"SLURM job {job.number} ({job.state})" for job in jobs]
    if left:
        raise UserError(
            f"{', '.join(left)} of {folder} did not end. Wait, or ask the administrator; then run this again."
        )


@click.command()
@click.option(
    "--directory", "folder", type=FOLDER, default=".", show_default=True, help="Where snakemake ran: its --directory."
)
@click.option("--cancel", "cancelling", is_flag=True, help="Do it without asking. Without a terminal, only list.")
@click.option("--insist", is_flag=True, help="Believe that a snakemake which started on another host is gone.")
def recover(folder: Path, cancelling: bool, insist: bool) -> None:
    """After a hard kill of snakemake: end what it left running, delete unfinished files, unlock the folder.

    Then start the same snakemake command again.
    """
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


def _owner(folder: Path) -> Owner | None:
    try:
        note = json.loads((folder / OWNER).read_text())
        return Owner(str(note["host"]), int(note["pid"]), bool(note["local"]))
    except (OSError, ValueError, KeyError, TypeError):  # none, or half of one: the processes here still tell
        return None


def _slurm(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"SLURM gave no answer to `{command[0]}` in {ANSWER_SECONDS} seconds. Try later.") from error
    if done.returncode:
        raise UserError(f"`{command[0]}` failed: {done.stderr.strip() or 'without a message'}. Is SLURM up? Try later.")
    return done.stdout.splitlines()
