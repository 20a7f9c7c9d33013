"""The whole default run, beside the work in it: what Snakemake and the start of processes add."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.measure import ROOT, Arm, Row, Sample
from ffkv.plan.costs import costs
from ffkv.plan.machine import libraries
from ffkv.plan.shape import shape_of_run
from ffkv.plan.text import text_of_run
from ffkv.plan.work import Run
from ffkv.process.processes import is_step
from ffkv.settings.runs import resolve
from ffkv.settings.yaml_file import read_settings

CORES = 2
PAUSE = 0.1  # seconds between two looks at the processes


def ffkv(scratch: Path) -> Callable:
    """`snakemake --cores 2` with config.yaml, from nothing to the report."""
    folder = scratch / f"run-{time.time_ns()}"
    folder.mkdir()
    command = [Path(sys.executable).parent / "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", folder]
    command += ["--configfile", ROOT / "config.yaml", "--workflow-profile", "none", "--cores", str(CORES)]

    def work() -> tuple[str, dict[str, float]]:
        process, begin, busy = subprocess.Popen(command), time.monotonic(), 0.0
        last = begin
        while process.poll() is None:
            time.sleep(PAUSE)
            now = time.monotonic()
            busy += (now - last) * any(is_step(child) for child in psutil.Process().children(recursive=True))
            last = now
        if process.returncode:
            raise RuntimeError(f"snakemake ended with {process.returncode}")
        return "", {"took": last - begin, "busy": busy, "starts": start_seconds(), **jobs_of(folder)}

    return work


def start_seconds() -> float:
    """CPU seconds that the steps of the default run take to import their libraries, all together."""
    name, settings = next(iter(resolve(read_settings(ROOT / "config.yaml")).items()))
    shape = shape_of_run(settings)
    text = text_of_run(name, settings, shape, {"train": 10**6, "validation": 10**5})  # how long it is does not matter
    found = libraries()
    return sum(
        cost.jobs * found[cost.libraries].seconds for cost in costs(Run(settings, shape, **text)) if cost.libraries
    )


def jobs_of(folder: Path) -> dict[str, float]:
    """How many jobs a run had, and their CPU seconds."""
    seconds = []
    for path in folder.glob("results/*/benchmarks/**/*.tsv"):
        names, values = (line.split("\t") for line in path.read_text().splitlines()[:2])
        seconds.append(float(dict(zip(names, values))["cpu_time"]))
    return {"jobs": len(seconds), "jobs_cpu": sum(seconds)}


def added(samples: dict[str, Sample]) -> float:
    """Share of the run's time in which no step is at work, or steps only start (spread over the cores)."""
    of = samples["ffkv"].extra
    return (of["took"] - of["busy"] + of["starts"] / CORES) / of["took"]


ROWS = [
    Row(
        "the default run",
        f"config.yaml, {CORES} cores",
        {"ffkv": Arm(f"{__name__}:ffkv")},
        added,
        0.25,
        "of the time is orchestration and process start-up",
        rounds=1,
        note="from nothing to the report, its own model trained",
    )
]
