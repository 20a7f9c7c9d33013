"""One start of Snakemake: which jobs began, which ended, and how to kill it."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
from support import ROOT

# Number and message of a job. The message is the same in every attempt, and no other job has it.
JOB = re.compile(r"^Job (\d+): (.+)$", re.MULTILINE)


def began_in(log: str) -> dict[str, str]:
    """The jobs that were started: number to message."""
    return dict(JOB.findall(log))


def ended_in(log: str) -> set[str]:
    """Those of them that Snakemake saw ending well."""
    began = began_in(log)
    return {began[job] for job in re.findall(r"Finished jobid: (\d+)", log) if job in began}


class Attempt:
    """A running Snakemake, in a session of its own, and its log."""

    def __init__(self, directory: Path, configfile: Path, number: int):
        self.log = directory / f"attempt_{number}.log"
        command = ["snakemake", "--snakefile", ROOT / "Snakefile", "--directory", directory, "--configfile", configfile]
        command += ["--workflow-profile", ROOT / "profiles/default", "--cores", "2", "--max-threads", "1"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )

    @property
    def running(self) -> bool:
        """Whether Snakemake itself is alive."""
        return self.process.poll() is None

    def began(self) -> dict[str, str]:
        """The jobs that were started: number to message."""
        return began_in(self.log.read_text())

    def ended(self) -> set[str]:
        """Those of them that Snakemake saw ending well."""
        return ended_in(self.log.read_text())

    def under_way(self) -> set[str]:
        """Those that began and did not end."""
        return set(self.began().values()) - self.ended()

    def steps(self) -> list[psutil.Process]:
        """The running `ffkv` processes of its jobs."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True) if self.running else ():
            try:
                arguments = process.cmdline()
            except psutil.Error:
                continue
            if len(arguments) > 1 and arguments[1].endswith("/ffkv"):
                found.append(process)
        return found

    def kill_snakemake(self) -> None:
        """Snakemake alone: its jobs live on."""
        self.process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        """Snakemake and everything that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_up_to(self, seconds: float) -> None:
        """Waits, at most until Snakemake ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
