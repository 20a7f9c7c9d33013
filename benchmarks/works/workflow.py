"""The whole default run, beside the work in it: what Snakemake and the start of processes add."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.measure import ROOT, Arm, Row, Sample
from ffkv.plan.growth import RULES
from ffkv.process.processes import is_step

CORES = 2
BENCHMARKS = "results/*/benchmarks/**/*.tsv"
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
        return "", {"took": last - begin, "busy": busy, "starts": start_seconds(folder), **jobs_of(folder)}

    return work


def start_seconds(folder: Path) -> float:
    """CPU seconds that the steps of a run take to import their libraries, all together."""
    code = "import json; from ffkv.plan.jobs import import_libraries; print(json.dumps(import_libraries()))"
    found = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    rules = [path.relative_to(folder).parts[3].removesuffix(".tsv") for path in folder.glob(BENCHMARKS)]
    return sum(found[RULES[rule].libraries][0] for rule in rules if rule in RULES)


def jobs_of(folder: Path) -> dict[str, float]:
    """How many jobs a run had, and their CPU seconds."""
    seconds = []
    for path in folder.glob(BENCHMARKS):
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
