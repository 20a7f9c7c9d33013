"""The plan: what is left to do, and what a trial run says that it takes."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ffkv.plan.devices import DevicePlan, gpu_sizes, plan_devices, warn_of_slow_devices
from ffkv.plan.growth import Amounts, count_sampled, measure_amounts
from ffkv.plan.hub import Download, find_downloads, resolve_commits, warn_of_cache
from ffkv.plan.shape import Shape, load_model_form, measure_shape
from ffkv.plan.text import Split, measure_text
from ffkv.plan.trial import Measured, Tried, try_out
from ffkv.process.memory import free_memory
from ffkv.settings import EMBEDDED, Comparison, Settings
from ffkv.terminal import in_bytes
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
    jobs, tried = read_jobs(snakemake), dict[str, Tried]()
    planned = {
        run: _plan_run(run, settings, _as_trained(settings, runs, jobs), jobs, cores, tokens, gpus, tried)
        for run, settings in runs.items()
    }
    over = {
        name: _compare(name, comparison, jobs, runs[comparison.runs[0]], [planned[run] for run in comparison.runs])
        for name, comparison in comparisons.items()
    }
    rows = [row for each in planned.values() for row in each.rows] + [row for each in over.values() for row in each]
    todo = [row for row in rows if not row.done]
    downloads = [download for each in planned.values() for download in each.downloads]
    total = {
        "seconds": sum(row.seconds for row in todo),
        "cores": cores,
        "written": sum(row.written for row in todo),
        "memory": max((row.memory for row in todo), default=0.0),
        "disk_left": shutil.disk_usage(RESULTS if RESULTS.exists() else Path()).free,
        "memory_left": free_memory(),
    }
    slow = [warning for run, each in planned.items() for warning in warn_of_slow_devices(each.device, run)]
    return {
        "runs": {run: each.as_dict() for run, each in planned.items()},
        "comparisons": {name: [row._asdict() for row in rows] for name, rows in over.items()},
        "total": total,
        "warnings": [*slow, *warn_of_cache(downloads), *find_warnings(todo, total)],
        "not_estimated": _name_unplanned(jobs, planned),
    }


class Planned(NamedTuple):
    """The plan of a run.

    Attributes:
        shape: the shape of its model.
        text: the sizes of its splits, by name.
        downloads: what it reads of the hub.
        device: what a job that runs the model needs of GPUs.
        prefixes: number of sampled prefixes.
        rows: what is left to do, per rule.
    """

    shape: Shape
    text: dict[str, Split]
    downloads: list[Download]
    device: DevicePlan
    prefixes: int
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        shape = self.shape._asdict()
        return {
            "shape": shape | {"layers": len(self.shape.memories), "all_memories": sum(self.shape.memories)},
            "text": {name: split._asdict() for name, split in self.text.items()},
            "downloads": [one._asdict() for one in self.downloads],
            "device": self.device._asdict(),
            "rules": [row._asdict() for row in self.rows],
        }


def _plan_run(
    run: str,
    given: Settings,
    settings: Settings,
    jobs: list[Job],
    cores: int,
    tokens: Mapping[str, int],
    gpus: Sequence[float],
    tried: dict[str, Tried],
) -> Planned:
    """Plans a run with settings that are `given`, or those of `_as_trained`. `tried`: the trials so far; runs share them."""
    rules: dict[str, list[Job]] = {}
    for job in jobs:
        if job.run == run:
            rules.setdefault(job.rule, []).append(job)
    written = {Path(job.outputs[0]).stem: Path(job.outputs[0]) for job in rules["corpus"] if job.done}
    commits = resolve_commits(settings, rules.get("resolve_commit", []))
    form = load_model_form(settings, commits.get("model"))
    shape = measure_shape(form, settings.model.second_matrix)
    splits, sentences = measure_text(settings, form, written, tokens, commits)
    device = plan_devices(form, settings, shape, gpus or gpu_sizes())
    downloads = find_downloads(settings, commits, written)
    rows = [Row(run, rule, 0, True) for rule in rules]
    if not all(job.done for of_rule in rules.values() for job in of_rule):
        trained = settings is given and all(job.done for job in rules.get("train", []))
        amounts = measure_amounts(settings, shape, splits)
        model = settings.model.model_copy(update={"checkpoint": "", "revision": ""})  # revisions share a trial
        same = f"{shape} {trained} {written} {settings.model_copy(update={'model': model, 'seed': 0})!r}"
        if same not in tried:
            tried[same] = try_out(settings, shape, splits, sentences, cores, trained)
        rows = [_row(rules[rule], amounts[rule], tried[same].get(rule), cores) for rule in amounts if rule in rules]
    return Planned(shape, splits, downloads, device, count_sampled(settings, splits["validation"]), rows)


def _as_trained(settings: Settings, runs: Mapping[str, Settings], jobs: list[Job]) -> Settings:
    """The settings of a run; if another run has yet to train its checkpoint, with the model of that run."""
    checkpoint = Path(settings.model.checkpoint)
    for job in jobs:
        if job.rule == "train" and not job.done and {checkpoint, *checkpoint.parents} & {*map(Path, job.outputs)}:
            model = settings.model.model_copy(update={"checkpoint": EMBEDDED})
            return settings.model_copy(update={"model": model, "embedded": runs[job.run].embedded})
    return settings


def _name_unplanned(jobs: list[Job], planned: dict[str, Planned]) -> list[str]:
    """The rules that are left to do and that nothing measures: the agreement of annotators."""
    known = {(run, row.rule) for run, each in planned.items() for row in each.rows}
    left = {job.rule for job in jobs if not job.done and not job.comparison and (job.run, job.rule) not in known}
    return sorted(left)


def _compare(name: str, comparison: Comparison, jobs: list[Job], first: Settings, planned: list[Planned]) -> list[Row]:
    """What is left to do of a comparison. `first`: the settings of its first run."""
    done = {job.rule: job.done for job in jobs if job.comparison == name}
    if all(done.values()):
        return [Row(name, rule, 0, True) for rule in done]
    from ffkv.plan.comparisons import measure_comparison  # draws, and plans without comparisons do not

    models, rows = [(each.shape, each.prefixes) for each in planned], []
    for rule, cost in measure_comparison(name, comparison, first.triggers.per_key, models).items():
        start, base = import_libraries()[libraries_of(rule)]
        left = Row(name, rule, 1, False, 1, 0.0, cost.written, base + cost.memory, start + cost.seconds)
        rows.append(Row(name, rule, 0, True) if done[rule] else left)
    return rows


def _row(jobs: list[Job], amounts: Amounts, tried: tuple[Amounts, list[Measured]] | None, cores: int) -> Row:
    """What is left to do of one rule: the trial's costs, as many times as there is more to do."""
    rule, count, todo = jobs[0].rule, len(jobs), sum(not job.done for job in jobs)
    if not todo or not tried:
        return Row(jobs[0].run, rule, todo, not todo)
    small, measured = tried
    # How many times as much the run has to do.
    pairs = (amounts.work, small.work), (amounts.once, small.once), (amounts.rows, small.rows)
    work, once, rows = (most / max(least, 1e-9) if most else 1.0 for most, least in pairs)
    start, base = import_libraries()[libraries_of(rule)]
    constant, working = _split_seconds(measured, amounts.work > 0)
    text = amounts.text / (jobs[0].threads if rule == "corpus" else 1)  # its threads are processes
    seconds = start + constant * max(1.0, once) + (working * work + text) / count
    rest = max(sum(one.written for one in measured) - small.stored, 0.0)
    at_once = max(1, min(cores // jobs[0].threads, todo))
    return Row(
        jobs[0].run,
        rule,
        todo,
        False,
        at_once,
        tokens=amounts.tokens * todo / count,
        written=(amounts.stored + rest * rows) * todo / count,
        memory=base + max(one.memory for one in measured) + max(amounts.memory - small.memory, 0.0),
        seconds=-(-todo // at_once) * seconds,
    )


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
