"""`python -m benchmarks`: measures every row, or those of named works, and writes the table."""

import importlib
import itertools
import json
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks import works
from benchmarks.measure import ROOT, Row, measure

RESULTS, PAGE = ROOT / "benchmarks/results/latest.json", ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- what `make bench` measured -->", "<!-- end -->"


@click.command()
@click.argument("names", nargs=-1)
@click.option("--scratch", type=click.Path(path_type=Path), help="Keep inputs here, for the next time.")
def main(names: tuple[str, ...], scratch: Path | None) -> None:
    """Measure the rows of the works NAMES (all), in turns, and write results/latest.json and the table in the docs."""
    modules = names or [module.name for module in pkgutil.iter_modules(works.__path__)]
    rows = [row for name in modules for row in importlib.import_module(f"benchmarks.works.{name}").ROWS]
    start = time.monotonic()

    def said(line: str) -> None:
        click.echo(f"{time.monotonic() - start:5.0f} s: {line}")

    with tempfile.TemporaryDirectory() as own:
        scratch = (scratch or Path(own)).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        make_inputs(rows, scratch)
        for _, alike in itertools.groupby(rows, key=lambda row: (row.arms, row.rounds)):
            record(*(line | {"machine": machine()} for line in measure(list(alike), scratch, said)))
    lines = json.loads(RESULTS.read_text())
    if not names:  # what there was before and is no more
        known = {(row.work, row.shape) for row in rows}
        record(*[line for line in lines if (line["work"], line["shape"]) in known], keep=False)
    click.echo(table(json.loads(RESULTS.read_text())))
    click.echo(f"{RESULTS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}, after {time.monotonic() - start:.0f} s")


def record(*fresh: dict[str, Any], keep: bool = True) -> None:
    """Puts measured lines into results/latest.json and the table in the docs, at once: an interrupted run has lost little."""
    new = {(line["work"], line["shape"]) for line in fresh}
    before = json.loads(RESULTS.read_text()) if keep and RESULTS.exists() else []
    lines = [line for line in before if (line["work"], line["shape"]) not in new] + list(fresh)
    lines.sort(key=lambda line: (line["work"], line["shape"]))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(lines, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, table(lines)))


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """A page with another text between two marks."""
    return page[: page.index(begin) + len(begin)] + f"\n\n{text}\n\n" + page[page.index(end) :]


def make_inputs(rows: list[Row], scratch: Path) -> None:
    """Makes the models and sentences that arms name, so that none of them pays for it, in a process of its own."""
    wanted = [arm.arguments for row in rows for arm in row.arms.values() if "shape" in arm.arguments]
    command = [sys.executable, "-m", "benchmarks.inputs", scratch, json.dumps(wanted)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def machine() -> str:
    """What was measured on, for the reader of the table."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, transformers {version('transformers')}; each arm on one thread"
    )


def table(lines: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = "| work | shape | measured | target | met |\n|---|---|---|---|---|"
    return "\n".join([f"On {lines[0]['machine']}.", "", head, *map(_line, lines)])


def _line(line: dict[str, Any]) -> str:
    note = f" ({line['note']})" if line["note"] else ""
    if line["measured"] is None:
        measured = "–"
    else:
        low, high = line["spread"]
        spread = f" ({low:.3g} to {high:.3g})" if low != high else ""
        measured = f"**{line['measured']:.3g}**{spread} {line['unit']}"
    target = "" if line["target"] is None else f"{line['target_is']} {line['target']:g}"
    met = {True: "yes", False: "no", None: "–"}[line["met"]]
    return f"| {line['work']}{note} | {line['shape']} | {measured} | {target} | {met} |"


if __name__ == "__main__":
    main()
