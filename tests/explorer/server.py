"""An explorer as a process of its own."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


class Process:
    """A running explorer.

    Attributes:
        address: what it printed, with the token.
        base: the same without path and token.
        line: the whole line.
        process: the process.
    """

    def __init__(self, process: subprocess.Popen):
        self.process = process
        self.line = process.stdout.readline()
        self.address = self.line.split()[0] if self.line else ""
        self.base = self.address.split("/?")[0]


@contextlib.contextmanager
def running(folder: Path, *arguments: str, results: str = "results/tiny") -> Iterator[Process]:
    """Starts `ffkv explore` in a folder; ends it with Ctrl-C."""
    command = [sys.executable, "-m", "ffkv", "explore", results, "--no-browser", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    try:
        yield Process(process)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.stdout.close()
        process.stderr.close()
