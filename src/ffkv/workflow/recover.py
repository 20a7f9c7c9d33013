"""`ffkv recover`: finds and ends the jobs of a Snakemake that was killed, finds its unfinished files, and unlocks its folder.

The jobs of a killed Snakemake go on, in SLURM and on this host, and no Snakemake takes them over. Without recovery the
same command would start each of them a second time.
"""

import contextlib
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

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import PARTIAL, is_written
from ffkv.base.lookup import exists, find, is_dir, make_folder, read_json
from ffkv.base.options import FOLDER
from ffkv.base.terminal import say

PREFIX = "ffkv_"  # start of the names of SLURM jobs: slurm-jobname-prefix in profiles/slurm
OWNER = Path(".snakemake/ffkv_owner.json")
LOCKS = Path(".snakemake/locks")
SLURM_LOGS = Path(".snakemake/slurm_logs")
ANSWER_SECONDS, END_SECONDS = 60, 120  # longest wait for an answer of SLURM, and for the end of cancelled jobs


class Job(NamedTuple):
    """A SLURM job of this folder."""

    number: str  # its SLURM id
    state: str  # its SLURM state, such as RUNNING
    step: str  # the rule and its wildcards


class Owner(NamedTuple):
    """The snakemake process that last started in a folder."""

    host: str  # name of its host
    pid: int  # number of its process
    local: bool  # whether all its jobs are processes of that host


def note_owner(local: bool) -> None:
    """Writes down which process works in the current folder. The workflow calls this when it starts."""
    make_folder(OWNER.parent)
    OWNER.write_text(json.dumps(Owner(socket.gethostname(), os.getpid(), local)._asdict()) + "\n")


def refuse_living(folder: Path, insist: bool = False) -> None:
    """Refuses a folder in which a snakemake works here, or perhaps elsewhere (`insist`: that one has ended)."""
    owner, host = _owner(folder), socket.gethostname()
    for process in psutil.process_iter():
        named = owner is not None and (owner.host, owner.pid) == (host, process.pid)
        if is_snakemake(process) and (named or works_in(process, folder)):
            raise UserError(
                f"snakemake still works in {folder}: process {process.pid}. There is nothing to recover. Stop it and its steps with\n"
                f"  kill -INT -- -{os.getpgid(process.pid)}\nand wait until it has ended."
            )
    if owner and owner.host != host and is_locked(folder) and not insist:
        raise UserError(
            f"A snakemake that started on {owner.host} (process {owner.pid}) has locked {folder} and may still work. "
            f"Run `ffkv recover` on {owner.host}; if you are sure that this snakemake has ended, add --insist."
        )


def slurm_jobs(folder: Path) -> list[Job]:
    """Returns the SLURM jobs of this workflow that were submitted from the folder and have not ended.

    SLURM is not asked if it is not installed, or if all jobs of the folder ran on the host itself. Raises UserError without its answer.
    """
    owner = _owner(folder)
    local = (owner is None or owner.local) and not exists(folder / SLURM_LOGS)
    if shutil.which("squeue") is None or local:
        return []
    rows = [line.split("|", 4) for line in _slurm("squeue", "--me", "--noheader", "--format=%i|%T|%j|%k|%Z")]
    return [
        Job(number, state, comment.removeprefix("rule_").replace("_wildcards_", " "))
        for number, state, name, comment, place in rows
        if name.startswith(PREFIX) and Path(place).resolve() == folder.resolve()
    ]


def local_orphans(folder: Path, jobs: list[Job]) -> list[psutil.Process]:
    """Returns the processes of steps that work in the folder on this host and whose snakemake has ended.

    Those of the SLURM jobs `jobs` are left to SLURM, even if this host is one of its nodes.
    """
    numbers = {job.number for job in jobs}
    orphans: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if not (is_step(process) and works_in(process, folder)):
                continue
            # Of an orphan, the parent has ended. The new parent then belongs to another session.
            parent, session = process.parent(), os.getsid(process.pid)
            if parent and parent.pid != 1 and session in (process.pid, os.getsid(parent.pid)):
                continue
            if process.environ().get("SLURM_JOB_ID") not in numbers:
                orphans |= {one.pid: one for one in (process, *process.children(recursive=True))}
        except (psutil.Error, ProcessLookupError):  # it has ended meanwhile, or belongs to another user
            continue
    return list(orphans.values())


def unfinished_files(folder: Path) -> list[Path]:
    """Returns temporary files that killed steps left, not those of running ones. Raises UserError if it cannot list."""
    return [
        path
        for place in ("results", "reports")
        for path in find(folder / place, "**/.*.partial")
        if PARTIAL.fullmatch(path.name)
        and not is_written(path)
        and not any(PARTIAL.fullmatch(parent.name) for parent in path.parents)
    ]


