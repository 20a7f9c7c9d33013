"""The plan: what is left to do, and what a trial run says that it takes."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ffkv.plan.comparisons import measure_comparison
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
    jobs = read_jobs(snakemake)
    known = {run: _look(run, _as_trained(settings, runs, jobs), jobs, tokens, gpus) for run, settings in runs.items()}
    rows, over = _predict(runs, known, comparisons, jobs, cores)
    todo = [row for each in (*rows.values(), *over.values()) for row in each if not row.done]
    total = _add_up(todo, cores)
    slow = [warning for run, found in known.items() for warning in warn_of_slow_devices(found.device, run)]
    downloads = warn_of_cache([download for found in known.values() for download in found.downloads])
    planned = {(row.run, row.rule) for each in rows.values() for row in each}
    left_out = {job.rule for job in jobs if not job.done and job.run and (job.run, job.rule) not in planned}
    return {
        "runs": {run: found.as_dict(rows[run]) for run, found in known.items()},
        "comparisons": {name: [row._asdict() for row in each] for name, each in over.items()},
        "total": total,
        "warnings": [*slow, *downloads, *find_warnings(todo, total)],
        "not_estimated": sorted(left_out),
    }


class Known(NamedTuple):
    """What is known of a run before its trial.

    Attributes:
        settings: its settings, see `_as_trained`.
        shape: the shape of its model.
        text: the sizes of its splits, by name.
        sentences: some sentences of its corpus.
        downloads: what it reads of the hub.
        device: what a job that runs the model needs of GPUs.
        amounts: how much each rule has to do.
    """

    settings: Settings
    shape: Shape
    text: dict[str, Split]
    sentences: list[str]
    downloads: list[Download]
    device: DevicePlan
    amounts: dict[str, Amounts]

    @property
    def model(self) -> tuple[Shape, int]:
        """What a comparison needs to know: the shape of the model, and the number of sampled prefixes."""
        return self.shape, count_sampled(self.settings, self.text["validation"])

    def as_dict(self, rows: list[Row]) -> dict[str, Any]:
        """The plan as JSON has it."""
        shape = self.shape._asdict()
        return {
            "shape": shape | {"layers": len(self.shape.memories), "all_memories": sum(self.shape.memories)},
            "text": {name: split._asdict() for name, split in self.text.items()},
            "downloads": [one._asdict() for one in self.downloads],
            "device": self.device._asdict(),
            "rules": [row._asdict() for row in rows],
        }


def _predict(
    runs: Mapping[str, Settings],
    known: Mapping[str, Known],
    comparisons: Mapping[str, Comparison],
    jobs: list[Job],
    cores: int,
) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
    """What is left to do of each run, and of each comparison, which is tried with its first run."""
    rows: dict[str, list[Row]] = {}
    over: dict[str, list[Row]] = {}
    tried: dict[str, Tried] = {}
    for run, found in known.items():
        own = [job for job in jobs if job.run == run]
        first = {name: one for name, one in comparisons.items() if one.runs[0] == run}
        of = {name: [job for job in jobs if job.comparison == name] for name in first}
        left = {name: one for name, one in first.items() if not all(job.done for job in of[name])}
        taken: Tried = {}
        if left or not all(job.done for job in own):
            trained = found.settings is runs[run] and all(job.done for job in own if job.rule == "train")
            taken = _try_out(found, cores, trained, left, tried)
        rows[run] = _rows(own, found.amounts, taken, cores)
        for name, one in first.items():
            models = [known[each].model for each in one.runs]
            over[name] = _rows(
                of[name], measure_comparison(name, one, runs[run].triggers.per_key, models), taken, cores
            )
    return rows, over


def _add_up(todo: list[Row], cores: int) -> dict[str, float]:
    """Seconds and bytes of all that is left to do, and what is free."""
    return {
        "seconds": sum(row.seconds for row in todo),
        "cores": cores,
        "written": sum(row.written for row in todo),
        "memory": max((row.memory for row in todo), default=0.0),
        "disk_left": shutil.disk_usage(RESULTS if RESULTS.exists() else Path()).free,
        "memory_left": free_memory(),
    }


def _look(run: str, settings: Settings, jobs: list[Job], tokens: Mapping[str, int], gpus: Sequence[float]) -> Known:
    """Finds out the sizes of a run."""
    own = [job for job in jobs if job.run == run]
    outputs = [Path(job.outputs[0]) for job in own if job.rule == "corpus" and job.done]
    written = {path.stem: path for path in outputs}
    commits = resolve_commits(settings, [job for job in own if job.rule == "resolve_commit"])
    form = load_model_form(settings, commits.get("model"))
    shape = measure_shape(form, settings.model.second_matrix)
    splits, sentences = measure_text(settings, form, written, tokens, commits)
    device = plan_devices(form, settings, shape, gpus or gpu_sizes())
    downloads = find_downloads(settings, commits, written)
    return Known(settings, shape, splits, sentences, downloads, device, measure_amounts(settings, shape, splits))


def _try_out(
    known: Known, cores: int, trained: bool, comparisons: dict[str, Comparison], tried: dict[str, Tried]
) -> Tried:
    """The trial of a run, or that of a run like it: `tried` are the trials so far."""
    settings = known.settings
    model = settings.model.model_copy(update={"checkpoint": "", "revision": ""})  # revisions share a trial
    alike = settings.model_copy(update={"model": model, "seed": 0})
    sizes = [(split.tokens, split.sentences) for split in known.text.values()]
    same = f"{known.shape} {sizes} {trained} {[*comparisons]} {alike!r}"
    if same not in tried:
        tried[same] = try_out(settings, known.shape, known.text, known.sentences, cores, trained, comparisons)
    return tried[same]


def _rows(jobs: list[Job], amounts: Mapping[str, Amounts], tried: Tried, cores: int) -> list[Row]:
    """What is left to do of the rules of a run or of a comparison."""
    by_work: dict[str, list[Job]] = {}
    for job in jobs:
        by_work.setdefault(job.work, []).append(job)
    return [_row(by_work[work], amounts[work], tried.get(work), cores) for work in amounts if work in by_work]


def _as_trained(settings: Settings, runs: Mapping[str, Settings], jobs: list[Job]) -> Settings:
    """The settings of a run; if another run has yet to train its checkpoint, with the model of that run."""
    checkpoint = Path(settings.model.checkpoint)
    for job in jobs:
        if job.rule == "train" and not job.done and {checkpoint, *checkpoint.parents} & {*map(Path, job.outputs)}:
            model = settings.model.model_copy(update={"checkpoint": EMBEDDED})
            return settings.model_copy(update={"model": model, "embedded": runs[job.run].embedded})
    return settings


def _row(jobs: list[Job], amounts: Amounts, tried: tuple[Amounts, list[Measured]] | None, cores: int) -> Row:
    """What is left to do of one rule: the trial's costs, as many times as there is more to do."""
    rule, count, todo = jobs[0].rule, len(jobs), sum(not job.done for job in jobs)
    of = jobs[0].run or jobs[0].comparison
    if not todo or not tried:
        return Row(of, rule, todo, not todo)
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
        of,
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

    Work is done while the progress bar is open. What happens before and after it is constant, and so is what the job that
    has no layers takes with an open bar, or without any.
    """
    if not grows:
        return max(one.seconds for one in measured), 0.0
    working = [one.seconds if one.working is None else one.working for one in measured]
    least = min(working) if len(measured) > 1 else 0.0
    around = max(one.seconds - work for one, work in zip(measured, working, strict=True))
    return around + least, sum(working) - len(working) * least


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
