"""The plan: what is left to do, and what a trial run says that it takes."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ffkv.architectures.coverage import cores as available_cores
from ffkv.plan.growth import RULES, Growth, measure_amounts
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
        layers = {"layers": len(shape.memories), "all_memories": sum(shape.memories)}
        plans[run] = {
            "shape": shape._asdict() | layers,
            "text": {name: split._asdict() for name, split in splits.items()},
        }
        rules = {rule: [job for job in mine if job.rule == rule] for rule in [job.rule for job in mine]}
        if all(job.done for job in mine):
            rows += [Row(run, rule, 0, True) for rule in rules]
            continue
        trained = all(job.done for job in rules.get("train", []))
        model = settings.model.model_copy(update={"checkpoint": "", "revision": ""})  # revisions share a trial
        same = f"{shape} {trained} {done} {settings.model_copy(update={'model': model, 'seed': 0})!r}"
        if same not in trials:
            trials[same] = try_out(settings, shape, splits, (form, sentences), cores, trained)
        amounts = measure_amounts(settings, shape, splits, trials[same].signed)
        order = [*RULES, *rules]
        rows += [_row(rules[rule], amounts, trials[same], libraries, cores) for rule in sorted(rules, key=order.index)]
    todo = [row for row in rows if not row.done]
    total = {"seconds": sum(row.seconds for row in todo), "cores": cores}
    total |= {"written": sum(row.written for row in todo), "memory": max((row.memory for row in todo), default=0.0)}
    place = RESULTS if RESULTS.exists() else Path()
    total |= {"disk_left": shutil.disk_usage(place).free, "memory_left": free_memory()}
    for run, plan in plans.items():
        plan["rules"] = [row._asdict() for row in rows if row.run == run]
    return {"runs": plans, "total": total, "warnings": find_warnings(todo, total)}


def _row(
    jobs: list[Job], amounts: dict[str, float], trial: Trial, libraries: dict[str, tuple[float, float]], cores: int
) -> Row:
    """What is left to do of one rule: the trial's costs, as many times as there is more to do."""
    run, rule, count, todo = jobs[0].run, jobs[0].rule, len(jobs), sum(not job.done for job in jobs)
    growth, measured, small = RULES.get(rule, Growth()), trial.jobs.get(rule, []), trial.amounts
    if not todo or not measured:
        return Row(run, rule, todo, not todo)

    def ratio(amount: str) -> float:
        return amounts[amount] / max(small[amount], 1e-9) if amount else 1.0

    start, base = libraries[growth.libraries] if rule in RULES else (0.0, 0.0)
    constant, work = _split_seconds(measured, bool(growth.work))
    seconds = start + constant * max(1.0, ratio(growth.once)) + work * ratio(growth.work) / count
    seconds += amounts.get(f"{rule} text", 0.0) / count  # the trial reads little text, by another tokenizer
    rest = max(sum(one.written for one in measured) - small.get(growth.stored, 0.0), 0.0)
    written = (amounts.get(growth.stored, 0.0) + rest * ratio(growth.rows)) * todo / count
    memory = base + max(one.memory for one in measured)
    memory += max(amounts.get(growth.memory, 0.0) - small.get(growth.memory, 0.0), 0.0)
    at_once = max(1, min(cores // jobs[0].threads, todo))
    tokens = amounts.get(f"{rule} tokens", 0.0) * todo / count
    return Row(run, rule, todo, False, at_once, tokens, written, memory, -(-todo // at_once) * seconds)


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


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Free bytes of memory. A limit of the process's control group (version 2) counts as memory."""
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (float((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return max(min(free, limit - used + float(cached)), 0.0)


def in_bytes(size: float) -> str:
    """A size for a person: 1.2 GB."""
    unit, name = next(
        ((1000.0**n, name) for n, name in ((4, "TB"), (3, "GB"), (2, "MB")) if size >= 1000**n), (1e3, "kB")
    )
    return f"{size / unit:.3g} {name}"


def as_text(plan: dict[str, Any]) -> str:
    """The plan for a person: a table per run, and the totals."""
    lines, total = [], plan["total"]
    for run, found in plan["runs"].items():
        lines.append(
            "Run {run}: {architecture}, {parameters:,} parameters, {layers} layers, d = {width:,}, {all_memories:,} memories, "
            "|V| = {vocabulary:,}, {dtype}".format(run=run, **found["shape"])
        )
        for name, split in found["text"].items():
            lines.append("  {}: {tokens:,.0f} tokens in {sentences:,.0f} sentences ({source})".format(name, **split))
        cells = [("rule", "jobs", "tokens", "disk", "memory per job", "time"), *map(_cells, found["rules"])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  ".join(["", line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in cells]
    time, sizes = (
        duration(total["seconds"]),
        {name: in_bytes(size) for name, size in total.items() if name != "seconds"},
    )
    lines.append(f"Time: up to about {time} on {total['cores']} cores, with nothing else running.")
    lines.append("Disk: {written} to be written, {disk_left} free.".format(**sizes))
    return "\n".join([*lines, "Memory: up to {memory} per job, {memory_left} free.".format(**sizes)])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["done"]:
        return row["rule"], "", "", "", "", "done"
    tokens, sizes = f"{row['tokens']:,.0f}" if row["tokens"] else "", map(in_bytes, (row["written"], row["memory"]))
    return row["rule"], str(row["jobs"]), tokens, *sizes, duration(row["seconds"])