def is_locked(folder: Path) -> bool:
    """Tells whether the folder is locked, so that Snakemake refuses to start in it. Raises UserError if nobody can tell."""
    return bool(find(folder / LOCKS, "*.lock"))


def delete(path: Path) -> None:
    """Deletes a file, or a folder with all that is in it, if it is there. Raises OSError if it cannot be deleted."""
    if is_dir(path) and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def cancel(folder: Path, jobs: list[Job], processes: list[psutil.Process]) -> None:
    """Ends jobs and processes, and waits until they write no more. Raises UserError if SLURM is silent or one stays."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    if jobs:
        _slurm("scancel", *(job.number for job in jobs))
    for process in psutil.wait_procs(processes, END_SECONDS / 4)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    left = [f"process {process.pid}" for process in psutil.wait_procs(processes, 10)[1] if is_running(process)]
    deadline = time.monotonic() + END_SECONDS
    while (jobs := slurm_jobs(folder) if jobs else []) and time.monotonic() < deadline:
        time.sleep(1)
    left += [f"SLURM job {job.number} ({job.state})" for job in jobs]
    if left:
        raise UserError(
            f"{', '.join(left)} of {folder} still run, {END_SECONDS} seconds after they were told to end. Wait some minutes, or"
            " ask the administrator of the machine; then run this again."
        )


def _owner(folder: Path) -> Owner | None:
    try:
        note = read_json(folder / OWNER)
        return Owner(str(note["host"]), int(note["pid"]), bool(note["local"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none, or half of one: processes still tell
        return None


def _slurm(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"SLURM gave no answer to `{command[0]}` in {ANSWER_SECONDS} seconds. Try later.") from error
    if done.returncode:
        raise UserError(f"`{command[0]}` failed: {done.stderr.strip() or 'without a message'}. Is SLURM up? Try later.")
    return done.stdout.splitlines()


def is_snakemake(process: psutil.Process) -> bool:
    """Tells whether the process is a Snakemake that runs a whole workflow, and not a single job inside SLURM."""
    arguments = _arguments(process)
    python = bool(arguments) and Path(arguments[0]).name.startswith(("python", "snakemake"))
    return python and "snakemake" in {Path(name).name for name in arguments[:4]} and "--mode" not in arguments


def is_step(process: psutil.Process) -> bool:
    """Tells whether the process is the shell of a job, or the `ffkv` command that the shell became."""
    arguments = _arguments(process)
    if len(arguments) > 2 and arguments[1] == "-c":
        return "set -euo pipefail" in arguments[2] and "ffkv " in arguments[2]  # after the commands that activate conda
    writes = any(argument.startswith("--output") for argument in arguments)
    return writes and "ffkv" in {Path(argument).name for argument in arguments[:2]}


def works_in(process: psutil.Process, folder: Path) -> bool:
    """Tells whether the process works in the folder."""
    try:
        return Path(process.cwd()).resolve() == folder.resolve()
    except psutil.Error:
        return False


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_running(process: psutil.Process) -> bool:
    """Tells whether the process still runs. A zombie does not: only its exit code has not been asked for."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
    folder = folder.resolve()
    if not is_dir(folder / ".snakemake"):
        above = next((place for place in folder.parents if is_dir(place / ".snakemake")), None)
        remedy = f"It has in {above}: name that with --directory." if above else "Name its folder with --directory."
        raise UserError(f"No snakemake has run in {folder}. {remedy}")
    refuse_living(folder, insist)
    jobs = slurm_jobs(folder)
    processes, files = local_orphans(folder, jobs), unfinished_files(folder)
    lines = [f"SLURM job {job.number}, {job.state.lower()}: {job.step}" for job in jobs]
    lines += [f"process {one.pid}: {' '.join(' '.join(_arguments(one)).split())[:100]}" for one in processes]
    lines += [f"unfinished: {path.relative_to(folder)}" for path in files]
    lines += ["the folder is locked"] if is_locked(folder) else []
    say("\n".join(lines) or f"Nothing is left behind in {folder}.")
    if not lines:
        return
    if not cancelling and not (sys.stdin.isatty() and click.confirm("Cancel, delete and unlock?")):
        say("Nothing was changed. `ffkv recover --cancel` cancels, deletes and unlocks all of this.")
        return
    cancel(folder, jobs, processes)
    for path in unfinished_files(folder):
        delete(path)
    delete(folder / LOCKS)  # as `snakemake --unlock` does, but without reading the workflow
    say("Done. Start the same snakemake command again.")
