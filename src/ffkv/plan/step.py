"""The plan: what is left to do, and what a trial run says that it takes."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ffkv.architectures.coverage import cores as available_cores
from ffkv.plan.growth import RULES, Amounts, Growth
from ffkv.plan.jobs import Job, ask_snakemake, read_jobs
from ffkv.plan.shape import load_model_form, measure_shape
from ffkv.plan.text import measure_text
from ffkv.plan.trial import Trial, import_libraries, try_out
from ffkv.settings.runs import resolve
from ffkv.settings.yaml_file import read_settings

RESULTS = Path("results")


@dataclass(frozen=True)
class Row:
    """What a rule of a run will take.

    Attributes:
        run: name of the run.
        rule: name of the rule.
        jobs: number of its jobs that are not done.
        done: whether all its jobs are done.
        tokens: tokens that the model reads.
        written: bytes of the outputs.
        memory: bytes of one job at its peak.
        job_seconds: seconds of one job.
        seconds: seconds of the rule alone on the cores.
    """

    run: str
    rule: str
    jobs: int
    done: bool
    tokens: float = 0.0
    written: float = 0.0
    memory: float = 0.0
    job_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What the runs of a settings file will take.

    Attributes:
        amounts: how much each run has to do, by its name.
        rows: what each rule of each run takes.
        total: seconds and bytes of all; what the machine has.
        warnings: where the disk or the memory does not suffice.
    """

    amounts: dict[str, Amounts]
    rows: list[Row]
    total: dict[str, float]
    warnings: list[str]

    def as_data(self) -> dict[str, Any]:
        """The plan as plain numbers, in bytes and seconds."""
        runs = {
            run: {
                "shape": amounts.shape._asdict(),
                "text": {name: asdict(split) for name, split in amounts.splits.items()},
                "rules": [asdict(row) for row in self.rows if row.run == run],
            }
            for run, amounts in self.amounts.items()
        }
        return {"runs": runs, "total": self.total, "warnings": self.warnings}


def make_plan(configfile: Path, cores: int | None = None, tokens: dict[str, int] | None = None) -> Plan:
    """Plans the runs of a settings file, in the working directory.

    Args:
        configfile: the settings file.
        cores: cores that snakemake may use; None for all.
        tokens: numbers of tokens by split, for a corpus whose size cannot be known.
    Raises:
        UserError: the settings, a checkpoint or a corpus cannot be read.
    """
    runs, cores = resolve(read_settings(configfile)), cores or available_cores()
    snakemake = ask_snakemake(configfile, cores)
    libraries = import_libraries()
    jobs = read_jobs(snakemake)
    texts: dict[str, Any] = {}
    trials: dict[str, Trial] = {}
    amounts, rows = {}, []
    for run, settings in runs.items():
        mine = [job for job in jobs if job.run == run]
        written = {Path(job.outputs[0]).stem: Path(job.outputs[0]) for job in mine if job.rule == "corpus" and job.done}
        form = load_model_form(settings)
        text = f"{settings.corpus!r} {settings.model.checkpoint} {written}"
        if text not in texts:
            texts[text] = measure_text(settings, form, written, tokens or {})
        splits, sentences = texts[text]
        amounts[run] = Amounts(settings, measure_shape(form, settings.model.second_matrix), splits)
        if all(job.done for job in mine):
            rows += [Row(run, rule, 0, True) for rule in dict.fromkeys(job.rule for job in mine)]
            continue
        trained = all(job.done for job in mine if job.rule == "train")
        model = settings.model.model_copy(update={"checkpoint": "", "revision": ""})  # revisions share a shape
        same = f"{amounts[run].shape} {trained} {text} {settings.model_copy(update={'model': model, 'seed': 0})!r}"
        if same not in trials:
            trials[same] = try_out(amounts[run], form, sentences, cores, trained)
        amounts[run] = Amounts(settings, amounts[run].shape, splits, trials[same].amounts.signed)
        rows += _rows(run, mine, amounts[run], trials[same], libraries, cores)
    todo = [row for row in rows if not row.done]
    total = {
        "seconds": total_seconds([job for job in jobs if not job.done], rows, cores),
        "cores": cores,
        "written": sum(row.written for row in todo),
        "disk_left": free_disk(RESULTS),
        "memory": max((row.memory for row in todo), default=0.0),
        "memory_left": free_memory(),
    }
    return Plan(amounts, rows, total, find_warnings(todo, jobs, total))


