"""Time that `ffkv` takes to start where no tensor is needed."""

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Comparison, Contender, Work, run_command

COMMANDS = ("--help", "triggers --help", "check --help", "recover", "settings --help")


def ffkv(scratch: Path) -> Work:
    """The slowest of some commands, each from the start of its process to its end."""
    program, folder = Path(sys.executable).parent / "ffkv", scratch / "nothing"
    (folder / ".snakemake").mkdir(parents=True, exist_ok=True)  # `recover` refuses a folder without it

    def measure(command: str) -> float:
        return run_command(program, *command.split(), cwd=folder, stdout=subprocess.DEVNULL)

    measure("--help")  # then the files are in the page cache
    return lambda: {"slowest": max(map(measure, COMMANDS))}


COMPARISONS = [
    Comparison(
        "start of commands without tensors",
        ", ".join(f"ffkv {command}" for command in COMMANDS),
        {"ffkv": Contender(f"{__name__}:ffkv")},
        lambda measurements: measurements["ffkv"].extra["slowest"],
        0.3,
        "CPU seconds for the slowest command",
    )
]
