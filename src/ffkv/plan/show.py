"""The plan for a person, and for a program."""

from dataclasses import asdict

from ffkv.plan.machine import Machine
from ffkv.plan.outlook import Row, in_bytes
from ffkv.plan.text import Split
from ffkv.plan.work import Run
from ffkv.report.text import duration

HEADINGS = ("rule", "jobs", "tokens", "operations", "disk", "memory a job", "time")


def as_text(
    runs: dict[str, Run], rows: dict[str, list[Row]], seconds: float, left: tuple[float, float], machine: Machine
) -> str:
    """Tables by rule, a run each, and what all of it takes."""
    lines = []
    for name, run in runs.items():
        lines += [*_about(name, run), *_table(rows[name]), ""]
    todo = [row for found in rows.values() for row in found if not row.done]
    disk, memory = left
    needed = sum(row.cost.written for row in todo)
    largest = max(todo, key=lambda row: row.memory, default=None)
    reached = amount(machine.rate("body", min(4, machine.cores)))
    lines += [
        f"Time: about {duration(seconds)} on {machine.cores} cores, {machine.device} ({reached}FLOP/s in the blocks), with nothing else running.",
        f"Disk: {in_bytes(needed)} to be written, {in_bytes(disk)} left.",
    ]
    if largest:
        lines.append(f"Memory: up to {in_bytes(largest.memory)} a job ({largest.cost.rule}), {in_bytes(memory)} left.")
    return "\n".join(lines)


def _about(name: str, run: Run) -> list[str]:
    shape = run.shape
    return [
        f"Run {name}: {shape.architecture}, {amount(shape.parameters)} parameters, {shape.layers} layers, d = {shape.width:,}, "
        f"{shape.all_memories:,} memories, |V| = {shape.vocabulary:,}, {shape.dtype}",
        *(f"  {split}: {_text(found)}" for split, found in (("train", run.train), ("validation", run.validation))),
    ]


def _text(split: Split) -> str:
    error = "" if split.error is None else f", ± {split.error:.0%}" if split.error < 1 else ", roughly"
    return f"{round(split.tokens):,} tokens in {round(split.sentences):,} sentences ({split.source}{error})"


def _table(rows: list[Row]) -> list[str]:
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    cost = row.cost
    return (
        cost.rule,
        str(cost.jobs),
        amount(cost.tokens) if cost.tokens else "",
        amount(cost.operations) if cost.operations else "",
        in_bytes(cost.written),
        in_bytes(row.memory) if row.memory else "",
        "done" if row.done else duration(row.seconds),
    )


def amount(number: float) -> str:
    """A number for a person: 1.2 T."""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f}"


def as_data(
    runs: dict[str, Run],
    rows: dict[str, list[Row]],
    seconds: float,
    left: tuple[float, float],
    machine: Machine,
    warnings: list[str],
) -> dict:
    """The same as plain numbers: bytes, seconds, operations."""
    return {
        "runs": {
            name: {
                "shape": asdict(run.shape),
                "text": {"train": asdict(run.train), "validation": asdict(run.validation)},
                "rules": [_data(row) for row in rows[name]],
            }
            for name, run in runs.items()
        },
        "machine": asdict(machine),
        "total": {
            "seconds": seconds,
            "written": sum(row.cost.written for found in rows.values() for row in found if not row.done),
            "disk_left": left[0],
            "memory": max((row.memory for found in rows.values() for row in found if not row.done), default=0.0),
            "memory_left": left[1],
        },
        "warnings": warnings,
    }


def _data(row: Row) -> dict:
    return {
        "rule": row.cost.rule,
        "jobs": row.cost.jobs,
        "tokens": row.cost.tokens,
        "operations": row.cost.operations,
        "work": row.cost.work,
        "written": row.cost.written,
        "memory": row.memory,
        "seconds": row.seconds,
        "done": row.done,
    }