def _rows(
    run: str, jobs: list[Job], amounts: Amounts, trial: Trial, libraries: dict[str, tuple[float, float]], cores: int
) -> list[Row]:
    """The rules of a run, in the order of the workflow."""
    rules = {rule: [job for job in jobs if job.rule == rule] for rule in {job.rule: None for job in jobs}}
    rows = []
    for rule in sorted(rules, key=[*RULES, *rules].index):
        growth, measured = RULES.get(rule, Growth()), trial.jobs.get(rule, [])
        todo = sum(not job.done for job in rules[rule])
        if not todo or not measured:
            rows.append(Row(run, rule, todo, not todo))
            continue
        start, base = libraries.get(growth.libraries, (0.0, 0.0))
        small, count = trial.amounts, len(rules[rule])
        seconds = start + _job_seconds(growth, trial.jobs[rule], small, amounts, count)
        if rule in ("train", "corpus"):  # the text of both splits; the trial's is little
            seconds += sum(split.seconds for split in amounts.splits.values()) / count
        rest = max(sum(one.written for one in measured) - growth.stored(small), 0.0)
        written = growth.stored(amounts) + rest * _ratio(growth.rows, small, amounts)
        memory = base + max(one.memory for one in measured)
        memory += max(growth.memory(amounts) - growth.memory(small), 0.0)
        at_once = max(1, min(cores // rules[rule][0].threads, todo))
        share, rounds = todo / count, -(-todo // at_once)
        tokens = growth.tokens(amounts) * share
        rows.append(Row(run, rule, todo, False, tokens, written * share, memory, seconds, rounds * seconds))
    return rows


def _ratio(amount: Any, small: Amounts, amounts: Amounts) -> float:
    """How much more there is to do than in the trial; 1 for what does not grow."""
    return amount(amounts) / amount(small) if amount(small) else 1.0


def _job_seconds(growth: Growth, measured: list[Any], small: Amounts, amounts: Amounts, jobs: int) -> float:
    """Seconds of one job without its start: a constant part, and a part in proportion to its work.

    In the trial, the work is what happens while the progress bar is open. A command without a bar has a job without layers,
    and the work is what the other jobs take beyond that one.
    """
    least = min(one.seconds for one in measured)
    if measured[0].working is not None:
        constant = max(one.seconds - one.working for one in measured)
        work = sum(one.working for one in measured)
    elif len(measured) > 1 or growth.work(small) == 0:
        constant, work = least, sum(one.seconds - least for one in measured)
    else:
        constant, work = 0.0, least
    if growth.work(small) == 0:
        return constant + max(one.working or 0.0 for one in measured)
    return constant * max(1.0, _ratio(growth.once, small, amounts)) + work * _ratio(growth.work, small, amounts) / jobs


def total_seconds(jobs: list[Job], rows: list[Row], cores: int) -> float:
    """Seconds until the last of some jobs ends: each one starts as soon as its inputs exist and cores are free."""
    seconds = {(row.run, row.rule): row.job_seconds for row in rows}
    waiting, running, now, free = list(jobs), [], 0.0, cores
    while waiting or running:
        missing = {path for job in [*waiting, *(job for _, job in running)] for path in job.outputs}
        for job in [job for job in waiting if missing.isdisjoint(job.inputs)]:
            if min(job.threads, cores) <= free:
                free -= min(job.threads, cores)
                waiting.remove(job)
                running.append((now + seconds[job.run, job.rule], job))
        running.sort(key=lambda pair: pair[0])
        now, job = running.pop(0)
        free += min(job.threads, cores)
    return now


def find_warnings(todo: list[Row], jobs: list[Job], total: dict[str, float]) -> list[str]:
    """Says where the disk or the memory does not suffice.

    Args:
        todo: rules that are not done.
        jobs: all jobs.
        total: see `Plan`.
    """
    warnings, disk, memory = [], total["disk_left"], total["memory_left"]
    if total["written"] > disk:
        warnings.append(
            f"Not enough disk space: the remaining files need up to {in_bytes(total['written'])}, but only "
            f"{in_bytes(disk)} is free in {RESULTS}/. Free some, or lower prefixes.count, triggers.per_key or shards."
        )
    threads = {(job.run, job.rule): job.threads for job in jobs}
    for row in todo:
        at_once = max(1, min(int(total["cores"]) // threads[row.run, row.rule], row.jobs))
        name, free = f"{row.rule} ({row.run})", f"but only {in_bytes(memory)} is free"
        if row.memory > memory:
            remedy = (
                "Raise layer_groups, lower triggers.per_key or activations.block_sentences, or take a larger machine."
            )
            warnings.append(f"Not enough memory: a job of {name} needs {in_bytes(row.memory)}, {free}. {remedy}")
        elif row.memory * at_once > memory:
            each = f"{at_once} jobs of {name} at the same time: each needs {in_bytes(row.memory)}"
            warnings.append(f"Not enough memory for {each}, {free}. Run snakemake with fewer --cores.")
    return warnings


def free_disk(folder: Path) -> float:
    """Free bytes of the disk that a folder is on, or will be on."""
    return float(
        shutil.disk_usage(next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())).free
    )


def free_memory(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Free bytes of memory, or what the limit of the process's control group leaves.

    Args:
        groups: where control groups are mounted.
    """
    free = float(psutil.virtual_memory().available)
    version_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
    for limit, used, details in (("memory.max", "memory.current", "memory.stat"), version_1):
        try:
            allowed, taken = float((groups / limit).read_text()), float((groups / used).read_text())
            cached = dict(line.split() for line in (groups / details).read_text().splitlines())
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        free = min(free, allowed - taken + float(cached.get("inactive_file", 0)))
    return max(free, 0.0)


def in_bytes(size: float) -> str:
    """A size for a person: 1.2 GB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1e3:.0f} kB"
