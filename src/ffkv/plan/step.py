"""The plan: what is left to do, and what a trial run says that it takes."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ffkv.base.settings import EMBEDDED, Comparison, Settings
from ffkv.base.system.memory import free_memory
from ffkv.base.terminal import in_bytes
from ffkv.plan.devices import warn_of_slow_devices
from ffkv.plan.growth import Amounts, measure_amounts, measure_comparison
from ffkv.plan.hub import warn_of_cache
from ffkv.plan.known import Known, as_trained, look
from ffkv.plan.trial import Measured, Tried, try_out
from ffkv.workflow.jobs import Job, import_libraries, libraries_of, read_jobs

RESULTS = Path("results")


class Row(NamedTuple):
    """What is left to do of a rule of a run or of a comparison.

    Attributes:
        run: name of the run, or of the comparison.
        rule: name of the rule.
        jobs: number of its jobs that are not done.
        done: whether all its jobs are done.
        at_once: number of its jobs that run at the same time.
        tokens: tokens that the model reads.
        written: bytes of the outputs.
        memory: bytes of one job at its peak.
        seconds: seconds of all jobs, with nothing else on the cores.
    """

    run: str
    rule: str
    jobs: int
    done: bool
    at_once: int = 1
    tokens: float = 0.0
    written: float = 0.0
    memory: float = 0.0
    seconds: float = 0.0


def make_plan(
    runs: Mapping[str, Settings],
    snakemake: subprocess.Popen,
    cores: int,
    tokens: Mapping[str, int] = MappingProxyType({}),
    gpus: Sequence[float] = (),
    comparisons: Mapping[str, Comparison] = MappingProxyType({}),
) -> dict[str, Any]:
    """Plans runs, in the working directory.

    Args:
        runs: the settings of each run.
        snakemake: the Snakemake that lists their jobs, see `ask_snakemake`.
        cores: cores that snakemake may use.
        tokens: numbers of tokens by split, for a corpus whose size cannot be known.
        gpus: bytes of each GPU that a job will have. If none is named, those of this machine.
        comparisons: the settings of each comparison.
    Returns:
        "runs": shape, text, downloads, GPU memory and rules of each run.
        "comparisons": rules of each comparison.
        "total": seconds and bytes of all, and what is free.
        "warnings": what is too small or too slow.
        "not_estimated": rules that are left to do and that are not among those.
    Raises:
        UserError: the settings, a checkpoint or a corpus cannot be read, or the hub does not give it.
    """
    jobs = read_jobs(snakemake)
    known, amounts = {}, {}
    for run, settings in runs.items():
        own = [job for job in jobs if job.run == run]
        known[run] = found = look(as_trained(settings, runs, jobs), own, tokens, gpus)
        amounts[run] = measure_amounts(found)
    over = {name: measure_comparison(one, name, [known[run] for run in one.runs]) for name, one in comparisons.items()}
    tried = _try_out(known, comparisons, jobs, cores)
    rows = {run: _rows(run, each, jobs, tried, cores) for run, each in amounts.items()}
    compared = {name: _rows(name, each, jobs, tried, cores) for name, each in over.items()}
    todo = [row for each in (*rows.values(), *compared.values()) for row in each if not row.done]
    total = {
        "seconds": sum(row.seconds for row in todo),
        "cores": cores,
        "written": sum(row.written for row in todo),
        "memory": max((row.memory for row in todo), default=0.0),
        "disk_left": shutil.disk_usage(RESULTS if RESULTS.exists() else Path()).free,
        "memory_left": free_memory(),
    }
    slow = [warning for run, found in known.items() for warning in warn_of_slow_devices(found.device, run)]
    downloads = warn_of_cache([download for found in known.values() for download in found.downloads])
    left_out = {job.rule for job in jobs if not job.done and job.run and job.rule not in amounts[job.run]}
    return {
        "runs": {
            run: {**found.as_dict(), "rules": [row._asdict() for row in rows[run]]} for run, found in known.items()
        },
        "comparisons": {name: [row._asdict() for row in each] for name, each in compared.items()},
        "total": total,
        "warnings": [*slow, *downloads, *find_warnings(todo, total)],
        "not_estimated": sorted(left_out),
    }


def _try_out(
    known: Mapping[str, Known], comparisons: Mapping[str, Comparison], jobs: Sequence[Job], cores: int
) -> Tried:
    """Tries what is left to do. Runs that are alike share a trial. A comparison is tried with its first run."""
    left = {job.of for job in jobs if not job.done}
    trained = all(job.done for job in jobs if job.rule == "train")
    alike: dict[str, list[str]] = {}
    for run, found in known.items():
        embedded = found.settings.model.checkpoint == EMBEDDED
        model = found.settings.model.model_copy(update={"checkpoint": "", "revision": ""})
        settings = found.settings.model_copy(update={"model": model, "seed": 0})
        sizes = [split[:4] for split in found.text.values()]
        alike.setdefault(repr((found.shape, sizes, embedded, settings)), []).append(run)
    tried: Tried = {}
    for runs in alike.values():
        first = {name: one for name, one in comparisons.items() if one.runs[0] in runs and name in left}
        if first or left.intersection(runs):
            for (of, rule), taken in try_out(known[runs[0]], cores, trained, first).items():
                tried |= {(name, rule): taken for name in ([of] if of else runs)}
    return tried


def _rows(of: str, amounts: Mapping[str, Amounts], jobs: Sequence[Job], tried: Tried, cores: int) -> list[Row]:
    """What is left to do of each rule of a run or of a comparison."""
    own = {rule: [job for job in jobs if job.of == of and job.rule == rule] for rule in amounts}
    return [_row(own[rule], each, tried.get((of, rule)), cores) for rule, each in amounts.items() if own[rule]]


def _row(jobs: list[Job], amounts: Amounts, tried: tuple[Amounts, list[Measured]] | None, cores: int) -> Row:
    """What is left to do of one rule: the trial's costs, as many times as there is more to do."""
    rule, count, todo = jobs[0].rule, len(jobs), sum(not job.done for job in jobs)
    if not todo or not tried:
        return Row(jobs[0].of, rule, todo, not todo)
    small, measured = tried
    # How many times as much the run has to do.
    pairs = (amounts.work, small.work), (amounts.once, small.once), (amounts.stored, small.stored)
    work, once, stored = (most / max(least, 1e-9) if most else 1.0 for most, least in pairs)
    start, base = import_libraries()[libraries_of(rule)]
    around, least, working = _split_seconds(measured, amounts.work > 0)
    text = amounts.text / (jobs[0].threads if rule == "corpus" else 1)  # its threads are processes
    seconds = start + around + least * once + (working * work + text) / count
    at_once = max(1, min(cores // jobs[0].threads, todo))
    return Row(
        jobs[0].of,
        rule,
        todo,
        done=False,
        at_once=at_once,
        tokens=amounts.tokens * todo / count,
        written=sum(one.written for one in measured) * stored * todo / count,
        memory=base + max(one.memory for one in measured) + max(amounts.memory - small.memory, 0.0),
        seconds=-(-todo // at_once) * seconds,
    )


def _split_seconds(measured: list[Measured], grows: bool) -> tuple[float, float, float]:
    """The seconds of each job of the trial around its progress bars and, whatever its layers are, with an open bar; and the
    seconds of work of all jobs.

    Work is done while a bar is open. What the job that has no layers takes with an open bar is not work.
    """
    if not grows:
        return max(one.seconds for one in measured), 0.0, 0.0
    working = [one.seconds if one.working is None else one.working for one in measured]
    least = min(working) if len(measured) > 1 else 0.0
    around = max(one.seconds - work for one, work in zip(measured, working, strict=True))
    return around, least, sum(working) - len(working) * least


def find_warnings(todo: list[Row], total: dict[str, float]) -> list[str]:
    """Says where the disk or the memory does not suffice for what is left to do."""
    warnings, disk, memory = [], total["disk_left"], total["memory_left"]
    if total["written"] > disk:
        warnings.append(
            f"Not enough disk space: the remaining files need up to {in_bytes(total['written'])}, but only "
            f"{in_bytes(disk)} is free in {RESULTS}/. Free some, or lower prefixes.count, triggers.per_key or shards."
        )
    for row in todo:
        if row.memory * row.at_once > memory:
            jobs, size = f"{row.at_once} x {row.rule} ({row.run})", in_bytes(row.memory)
            warnings.append(
                f"Not enough memory: {jobs} at the same time need {size} per job, but only {in_bytes(memory)} is free. "
                "Run snakemake with fewer --cores, or raise layer_groups, or lower triggers.per_key."
            )
    return warnings
