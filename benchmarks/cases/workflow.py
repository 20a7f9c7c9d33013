"""The whole default run: the share of its time that Snakemake and the start of processes take."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.measure import ROOT, Comparison, Contender, Measurement, Work, run_command
from ffkv.process.processes import is_step

CORES = 2
PAUSE = 0.1  # seconds between two looks at the processes
# Imports of the jobs of some rules. All other rules load a model.
LOADING = "import ffkv.activations.step, transformers.models.gpt2.modeling_gpt2"
IMPORTS = {
    "": ("write_settings",),
    "import ffkv.keys.step": ("merge_triggers", "merge_sampled_prefixes", "keys_patterns", "keys_summarize", "report"),
    "import ffkv.values.step, ffkv.composition.step": (
        *("values_project", "values_summarize"),
        *("composition_measure", "composition_summarize", "refinement_measure", "refinement_summarize"),
    ),
}


def ffkv(scratch: Path) -> Work:
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
        return "", {"duration": last - begin, "busy": busy, **count_jobs(folder)}

    return work


def count_jobs(folder: Path) -> dict[str, float]:
    """Number of jobs of a run, their CPU seconds, and the CPU seconds of all their imports."""
    starts = {rule: run_command(sys.executable, "-c", code) for code, rules in IMPORTS.items() for rule in rules}
    loading = run_command(sys.executable, "-c", LOADING)
    jobs = []
    for path in folder.glob("results/*/benchmarks/**/*.tsv"):
        names, values = (line.split("\t") for line in path.read_text().splitlines()[:2])
        rule = path.relative_to(folder).with_suffix("").parts[3]
        jobs.append((float(dict(zip(names, values))["cpu_time"]), starts.get(rule, loading)))
    return {"jobs": len(jobs), "jobs_cpu": sum(cpu for cpu, _ in jobs), "starts": sum(start for _, start in jobs)}


def added_share(measurements: dict[str, Measurement]) -> float:
    """Share of the run's time in which no step works, or steps only start (their start is spread over the cores)."""
    extra = measurements["ffkv"].extra
    return (extra["duration"] - extra["busy"] + extra["starts"] / CORES) / extra["duration"]


COMPARISONS = [
    Comparison(
        "the default run",
        f"config.yaml, {CORES} cores",
        {"ffkv": Contender(f"{__name__}:ffkv")},
        added_share,
        0.25,
        "of the time is orchestration and process start-up",
        rounds=1,
        note="from nothing to the report, with the training of its own model",
    )
]
