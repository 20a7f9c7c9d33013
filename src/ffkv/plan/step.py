"""The plan: what is left to do, and what a trial run says that it takes."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ffkv.architectures.coverage import cores as available_cores
from ffkv.plan.growth import RULES, Growth, Planned, measure_amounts
from ffkv.plan.jobs import Job, ask_snakemake, import_libraries, read_jobs
from ffkv.plan.shape import load_model_form, measure_shape
from ffkv.plan.text import measure_text
from ffkv.plan.trial import Measured, Trial, try_out
from ffkv.report.text import duration
from ffkv.settings.runs import resolve
from ffkv.settings.yaml_file import read_settings

RESULTS = Path("results")


class Row(NamedTuple):
    """What is left to do of a rule of a run.

    Attributes:
        run: name of the run.
        rule: name of the rule.
        jobs: number of its jobs that are not done.
        done: whether all its jobs are done.
        at_once: number of its jobs that run at the same time.
        tokens: tokens that the model reads.
        written: bytes of the outputs.
        memory: bytes of one job at its peak.
        job_seconds: seconds of one job.
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
    job_seconds: float = 0.0
    seconds: float = 0.0


def make_plan(configfile: Path, cores: int | None = None, tokens: dict[str, int] | None = None) -> dict[str, Any]:
    """Plans the runs of a settings file, in the working directory.

    Args:
        configfile: the settings file.
        cores: cores that snakemake may use; None for all.
        tokens: numbers of tokens by split, for a corpus whose size cannot be known.
    Returns:
        "runs": shape, text and rules of each run; "total": seconds and bytes of all, and what is free; "warnings".
    Raises:
        UserError: the settings, a checkpoint or a corpus cannot be read.
    """
    runs, cores = resolve(read_settings(configfile)), cores or available_cores()
    snakemake = ask_snakemake(configfile, cores)
    libraries = import_libraries()
    jobs = read_jobs(snakemake)
    rows: list[Row] = []
    plans: dict[str, Any] = {}
    trials: dict[str, Trial] = {}
    for run, settings in runs.items():
        mine = [job for job in jobs if job.run == run]
        done = {Path(job.outputs[0]).stem: Path(job.outputs[0]) for job in mine if job.rule == "corpus" and job.done}
        form = load_model_form(settings)
        shape = measure_shape(form, settings.model.second_matrix)
        splits, sentences = measure_text(settings, form, done, tokens or {})
        planned = Planned(settings, shape, splits)
        plans[run] = {"shape": shape._asdict(), "text": {name: asdict(split) for name, split in splits.items()}}
        rules = {rule: [job for job in mine if job.rule == rule] for rule in [job.rule for job in mine]}
        if all(job.done for job in mine):
            rows += [Row(run, rule, 0, True) for rule in rules]
            continue
        trained = all(job.done for job in rules.get("train", []))
        model = settings.model.model_copy(update={"checkpoint": "", "revision": ""})  # revisions share a trial
        same = f"{shape} {trained} {done} {settings.model_copy(update={'model': model, 'seed': 0})!r}"
        if same not in trials:
            trials[same] = try_out(planned, form, sentences, cores, trained)
        amounts = measure_amounts(planned, trials[same].signed)
        order = [*RULES, *rules]
        for rule in sorted(rules, key=order.index):
            text = sum(split.seconds for split in splits.values()) if rule in ("train", "corpus") else 0.0
            rows.append(_row(rules[rule], amounts, trials[same], libraries, cores, text))
    todo = [row for row in rows if not row.done]
    total = {
        "seconds": total_seconds([job for job in jobs if not job.done], rows, cores),
        "cores": cores,
        "written": sum(row.written for row in todo),
        "disk_left": float(shutil.disk_usage(RESULTS if RESULTS.exists() else Path()).free),
        "memory": max((row.memory for row in todo), default=0.0),
        "memory_left": free_memory(),
    }
    for run, plan in plans.items():
        plan["rules"] = [row._asdict() for row in rows if row.run == run]
    return {"runs": plans, "total": total, "warnings": find_warnings(todo, total)}


