"""A plan as text for a person."""

from typing import Any

import pandas as pd

from ffkv.base.terminal import in_bytes
from ffkv.plan.cluster import tell_shortages
from ffkv.plan.devices import DevicePlan
from ffkv.plan.hub import Download
from ffkv.run.report.text import duration

COLUMNS = ["rule", "jobs", "tokens", "disk", "memory per job", "time"]


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
        lines += [f"  hub: {Download(**one)}" for one in found["downloads"]]
        lines.append(f"  GPU memory: {DevicePlan(**found['device'])}")
        lines += _table(found["rules"])
    for name, rules in plan["comparisons"].items():
        lines += [f"Comparison {name}:", *_table(rules)]
    if plan["not_estimated"]:
        lines.append(f"Not estimated: {', '.join(plan['not_estimated'])}. They read finished runs.")
    rows = [row for found in plan["runs"].values() for row in found["rules"]]
    if all(row["done"] for row in [*rows, *(row for rules in plan["comparisons"].values() for row in rules)]):
        return "\n".join([*lines, f"Nothing {'else ' * bool(plan['not_estimated'])}is left to do."])
    sizes = {name: in_bytes(size) for name, size in total.items() if name not in ("seconds", "cores")}
    time = duration(total["seconds"])
    about = "" if time.startswith("under") else "up to about "
    lines += [
        *tell_shortages(rows),
        f"Time: {about}{time} on {total['cores']} cores, with nothing else running.",
        "Disk: {written} to be written, {disk_left} free.".format(**sizes),
        "Memory: up to {memory} per job, {memory_left} free.".format(**sizes),
    ]
    return "\n".join(lines)


def _table(rules: list[dict[str, Any]]) -> list[str]:
    cells = pd.DataFrame([_cells(row) for row in rules], columns=COLUMNS).set_index("rule").rename_axis(None)
    return [f"  {line}" for line in cells.fillna("").to_string().splitlines()]


def _cells(row: dict[str, Any]) -> dict[str, str]:
    if row["done"]:
        return {"rule": row["rule"], "time": "done"}
    return {
        "rule": row["rule"],
        "jobs": str(row["jobs"]),
        "tokens": f"{row['tokens']:,.0f}" if row["tokens"] else "",
        "disk": in_bytes(row["written"]),
        "memory per job": in_bytes(row["memory"]),
        "time": duration(row["seconds"]),
    }
