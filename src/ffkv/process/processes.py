"""What a process of this host is to the workflow: Snakemake itself, a step, one whose Snakemake is gone."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil


def is_snakemake(process: psutil.Process) -> bool:
    """Whether it runs a whole workflow, and not a single job inside SLURM."""
    arguments = _arguments(process)
    python = bool(arguments) and Path(arguments[0]).name.startswith(("python", "snakemake"))
    return python and "snakemake" in {Path(name).name for name in arguments[:4]} and "--mode" not in arguments


def is_step(process: psutil.Process) -> bool:
    """A job's shell, or the `ffkv` that it became."""
    arguments = _arguments(process)
    if len(arguments) > 2 and arguments[1] == "-c":
        return "set -euo pipefail" in arguments[2] and "ffkv " in arguments[2]  # behind what activates conda
    writes = not {"--output", "--patterns"}.isdisjoint(arguments)
    return writes and "ffkv" in {Path(argument).name for argument in arguments[:2]}


def is_orphan(process: psutil.Process) -> bool:
    """Whether the parent is gone: the one that stands for it then is of another session, which this process did not begin."""
    parent, session = process.parent(), os.getsid(process.pid)
    return parent is None or parent.pid == 1 or session not in (process.pid, os.getsid(parent.pid))


def works_in(process: psutil.Process, folder: Path) -> bool:
    """Whether the folder is where it works."""
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
    """Its command in one line; empty where it is over."""
    return " ".join(" ".join(_arguments(process)).split())


def runs(process: psutil.Process) -> bool:
    """False also for one that is over and that nobody has asked about yet, as in containers."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal(send: Callable[[], None]) -> None:
    """Calls what ends a process, which may be over already."""
    try:
        send()
    except psutil.NoSuchProcess:
        return
