"""Costs on a machine: how long, how much at a time, what is done already, what will not do."""

import math
from dataclasses import dataclass
from pathlib import Path

from ffkv.plan.machine import Machine
from ffkv.plan.work import Cost
from ffkv.settings import Settings

# What each rule waits for, and what it makes (below results/<run>/; a test compares both with the workflow).
AFTER = {
    "train": (),
    "model": ("train",),
    "corpus (train)": ("model",),
    "corpus (validation)": ("model",),
    "triggers": ("corpus (train)",),
    "merge_triggers": ("triggers",),
    "prefixes": ("corpus (validation)",),
    "merge_prefixes": ("prefixes",),
    "key_patterns": ("merge_triggers",),
    "key_removal": ("merge_triggers",),
    "key_precision": ("merge_triggers",),
    "keys": ("key_patterns", "key_removal"),
    "measure_values": ("merge_triggers",),
    "values": ("measure_values",),
    "measure_composition": ("merge_prefixes",),
    "composition": ("measure_composition",),
    "measure_refinement": ("merge_prefixes",),
    "refinement": ("measure_refinement",),
    "write_settings": (),
    "report": ("keys", "key_precision", "values", "composition", "refinement", "write_settings"),
}
MAKES = {
    "train": ("checkpoint",),
    "model": ("model", "values.h5"),
    "corpus (train)": ("corpus/train.h5",),
    "corpus (validation)": ("corpus/validation.h5",),
    "triggers": ("triggers/{shard}.h5",),
    "merge_triggers": ("triggers.h5",),
    "prefixes": ("prefixes/{shard}.h5",),
    "merge_prefixes": ("prefixes.h5",),
    "key_patterns": ("keys/patterns/{group}.parquet", "keys/prefixes/{group}.parquet"),
    "key_removal": ("keys/removal/{group}.parquet",),
    "key_precision": ("keys/precision.csv",),
    "keys": ("keys/categories.csv", "keys/patterns.csv", "keys/removal.csv", "keys/activity.csv"),
    "measure_values": ("values/projections/{group}.h5", "values/memories/{group}.parquet"),
    "values": ("values/agreement.csv", "values/rank.csv", "values/probability.csv", "values/predictive.csv"),
    "measure_composition": ("composition/prefixes/{group}.parquet",),
    "composition": ("composition/active.csv", "composition/agreement.csv", "composition/cases.csv"),
    "measure_refinement": ("refinement/prefixes/{group}.parquet",),
    "refinement": ("refinement/residual.csv", "refinement/probability.csv", "refinement/changes.csv"),
    "write_settings": ("settings.json",),
    "report": ("../../reports/{run}/index.html",),
}


@dataclass(frozen=True)
class Row:
    """A rule on a machine. seconds: from its first job's start to its last one's end, alone on the cores. memory: bytes of
    one job. done: whether all that it makes is there."""

    cost: Cost
    job_seconds: float
    seconds: float
    memory: float
    at_once: int
    done: bool


def outlook(run: str, settings: Settings, costs: list[Cost], machine: Machine) -> list[Row]:
    """The rules of a run on a machine."""
    return [_row(run, settings, cost, machine) for cost in costs]


