"""What a run will take: the trial's costs, multiplied by how much more there is to do."""

import heapq
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from ffkv.plan.amounts import READ_RATE, RULES, Amounts, Rule
from ffkv.plan.jobs import Job
from ffkv.plan.trial import Measured, Trial

CHARTED = "Lower prefixes.count or triggers.per_key, or free some disk space."


@dataclass(frozen=True)
class Row:
    """What a rule of a run will take.

    Attributes:
        rule: name of the rule.
        run: name of the run.
        jobs: number of its jobs.
        todo: number of those that are not done.
        threads: threads per job.
        tokens: tokens that the model reads in all jobs; 0 if it does not run.
        written: bytes of the outputs of all jobs that are not done.
        memory: bytes of one job at its peak.
        job_seconds: seconds of one job.
        seconds: seconds of the jobs that are not done, with nothing else on the cores.
    """

    rule: str
    run: str
    jobs: int
    todo: int
    threads: int
    tokens: float
    written: float
    memory: float
    job_seconds: float
    seconds: float

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.todo


def predict(
    amounts: Amounts,
    trial: Trial | None,
    jobs: list[Job],
    cores: int,
    libraries: dict[str, tuple[float, float]],
    vocabulary_seconds: float,
) -> list[Row]:
    """The rules of a run, in the order of the workflow.

    Args:
        amounts: how much there is to do.
        trial: a trial run; None if nothing is left to do.
        jobs: the jobs of the run.
        cores: cores that the run may use.
        libraries: seconds and bytes that libraries take, see `trial.import_libraries`.
        vocabulary_seconds: see `text.Text`.
    """
    rules: dict[str, list[Job]] = {}
    for job in jobs:
        rules.setdefault(job.rule, []).append(job)
    order = [*RULES, *sorted(rules.keys() - RULES.keys())]
    rows = []
    for name in sorted(rules, key=order.index):
        todo = [job for job in rules[name] if not job.done]
        rule, threads = RULES.get(name, Rule()), rules[name][0].threads
        measured = trial.jobs.get(name, []) if trial else []
        start, base = libraries[rule.libraries] if measured else (0.0, 0.0)
        seconds = memory = written = 0.0
        if trial and measured:
            count = len(rules[name])
            seconds = start + _seconds(rule, measured, trial.amounts, amounts, count)
            seconds += _text_seconds(name, amounts, count, vocabulary_seconds)
            growth = rule.memory(amounts) - rule.memory(trial.amounts)
            memory = max(base, base + max(one.memory for one in measured) + growth)
            written = _written(rule, measured, trial.amounts, amounts) * len(todo) / count
        at_once = max(1, min(cores // max(threads, 1), max(len(todo), 1)))
        tokens = _tokens(name, amounts)
        total = seconds * -(-len(todo) // at_once)
        rows.append(
            Row(name, jobs[0].run, len(rules[name]), len(todo), threads, tokens, written, memory, seconds, total)
        )
    return rows


def _seconds(rule: Rule, measured: list[Measured], small: Amounts, amounts: Amounts, jobs: int) -> float:
    """Seconds of one job without its start: a constant part, and work in proportion to its amount."""
    least = min(one.seconds for one in measured)
    work = sum(one.seconds - least if one.counted is None else one.counted for one in measured)
    if len(measured) == 1 and measured[0].counted is None and rule.work(small):
        work, least = least, 0.0
    fixed = max(one.seconds - (one.counted or 0.0) for one in measured) if measured[0].counted is not None else least
    if rule.repeats(small):
        fixed *= max(1.0, rule.repeats(amounts) / rule.repeats(small))
    loading = max(rule.loads(amounts) - rule.loads(small), 0.0) / READ_RATE
    growth = rule.work(amounts) / rule.work(small) / jobs if rule.work(small) else 1.0
    return fixed + loading + work * growth


def _text_seconds(rule: str, amounts: Amounts, jobs: int, vocabulary_seconds: float) -> float:
    """Seconds of one job that splits and tokenizes text."""
    seconds = amounts.train.seconds + amounts.validation.seconds
    return vocabulary_seconds + seconds if rule == "train" else seconds / jobs if rule == "corpus" else 0.0


def _written(rule: Rule, measured: list[Measured], small: Amounts, amounts: Amounts) -> float:
    """Bytes of all outputs: those of the described datasets, and the rest as in the trial."""
    rest = max(sum(one.written for one in measured) - rule.disk(small), 0.0)
    if rule.rows(small):
        rest *= rule.rows(amounts) / rule.rows(small)
    return rule.disk(amounts) + rest


def _tokens(rule: str, amounts: Amounts) -> float:
    """Tokens that the model reads in all jobs of a rule."""
    embedded = amounts.settings.embedded
    return {"train": float(embedded.steps * embedded.batch_tokens), "triggers": amounts.train.tokens}.get(rule, 0.0)


def total_seconds(jobs: list[Job], rows: list[Row], cores: int) -> float:
    """Seconds until the last job ends: jobs start in their order as soon as their inputs and cores are there."""
    seconds = {(row.run, row.rule): row.job_seconds for row in rows}
    waiting = [job for job in jobs if not job.done]
    missing = {path for job in waiting for path in job.outputs}
    running: list[tuple[float, int, Job]] = []
    now, free = 0.0, cores
    while waiting or running:
        for job in [job for job in waiting if missing.isdisjoint(job.inputs)]:
            if (threads := min(job.threads, cores)) <= free:
                free -= threads
                waiting.remove(job)
                heapq.heappush(running, (now + seconds[job.run, job.rule], id(job), job))
        if not running:
            break
        now, _, job = heapq.heappop(running)
        free += min(job.threads, cores)
        missing -= set(job.outputs)
    return now


def find_warnings(rows: list[Row], cores: int, disk: float, memory: float, folder: Path) -> list[str]:
    """Says where the disk or the memory does not suffice.

    Args:
        cores: cores that the run may use.
        disk: free bytes of the disk of the results.
        memory: bytes of memory that are free.
        folder: where results are written, for the message.
    """
    messages = []
    needed = sum(row.written for row in rows)
    if needed > disk:
        messages.append(
            f"Not enough disk space: the remaining files need up to {in_bytes(needed)}, "
            f"but only {in_bytes(disk)} is free in {folder}/. {CHARTED}"
        )
    for row in rows:
        at_once = max(1, min(cores // row.threads, row.todo))
        if row.todo and row.memory > memory:
            messages.append(
                f"Not enough memory: a job of {row.rule} ({row.run}) needs {in_bytes(row.memory)}, "
                f"but only {in_bytes(memory)} is free. Use a machine with more memory, more layer_groups, or a smaller model."
            )
        elif row.todo and row.memory * at_once > memory:
            messages.append(
                f"Not enough memory for {at_once} jobs of {row.rule} ({row.run}) at the same time: each needs "
                f"{in_bytes(row.memory)}, but only {in_bytes(memory)} is free. Run snakemake with fewer --cores."
            )
    return messages


def free_disk(folder: Path) -> float:
    """Free bytes of the disk that a folder is on, or will be on."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return float(shutil.disk_usage(folder).free)


def free_memory(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes of memory that this process may use: the free memory, or the rest below the limit of its control group.

    Args:
        groups: where control groups of version 2 or 1 are mounted.
    """
    free = float(psutil.virtual_memory().available)
    version_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
    for limit, used, details in (("memory.max", "memory.current", "memory.stat"), version_1):
        try:
            allowed, taken = float((groups / limit).read_text()), float((groups / used).read_text())
            lines = dict(line.split() for line in (groups / details).read_text().splitlines())
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        free = min(free, allowed - taken + float(lines.get("inactive_file", 0)))  # cached files can be dropped
    return max(free, 0.0)


def in_bytes(size: float) -> str:
    """A size for a person: 1.2 GB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1e3:.0f} kB"
