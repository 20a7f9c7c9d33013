"""Runs on the test cluster: how they are started, disturbed and looked at."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from support import ROOT

from tests.workflow.slurm.cluster import Job

SHARDS = ("--config", "shards=3", "layer_groups=1")  # few jobs: each takes 12 s of a processor to begin
TARGETS = ("results/tiny/triggers.h5", "results/tiny/sampled_prefixes.h5")  # what comes of the shards
# So that the last digits agree with the local run's, and that a test need not wait for the questions of a busy cluster.
OPTIONS = ("--max-threads", "1", "--slurm-init-seconds-before-status-checks", "3")


def from_shards_on(undisturbed: Path, folder: Path) -> Path:
    """A copy of the finished run whose corpus passes are still to be done."""
    copy = shutil.copytree(undisturbed, folder / "copy")
    results = copy / "results/tiny"
    for path in (*results.glob("triggers*"), *results.glob("sampled_prefixes*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return copy


def profile(folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of the profile with changes in its text, as the page says."""
    shutil.copytree(ROOT / "profiles/slurm", folder / "profile")
    path = folder / "profile/profile.yaml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return folder / "profile"


def submit(slurm, folder: Path, *arguments: str, profile=ROOT / "profiles/slurm", config=ROOT / "configs/tiny.yaml"):
    """A snakemake of the tiny run in a folder, its output in a file there."""
    command = ["env", "--default-signal=INT", "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", folder]
    command += ["--configfile", config, *SHARDS, "--workflow-profile", profile, *OPTIONS, *arguments]
    environment = {**os.environ, **slurm.environment, "HF_HUB_OFFLINE": "1"}
    with (folder / "output").open("a") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen, folder: Path) -> None:
    assert process.wait(600) == 0, (folder / "output").read_text()[-8000:]


def step(slurm, command: str) -> psutil.Process | None:
    """The process inside a job whose command line matches, once it is at work."""
    for process in slurm.processes():
        with contextlib.suppress(psutil.Error):
            if re.search(rf"bin/ffkv {command}", " ".join(process.cmdline())):
                return process
    return None


def disturb(slurm, process: subprocess.Popen, disturbances: dict[str, Callable[[psutil.Process], None]]) -> None:
    """Waits for steps by their command lines, and disturbs each as soon as it is at work."""
    waiting = dict(disturbances)
    while waiting:
        assert process.poll() is None, f"snakemake ended before {list(waiting)}"
        for command in list(waiting):
            if found := step(slurm, command):
                waiting.pop(command)(found)
        time.sleep(0.3)


def jobs_of(slurm, folder: Path, rule: str = "") -> list[Job]:
    """The jobs that the snakemakes of a folder submitted, in their order: all, or a rule's by its comment."""
    runs = re.findall(r"SLURM run ID: (\S+)", (folder / "output").read_text())
    return [job for job in slurm.jobs() if job.name in runs and rule in ("", job.comment)]


def lost(slurm, folder: Path, rule: str) -> float:
    """Seconds between the first two submissions of a job: its lost work, and the time until that was noticed."""
    first, second, *_ = jobs_of(slurm, folder, rule)
    return second.submitted - first.submitted
