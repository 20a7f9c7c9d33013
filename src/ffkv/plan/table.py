"""A plan as text for a person."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ffkv.base.lookup import exists
from ffkv.base.terminal import in_bytes
from ffkv.run.results.text import duration, percent
from ffkv.workflow import ROOT

SLURM = Path("profiles/slurm/profile.yaml")
DAY = 24 * 3600
LINE = "  {:24}{:>5}{:>10}{:>16}{:>16}"


def as_text(plan: Mapping[str, Any]) -> str:
    """Writes the plan for a person: a table per run, and the totals."""
    lines, total, others = [], plan["total"], plan["not_estimated"]
    for run, found in plan["runs"].items():
        shape = "{architecture}, {parameters:,} parameters, {layers} layers, d = {width:,}, {all_memories:,} memories, "
        lines.append(f"Run {run}: " + (shape + "|V| = {vocabulary:,}, {dtype}").format(**found["shape"]))
        for name, split in found["text"].items():
            lines.append("  {}: {tokens:,.0f} tokens in {sentences:,.0f} sentences ({source})".format(name, **split))
        lines += [f"  hub: {in_bytes(found['download'])} to download"] * (found["download"] > 0)
        weights, working = found["device"].values()
        need = f"up to {in_bytes(weights + working)} per job that runs the model ({in_bytes(weights)} of weights)"
        lines += [f"  GPU memory: {need}", LINE.format("", "jobs", "disk", "memory per job", "time")]
        for row in found["rules"]:
            sizes = ["", "", "done"]
            if not row["done"]:
                sizes = [in_bytes(row["written"]), in_bytes(row["memory"]), duration(row["seconds"])]
            lines.append(LINE.format(row["rule"], row["jobs"] or "", *sizes))
    lines += [f"Not estimated: {', '.join(others)}. They read finished runs."] * bool(others)
    rows = [row for found in plan["runs"].values() for row in found["rules"] if not row["done"]]
    if not rows:
        return "\n".join([*lines, f"Nothing {'else ' * bool(others)}is left to do."])
    lines += tell_shortages(rows)
    on = f"{total['cores']} cores" + f" and a GPU of {total['gpu']:.3g} operations per second" * bool(total["gpu"])
    lines.append(f"Time: about {duration(total['seconds'])} on {on}, with nothing else running.")
    if total["seconds"] > DAY and not total["gpu"]:
        lines.append("With a GPU it may be much less: `ffkv plan --teraflops 20` plans for one (docs/plan.md).")
    if total["controls"]:
        share = percent(total["controls"] / total["seconds"])
        part = f"{duration(total['controls'])} of it ({share})"
        lines.append(f"{part} for untrained models beside the runs. `report.control: none` leaves them out.")
    for start, saving in zip(("Most time is saved by", "Then by"), plan["savings"], strict=False):
        less, instead = duration(saving["seconds"]), saving["instead_of"] or "all documents"
        lines.append(f"{start} `{saving['setting']}: {saving['value']}` instead of {instead}: {less} less.")
    lines.append(f"Disk: {in_bytes(total['written'])} to be written, {in_bytes(total['disk_left'])} free.")
    lines.append(f"Memory: up to {in_bytes(total['memory'])} per job, {in_bytes(total['memory_left'])} free.")
    return "\n".join(lines)


def tell_shortages(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names the rules that need more memory per job than the profile for SLURM asks for, in one line if any do."""
    path = SLURM if exists(SLURM) else ROOT / SLURM
    profile, short = yaml.safe_load(path.read_bytes()) or {}, {}
    for row in rows:
        asks = profile.get("default-resources", {}) | profile.get("set-resources", {}).get(row["rule"], {})
        # A number of MB, or an expression that begins with that of the first attempt.
        asked = 1e6 * float((re.findall(r"^\d+", str(asks.get("mem_mb"))) or ["inf"])[0])
        if asked < row["memory"]:
            short[row["rule"]] = f"{row['rule']} {in_bytes(row['memory'])} ({in_bytes(asked)})"
    told = f"SLURM: these rules need more memory than {path} asks for at first (in brackets)"
    return [f"{told}: {', '.join(short.values())}."] if short else []
