"""How long `ffkv` takes to start where no tensor is needed."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Arm, Row

COMMANDS = (["--help"], ["triggers", "--help"], ["check", "--help"], ["recover"], ["settings", "--help"])


def ffkv(scratch: Path) -> Callable:
    """The slowest of some commands, each from the start of its process to the end."""
    program, folder = Path(sys.executable).parent / "ffkv", scratch / "nothing"
    folder.mkdir(exist_ok=True)

    def seconds(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program, *command], check=True, cwd=folder, stdout=subprocess.DEVNULL, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds(["--help"])  # files are in the page cache after that
    return lambda: ("", {"slowest": max(map(seconds, COMMANDS))})


ROWS = [
    Row(
        "start of commands without tensors",
        ", ".join(f"ffkv {' '.join(command)}" for command in COMMANDS),
        {"ffkv": Arm(f"{__name__}:ffkv")},
        lambda samples: samples["ffkv"].extra["slowest"],
        0.3,
        "CPU seconds, the slowest of them",
    )
]