def _row(run: str, settings: Settings, cost: Cost, machine: Machine) -> Row:
    seconds = job_seconds(cost, machine)
    at_once = min(cost.jobs, max(1, machine.cores // threads(cost, machine)))
    memory = cost.memory + (machine.libraries[cost.libraries].memory if cost.libraries else 0)
    return Row(
        cost, seconds, seconds * math.ceil(cost.jobs / at_once), memory, at_once, is_done(run, settings, cost.rule)
    )


def threads(cost: Cost, machine: Machine) -> int:
    """Threads that a job gets: what its rule asks for, or all cores."""
    return min(cost.threads, machine.cores)


def job_seconds(cost: Cost, machine: Machine) -> float:
    """Seconds of one job: its start, and its part of each kind of work."""
    start = machine.libraries[cost.libraries].seconds if cost.libraries else 0.0
    used = threads(cost, machine)
    return start + sum(amount / machine.rate(kind, used) for kind, amount in cost.work.items()) / cost.jobs


def is_done(run: str, settings: Settings, rule: str) -> bool:
    """Whether the files that a rule makes exist. Whether they are up to date, Snakemake says."""
    folder = Path("results") / run
    shards, groups = range(settings.shards), range(settings.layer_groups)
    paths = [
        folder / made.format(run=run, shard=shard, group=group)
        for made in MAKES[rule]
        for shard in (shards if "{shard}" in made else [0])
        for group in (groups if "{group}" in made else [0])
    ]
    return all(path.exists() for path in paths)


def total_seconds(rows: dict[str, list[Row]], cores: int, of: Machine) -> float:
    """Seconds of all runs together: the longest chain of rules that wait for one another, or all jobs spread over the
    cores, whichever is longer.

    Args:
        rows: by run; what is done takes no time.
    """
    chains, area = [], 0.0
    for found in rows.values():
        ends: dict[str, float] = {}
        for row in found:
            own = 0.0 if row.done else row.seconds
            ends[row.cost.rule] = own + max((ends.get(before, 0.0) for before in AFTER[row.cost.rule]), default=0.0)
            area += 0.0 if row.done else row.job_seconds * row.cost.jobs * threads(row.cost, of) / cores
        chains += ends.values()
    return max(*chains, area)


def disk_peak(rows: list[Row]) -> float:
    """Most bytes that a run still takes at a time: all that is to stay; or what jobs keep beside their own files while
    these are written, with all that need not wait for them."""
    todo = [row for row in rows if not row.done]
    peaks = [
        row.at_once * row.cost.beside
        + sum(other.cost.written for other in todo if not waits(other.cost.rule, row.cost.rule))
        for row in todo
    ]
    return max([sum(row.cost.written for row in todo), *peaks])


def waits(rule: str, other: str) -> bool:
    """Whether a rule begins only after another has ended."""
    return any(before == other or waits(before, other) for before in AFTER[rule])


def warnings(rows: dict[str, list[Row]], disk: float, memory: float, folder: Path) -> list[str]:
    """What will not do: files that the disk has no room for, jobs that the memory has none for.

    Args:
        disk, memory: bytes that are left.
        folder: where results go, for the message.
    """
    found = []
    needed = sum(disk_peak(each) for each in rows.values())
    if needed > disk:
        found.append(
            f"The disk will not do: what is still to be written takes up to {in_bytes(needed)}, and {folder} has {in_bytes(disk)} left. "
            "Free some, or lower prefixes.count, triggers.per_key or shards."
        )
    for run, each in rows.items():
        for row in each:
            if row.done:
                continue
            if row.memory > memory:
                found.append(
                    f"The memory will not do: a job of {row.cost.rule} ({run}) takes {in_bytes(row.memory)}, and {in_bytes(memory)} are left. {_remedy(row.cost.rule)}"
                )
            elif row.memory * row.at_once > memory:
                found.append(
                    f"The memory will not do for {row.at_once} jobs of {row.cost.rule} ({run}) side by side: one takes {in_bytes(row.memory)}, and "
                    f"{in_bytes(memory)} are left. Run snakemake with --resources mem_mb or fewer --cores."
                )
    return found


REMEDIES = {
    "merge_triggers": "It holds the triggers of all keys: lower triggers.per_key.",
    "corpus (train)": "It holds the whole split: set corpus.limit.",
    "prefixes": "It holds a block of prefixes: lower activations.block_sentences.",
    "measure_values": "It holds the values of a group of layers: raise layer_groups.",
    "measure_composition": "It holds the values of a group of layers: raise layer_groups.",
}


def _remedy(rule: str) -> str:
    return REMEDIES.get(rule, "Use a machine with more, or a smaller model.dtype where weights are the most of it.")


def in_bytes(size: float) -> str:
    """A size for a person: 1.2 GB."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1e3:.0f} kB"
