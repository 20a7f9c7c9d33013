"""Recognizes the processes of a workflow on this host: Snakemake, its steps, and steps whose Snakemake has ended."""

import os
from pathlib import Path

import psutil


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


def is_orphan(process: psutil.Process) -> bool:
    """Tells whether the parent has ended. The new parent then belongs to another session."""
    parent, session = process.parent(), os.getsid(process.pid)
    return parent is None or parent.pid == 1 or session not in (process.pid, os.getsid(parent.pid))


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


def command_line(process: psutil.Process) -> str:
    """Returns the command of the process in one line; empty if it has ended."""
    return " ".join(" ".join(_arguments(process)).split())


def is_running(process: psutil.Process) -> bool:
    """Tells whether the process still runs. A zombie does not: only its exit code has not been asked for."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
