"""The plan as text, and as JSON."""

from dataclasses import asdict
from typing import Any

from ffkv.plan.amounts import Amounts
from ffkv.plan.outlook import Row, in_bytes
from ffkv.plan.text import Split
from ffkv.report.text import duration

HEADINGS = ("rule", "jobs", "tokens", "disk", "memory per job", "time")


def as_text(runs: dict[str, Amounts], rows: list[Row], totals: dict[str, float]) -> str:
    """A table per run, and the totals."""
    lines = []
    for name, amounts in runs.items():
        shape = amounts.shape
        lines += [
            f"Run {name}: {shape.architecture}, {amount(shape.parameters)} parameters, {shape.layers} layers, "
            f"d = {shape.width:,}, {shape.all_memories:,} memories, |V| = {shape.vocabulary:,}, {shape.dtype}",
            f"  train: {_split(amounts.train)}",
            f"  validation: {_split(amounts.validation)}",
            *_table([row for row in rows if row.run == name]),
            "",
        ]
    largest = max((row for row in rows if row.todo), key=lambda row: row.memory, default=None)
    rule = f" ({largest.rule})" if largest else ""
    return "\n".join(
        [
            *lines,
            f"Time: about {duration(totals['seconds'])} on {totals['cores']:.0f} cores, with nothing else running.",
            f"Disk: {in_bytes(totals['written'])} to be written, {in_bytes(totals['disk_left'])} free.",
            f"Memory: up to {in_bytes(totals['memory'])} per job{rule}, {in_bytes(totals['memory_left'])} free.",
        ]
    )


def _split(split: Split) -> str:
    return f"{round(split.tokens):,} tokens in {round(split.sentences):,} sentences ({split.source})"


def _table(rows: list[Row]) -> list[str]:
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    jobs = str(row.jobs) if row.done or row.todo == row.jobs else f"{row.todo} of {row.jobs}"
    if row.done:
        return row.rule, jobs, "", "", "", "done"
    tokens = amount(row.tokens) if row.tokens else ""
    return row.rule, jobs, tokens, in_bytes(row.written), in_bytes(row.memory), duration(row.seconds)


def amount(number: float) -> str:
    """A number for a person: 1.2 M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.0f}"


def as_data(
    runs: dict[str, Amounts], rows: list[Row], totals: dict[str, float], warnings: list[str]
) -> dict[str, Any]:
    """The same as plain numbers: bytes and seconds."""
    return {
        "runs": {
            name: {
                "shape": asdict(amounts.shape),
                "text": {"train": asdict(amounts.train), "validation": asdict(amounts.validation)},
                "rules": [{**asdict(row), "done": row.done} for row in rows if row.run == name],
            }
            for name, amounts in runs.items()
        },
        "total": totals,
        "warnings": warnings,
    }
