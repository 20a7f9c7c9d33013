"""The plan as text."""

from ffkv.plan.growth import Amounts
from ffkv.plan.step import Plan, Row, in_bytes
from ffkv.report.text import duration

HEADINGS = ("rule", "jobs", "tokens", "disk", "memory per job", "time")


def as_text(plan: Plan) -> str:
    """A table per run, and the totals."""
    total, lines = plan.total, []
    for run, amounts in plan.amounts.items():
        lines += [*_about(run, amounts), *_table([row for row in plan.rows if row.run == run]), ""]
    return "\n".join(
        [
            *lines,
            f"Time: about {duration(total['seconds'])} on {total['cores']} cores, with nothing else running.",
            f"Disk: {in_bytes(total['written'])} to be written, {in_bytes(total['disk_left'])} free.",
            f"Memory: up to {in_bytes(total['memory'])} per job, {in_bytes(total['memory_left'])} free.",
        ]
    )


def _about(run: str, amounts: Amounts) -> list[str]:
    shape = amounts.shape
    splits = amounts.splits.items()
    return [
        f"Run {run}: {shape.architecture}, {shape.parameters:,} parameters, {amounts.layers} layers, d = {shape.width:,}, "
        f"{amounts.memories:,} memories, |V| = {shape.vocabulary:,}, {shape.dtype}",
        *(f"  {name}: {s.tokens:,.0f} tokens in {s.sentences:,.0f} sentences ({s.source})" for name, s in splits),
    ]


def _table(rows: list[Row]) -> list[str]:
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in cells
    ]


def _cells(row: Row) -> tuple[str, ...]:
    if row.done:
        return row.rule, "", "", "", "", "done"
    tokens = f"{row.tokens:,.0f}" if row.tokens else ""
    return row.rule, str(row.jobs), tokens, in_bytes(row.written), in_bytes(row.memory), duration(row.seconds)
