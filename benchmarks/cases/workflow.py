"""A whole run: the share of its time that Snakemake and the start of processes take."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.measure import ROOT, Comparison, Contender, Measurement, Work
from ffkv.workflow.jobs import libraries_of
from ffkv.workflow.recover import is_step

CORES = 2
PAUSE = 0.1  # seconds between two looks at the processes
# Prints the CPU seconds of the imports of a job, by kind of job, and their bytes.
IMPORT = "import json; from ffkv.workflow.jobs import import_libraries; print(json.dumps(import_libraries()))"


def ffkv(scratch: Path) -> Work:
    """`snakemake --cores 2` with configs/embedded.yaml, from nothing to the report."""
    folder = scratch / f"run-{time.time_ns()}"
    folder.mkdir()
    program = Path(sys.executable).parent / "snakemake"
    command: list[str | Path] = [program, "--snakefile", ROOT / "Snakefile", "--directory", folder]
    command += ["--configfile", ROOT / "configs/embedded.yaml", "--workflow-profile", "none", "--cores", str(CORES)]

    def work() -> dict[str, float]:
        process, begin, busy = subprocess.Popen(command), time.monotonic(), 0.0
        last = begin
        while process.poll() is None:
            time.sleep(PAUSE)
            now = time.monotonic()
            busy += (now - last) * any(is_step(child) for child in psutil.Process().children(recursive=True))
            last = now
        if process.returncode:
            raise RuntimeError(f"snakemake ended with {process.returncode}")
        return {"duration": last - begin, "busy": busy, **count_jobs(folder)}

    return work


def count_jobs(folder: Path) -> dict[str, float]:
    """Number of jobs of a run, their CPU seconds, and the CPU seconds of all their imports."""
    imports = json.loads(subprocess.run([sys.executable, "-c", IMPORT], stdout=subprocess.PIPE, check=True).stdout)
    counts = {"jobs": 0.0, "jobs_cpu": 0.0, "starts": 0.0}
    for path in folder.glob("results/*/benchmarks/**/*.tsv"):
        names, values = (line.split("\t") for line in path.read_text().splitlines()[:2])
        rule = path.relative_to(folder).parts[3].removesuffix(".tsv")
        counts["jobs"] += 1
        counts["jobs_cpu"] += float(dict(zip(names, values))["cpu_time"])
        counts["starts"] += imports[libraries_of(rule)][0]
    return counts


def added_share(measurements: dict[str, Measurement]) -> float:
    """Share of the run's time in which no step works, or steps only start (their start is spread over the cores)."""
    extra = measurements["ffkv"].extra
    return (extra["duration"] - extra["busy"] + extra["starts"] / CORES) / extra["duration"]


COMPARISONS = [
    Comparison(
        "a whole run",
        f"configs/embedded.yaml, {CORES} cores",
        {"ffkv": Contender(f"{__name__}:ffkv")},
        added_share,
        0.25,
        "of the time is orchestration and process start-up",
        rounds=1,
        note="from nothing to the report, with the training of its own model",
    )
]
