"""`python -m benchmarks`: measures every comparison, or those of named cases, and writes the table."""

import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks import card
from benchmarks.cases import NAMES, comparisons_of
from benchmarks.measure import ROOT, Contender, measure, run_contender

RESULTS, PAGE = ROOT / "benchmarks/results/latest.json", ROOT / "benchmarks/README.md"
BEGIN, END = "<!-- written by `python -m benchmarks` -->", "<!-- end -->"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*NAMES, "card"]))
@click.option("--scratch", type=click.Path(path_type=Path), help="Folder that keeps the inputs for the next time.")
def main(names: tuple[str, ...], scratch: Path | None) -> None:
    """Measures the comparisons of the cases NAMES, or of all cases.

    Writes benchmarks/results/latest.json and the table in benchmarks/README.md after each comparison. `card` is what a GPU
    is asked within ten minutes; see `benchmarks.card`.
    """
    if "card" in names:
        if not (gpus := _gpus()):
            raise click.ClickException("There is no GPU here, which the case `card` measures.")
        card.take(gpus[0], scratch or Path("build/card").absolute())
        return
    comparisons = comparisons_of(names or NAMES)
    start = time.monotonic()

    def report(text: str) -> None:
        click.echo(f"{time.monotonic() - start:5.0f} s: {text}")

    with tempfile.TemporaryDirectory() as temporary:
        scratch = (scratch or Path(temporary)).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        contenders = [contender for each in comparisons for contender in each.contenders.values()]
        # In a process of its own: the memory of this process would count as memory of the contenders that it starts.
        run_contender(
            Contender("benchmarks.inputs:make_all", {"contenders": [c.arguments for c in contenders]}), scratch
        )
        for _, group in itertools.groupby(comparisons, key=lambda each: (each.contenders, each.rounds)):
            record([line | {"machine": machine()} for line in measure(list(group), scratch, report)])
    click.echo(table(json.loads(RESULTS.read_text())))
    report(f"wrote {RESULTS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")


def record(measured: list[dict[str, Any]]) -> None:
    """Writes measured lines into results/latest.json and the table in benchmarks/README.md.

    They replace earlier lines of the same comparisons. Lines of comparisons that no longer exist are left out.
    """
    lines = [*json.loads(RESULTS.read_text()), *measured]
    by_comparison = {(line["case"], line["shape"]): line for line in lines}
    known = sorted({(comparison.case, comparison.shape) for comparison in comparisons_of()} & {*by_comparison})
    lines = [by_comparison[key] for key in known]
    RESULTS.write_text(json.dumps(lines, indent=1, sort_keys=True) + "\n")
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    PAGE.write_text(f"{before}\n\n{table(lines)}\n\n{after}")


def machine() -> str:
    """The machine and the versions that the numbers depend on, for the reader of the table."""
    cpuinfo = Path("/proc/cpuinfo").read_text() if platform.system() == "Linux" else ""
    name = re.search(r"model name\s*: (.*)", cpuinfo)
    processor = name[1] if name else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    hardware = [processor, f"{os.cpu_count()} cores", f"{memory:.0f} GiB", *_gpus()]
    software = [platform.system(), f"Python {platform.python_version()}"]
    software += [f"{name} {version(name)}" for name in ("torch", "transformers")]
    return f"{', '.join(hardware + software)}; each contender on one thread"


def _gpus() -> list[str]:
    """The names of the GPUs, as their driver's own program tells them; none where it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.splitlines()


def table(lines: list[dict[str, Any]]) -> str:
    """The lines of results/latest.json in Markdown: a table for each machine that measured."""
    head = "| case | shape | measured | target | met |\n|---|---|---|---|---|"
    machines = dict.fromkeys(line["machine"] for line in lines)
    return "\n\n".join(
        "\n".join([f"On {machine}.", "", head, *(_row(line) for line in lines if line["machine"] == machine)])
        for machine in machines
    )


def _row(line: dict[str, Any]) -> str:
    note = f" ({line['note']})" if line["note"] else ""
    measured = "–"
    if line["measured"] is not None:
        low, high = line["spread"]
        spread = f" ({low:.3g} to {high:.3g})" if low != high else ""
        measured = f"**{line['measured']:.3g}**{spread} {line['unit']}"
    target = "" if line["target"] is None else f"{line['target_is']} {line['target']:g}"
    met = {True: "yes", False: "no", None: "–"}[line["met"]]
    return f"| {line['case']}{note} | {line['shape']} | {measured} | {target} | {met} |"


if __name__ == "__main__":
    main()
