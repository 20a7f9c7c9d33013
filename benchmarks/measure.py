"""Measures contenders that do the same work, each in a process of its own, in turns."""

import hashlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")

# Does the work of a contender once. Returns further numbers, and digests of its result, by name; or nothing.
Work = Callable[[], dict[str, Any] | None]


class Measurement(NamedTuple):
    """One run of a contender.

    Attributes:
        cpu: CPU time of its work, in seconds.
        wall: time of its work, in seconds.
        process: CPU time of the whole process, with its start, in seconds.
        peak: largest resident memory of the process, in bytes.
        extra: further numbers and digests, by name.
    """

    cpu: float
    wall: float
    process: float
    peak: int
    extra: dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """One way to do a work.

    Attributes:
        function: "module:function". It is called with the scratch folder and `arguments`, prepares its work, warms up and
            returns the work (see `Work`).
        arguments: arguments of the function; JSON must be able to hold them.
        python: the Python that runs it; the one of this process by default.
    """

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    python: Path = Path(sys.executable)


@dataclass(frozen=True)
class Comparison:
    """A line of the table. Neighbouring comparisons of the same contenders share their runs.

    Attributes:
        case: name of the case.
        shape: size of the model and of the text.
        contenders: contenders, by name.
        result: computes the measured number from one measurement of each contender.
        target: limit of the number; None if there is none.
        unit: words that follow the number in the table.
        at_most: whether the target is an upper limit, not a lower one.
        rounds: number of runs of each contender.
        note: a remark for the reader of the table.
    """

    case: str
    shape: str
    contenders: dict[str, Contender]
    result: Callable[[dict[str, Measurement]], float]
    target: float | None
    unit: str
    at_most: bool = True
    rounds: int = 3
    note: str = ""


class Unmeasured(Exception):
    """The reason why a contender cannot run here."""


def same_work(module: str, names: tuple[str, ...], **arguments: Any) -> dict[str, Contender]:
    """Contenders by name: functions of one module, with the same arguments."""
    return {name: Contender(f"{module}:{name}", arguments) for name in names}


def cpu_ratio(contender: str, reference: str) -> Callable[[dict[str, Measurement]], float]:
    """A result: CPU time of the contender's work divided by that of the reference."""
    return lambda measurements: measurements[contender].cpu / measurements[reference].cpu


def digest(*arrays: np.ndarray) -> str:
    """16 hexadecimal digits that depend on every byte of the arrays."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def run_command(*command: str | Path, **options: Any) -> float:
    """Runs a command; returns the CPU seconds of its process, with its start. `options` are those of `subprocess.run`."""
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    subprocess.run(command, check=True, **options)
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before


def run_contender(contender: Contender, scratch: Path) -> Measurement:
    """Runs a contender in a process of its own, on one thread.

    Raises:
        Unmeasured: a library or a file that it needs is not here.
        RuntimeError: it failed; with the end of its output.
    """
    if not contender.python.exists():
        raise Unmeasured("its environment is not installed")
    arguments = json.dumps(contender.arguments)
    code = "import sys; from benchmarks.measure import work_once; work_once(*sys.argv[1:])"
    environment = {**os.environ, **ONE_THREAD, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT / 'src'}"}
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".json") as answer, tempfile.TemporaryFile() as output:
        command: list[str | Path] = [contender.python, "-c", code]
        command += [contender.function, scratch, arguments, answer.name]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")[-3000:]
            raise RuntimeError(f"{contender.function} ended with {process.returncode}:\n{text}")
        measured = json.loads(Path(answer.name).read_text())
    if "unmeasured" in measured:
        raise Unmeasured(measured["unmeasured"])
    return Measurement(process=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss * 1024, **measured)


def work_once(function: str, scratch: str, arguments: str, answer: str) -> None:
    """Prepares the work of a contender, does it once, and writes its time into the file `answer`."""
    module, name = function.split(":")
    try:
        work = getattr(importlib.import_module(module), name)(Path(scratch), **json.loads(arguments))
        cpu, wall = time.process_time(), time.perf_counter()
        extra = work() or {}
        measured = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "extra": extra}
    except Unmeasured as reason:
        measured = {"unmeasured": str(reason)}
    Path(answer).write_text(json.dumps(measured))


def measure(
    comparisons: list[Comparison], scratch: Path, report: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Measures comparisons of the same contenders from the same runs.

    Contenders take turns. Every second round has the reverse order, so that no contender always runs on a warmer machine.

    Args:
        comparisons: comparisons whose contenders and rounds are equal.
        scratch: folder of the inputs.
        report: receives a line of text per comparison and round.
    Returns:
        A line per comparison, as `results/latest.json` has it: medians over the rounds, with lowest and highest result.
    Raises:
        RuntimeError: a contender failed, or its result is wrong.
    """
    rounds: list[dict[str, Measurement]] = []
    contenders = list(comparisons[0].contenders.items())
    try:
        for number in range(comparisons[0].rounds):
            turn = contenders[:: -1 if number % 2 else 1]
            rounds.append({name: run_contender(contender, scratch) for name, contender in turn})
            for comparison in comparisons:
                result = comparison.result(rounds[-1])
                report(f"{comparison.case}, {comparison.shape}: {result:.3g} {comparison.unit}")
    except Unmeasured as reason:
        missing: dict[str, Any] = {
            "measured": None,
            "met": None,
            "spread": None,
            "contenders": {},
            "note": f"not measured: {reason}",
        }
        return [_describe(comparison) | missing for comparison in comparisons]
    medians = {name: _medians([measurements[name] for measurements in rounds]) for name, _ in contenders}
    return [
        _describe(comparison) | _summarize(comparison, rounds) | {"contenders": medians} for comparison in comparisons
    ]


def _describe(comparison: Comparison) -> dict[str, Any]:
    fields = {name: getattr(comparison, name) for name in ("case", "shape", "unit", "target", "note")}
    return fields | {"target_is": "at most" if comparison.at_most else "at least"}


def _summarize(comparison: Comparison, rounds: list[dict[str, Measurement]]) -> dict[str, Any]:
    results = sorted(comparison.result(measurements) for measurements in rounds)
    median, target = statistics.median(results), comparison.target
    met = None if target is None else (median <= target if comparison.at_most else median >= target)
    return {"measured": median, "met": met, "spread": [results[0], results[-1]]}


def _medians(measurements: list[Measurement]) -> dict[str, Any]:
    rows = [{**one._asdict(), **one.extra} for one in measurements]
    names = {*rows[0]} - {"extra"}
    return {n: rows[0][n] if isinstance(rows[0][n], str) else statistics.median(row[n] for row in rows) for n in names}