def _row(
    jobs: list[Job],
    amounts: dict[str, float],
    trial: Trial,
    libraries: dict[bool, tuple[float, float]],
    cores: int,
    text_seconds: float,
) -> Row:
    """What is left to do of one rule: the trial's costs, as many times as there is more to do."""
    run, rule, count, todo = jobs[0].run, jobs[0].rule, len(jobs), sum(not job.done for job in jobs)
    growth, measured, small = RULES.get(rule, Growth()), trial.jobs.get(rule, []), trial.amounts
    if not todo or not measured:
        return Row(run, rule, todo, not todo)

    def ratio(amount: str) -> float:
        return amounts[amount] / max(small[amount], 1e-9) if amount else 1.0

    start, base = libraries[growth.model]
    constant, work = _split_seconds(measured, bool(growth.work))
    seconds = start + constant * max(1.0, ratio(growth.once)) + work * ratio(growth.work) / count
    seconds += text_seconds / count  # the text of the trial is little and of another tokenizer
    rest = max(sum(one.written for one in measured) - small.get(growth.stored, 0.0), 0.0)
    written = (amounts.get(growth.stored, 0.0) + rest * ratio(growth.rows)) * todo / count
    memory = base + max(one.memory for one in measured)
    memory += max(amounts.get(growth.memory, 0.0) - small.get(growth.memory, 0.0), 0.0)
    at_once = max(1, min(cores // jobs[0].threads, todo))
    tokens = amounts.get(f"{rule} tokens", 0.0) * todo / count
    return Row(run, rule, todo, False, at_once, tokens, written, memory, seconds, -(-todo // at_once) * seconds)


def _split_seconds(measured: list[Measured], grows: bool) -> tuple[float, float]:
    """The constant seconds of each job of the trial, and the seconds of work of all.

    Work is done while the progress bar is open. Of a command without a bar, the job that has no layers does none.
    """
    if not grows:
        return max(one.seconds for one in measured), 0.0
    if all(one.working is not None for one in measured):
        return max(one.seconds - (one.working or 0) for one in measured), sum(one.working or 0 for one in measured)
    least = min(one.seconds for one in measured) if len(measured) > 1 else 0.0
    return least, sum(one.seconds - least for one in measured)


def total_seconds(jobs: list[Job], rows: list[Row], cores: int) -> float:
    """Seconds until the last of some jobs ends: each one starts as soon as its inputs exist and cores are free."""
    seconds = {(row.run, row.rule): row.job_seconds for row in rows}
    waiting, now, free = list(jobs), 0.0, cores
    running: list[tuple[float, Job]] = []
    while waiting or running:
        missing = {path for job in [*waiting, *(job for _, job in running)] for path in job.outputs}
        for job in [job for job in waiting if missing.isdisjoint(job.inputs)]:
            if min(job.threads, cores) <= free:
                free -= min(job.threads, cores)
                waiting.remove(job)
                running.append((now + seconds[job.run, job.rule], job))
        now, job = running.pop(min(range(len(running)), key=lambda place: running[place][0]))
        free += min(job.threads, cores)
    return now


def find_warnings(todo: list[Row], total: dict[str, float]) -> list[str]:
    """Says where the disk or the memory does not suffice for what is left to do."""
    warnings, disk, memory = [], total["disk_left"], total["memory_left"]
    if total["written"] > disk:
        warnings.append(
            f"Not enough disk space: the remaining files need up to {in_bytes(total['written'])}, but only "
            f"{in_bytes(disk)} is free in {RESULTS}/. Free some, or lower prefixes.count, triggers.per_key or shards."
        )
    for row in todo:
        each, free = f"{row.rule} ({row.run}) needs {in_bytes(row.memory)}", f"but only {in_bytes(memory)} is free"
        if row.memory > memory:
            remedy = (
                "Raise layer_groups, lower triggers.per_key or activations.block_sentences, or use a larger machine."
            )
            warnings.append(f"Not enough memory: a job of {each}, {free}. {remedy}")
        elif row.memory * row.at_once > memory:
            remedy = "Run snakemake with fewer --cores."
            warnings.append(f"Not enough memory for {row.at_once} jobs at a time: each of {each}, {free}. {remedy}")
    return warnings


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Free bytes of memory, or what the limit of the process's control group (version 2) leaves."""
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (float((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return max(min(free, limit - used + float(cached)), 0.0)


def in_bytes(size: float) -> str:
    """A size for a person: 1.2 GB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1e3:.0f} kB"


def as_text(plan: dict[str, Any]) -> str:
    """The plan for a person: a table per run, and the totals."""
    lines, total = [], plan["total"]
    for run, found in plan["runs"].items():
        shape = found["shape"]
        sizes = f"{shape['parameters']:,} parameters, {len(shape['memories'])} layers, d = {shape['width']:,}"
        memories = f"{sum(shape['memories']):,} memories, |V| = {shape['vocabulary']:,}"
        lines.append(f"Run {run}: {shape['architecture']}, {sizes}, {memories}, {shape['dtype']}")
        for name, split in found["text"].items():
            lines.append(
                f"  {name}: {split['tokens']:,.0f} tokens in {split['sentences']:,.0f} sentences ({split['source']})"
            )
        cells = [("rule", "jobs", "tokens", "disk", "memory per job", "time"), *map(_cells, found["rules"])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  ".join(["", line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in cells]
    time = f"Time: about {duration(total['seconds'])} on {total['cores']} cores, with nothing else running."
    disk = f"Disk: {in_bytes(total['written'])} to be written, {in_bytes(total['disk_left'])} free."
    memory = f"Memory: up to {in_bytes(total['memory'])} per job, {in_bytes(total['memory_left'])} free."
    return "\n".join([*lines, time, disk, memory])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["done"]:
        return row["rule"], "", "", "", "", "done"
    tokens, sizes = f"{row['tokens']:,.0f}" if row["tokens"] else "", map(in_bytes, (row["written"], row["memory"]))
    return row["rule"], str(row["jobs"]), tokens, *sizes, duration(row["seconds"])
