"""Measures arms that do the same work, each in a process of its own, in turns."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")


class Sample(NamedTuple):
    """One run of an arm. cpu, wall: seconds of its work; process: CPU seconds of the whole process, start-up included.
    peak: bytes of resident memory at most. digest: of its result, "" for none. extra: what else it says."""

    cpu: float
    wall: float
    process: float
    peak: int
    digest: str
    extra: dict[str, float]


@dataclass(frozen=True)
class Arm:
    """One way to do a work.

    function: "module:function". It is called with the scratch folder and `arguments`, gets everything ready and warm, and
    returns the work as a function without arguments. What that returns is the digest of the result, and more numbers to
    note, or None.
    python: of which environment; ours by default.
    """

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    python: Path = Path(sys.executable)


@dataclass(frozen=True)
class Row:
    """A line of the table: arms and what is made of them. Rows that stand side by side and have the same arms share their runs.

    measured: the number, from one sample of each arm. at_most: whether the target is an upper limit. equal: arms whose
    digests must be the same. rounds: times that all arms are run, in turns. note: what a reader must know.
    """

    work: str
    shape: str
    arms: dict[str, Arm]
    measured: Callable[[dict[str, Sample]], float]
    target: float | None
    unit: str
    at_most: bool = True
    equal: tuple[str, ...] = ()
    rounds: int = 3
    note: str = ""


class Unmeasured(Exception):
    """An arm cannot run here; says why."""


def cpu_ratio(arm: str, over: str) -> Callable[[dict[str, Sample]], float]:
    """CPU seconds of an arm's work over those of another's."""
    return lambda samples: samples[arm].cpu / samples[over].cpu


def run_arm(arm: Arm, scratch: Path) -> Sample:
    """Runs an arm in a process of its own, on one thread.

    Raises:
        Unmeasured: what it needs is not here.
        RuntimeError: it failed; with the end of what it said.
    """
    if not arm.python.exists():
        raise Unmeasured("its environment is not installed")
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".json") as answer:
        command = [arm.python, "-m", "benchmarks.arm", arm.function, scratch, json.dumps(arm.arguments), answer.name]
        environment = {**os.environ, **ONE_THREAD, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT / 'src'}"}
        with tempfile.TemporaryFile(dir=scratch) as said:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            text = said.read().decode(errors="replace")
        if process.returncode:
            raise RuntimeError(f"{arm.function} ended with {process.returncode}:\n{text[-3000:]}")
        found = json.loads(Path(answer.name).read_text())
    if "unmeasured" in found:
        raise Unmeasured(found["unmeasured"])
    return Sample(process=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss * 1024, **found)


def measure(rows: list[Row], scratch: Path, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Rows that have the same arms, from the same runs of these: their lines as they stand in `results/latest.json`."""
    samples: list[dict[str, Sample]] = []
    try:
        for number in range(rows[0].rounds):
            samples.append({name: run_arm(arm, scratch) for name, arm in _turned(rows[0].arms, number)})
            for row in rows:
                _check_equal(row, samples[-1])
                say(f"{row.work}, {row.shape}: {row.measured(samples[-1]):.3g} {row.unit}")
    except Unmeasured as reason:
        nothing = {"measured": None, "met": None, "spread": None, "arms": {}, "note": f"not measured: {reason}"}
        return [_about(row) | nothing for row in rows]
    return [_about(row) | _found(row, samples) for row in rows]


def _about(row: Row) -> dict[str, Any]:
    kept = {name: getattr(row, name) for name in ("work", "shape", "unit", "target", "note")}
    return kept | {"target_is": "at most" if row.at_most else "at least"}


def _found(row: Row, samples: list[dict[str, Sample]]) -> dict[str, Any]:
    ratios = sorted(row.measured(sample) for sample in samples)
    measured = statistics.median(ratios)
    met = None if row.target is None else (measured <= row.target if row.at_most else measured >= row.target)
    arms = {name: _median([sample[name] for sample in samples]) for name in row.arms}
    return {"measured": measured, "met": met, "spread": [ratios[0], ratios[-1]], "arms": arms}


def _turned(arms: dict[str, Arm], number: int) -> list[tuple[str, Arm]]:
    """The arms, every second time from the last to the first: what warms the machine favours none."""
    return list(arms.items())[:: -1 if number % 2 else 1]


def _check_equal(row: Row, sample: dict[str, Sample]) -> None:
    digests = {name: sample[name].digest for name in row.equal}
    if len(set(digests.values())) > 1:
        raise RuntimeError(f"{row.work}, {row.shape}: the arms do not find the same: {digests}")


def _median(samples: list[Sample]) -> dict[str, Any]:
    numbers = {
        name: statistics.median(getattr(sample, name) for sample in samples)
        for name in ("cpu", "wall", "process", "peak")
    }
    extra = {name: statistics.median(sample.extra[name] for sample in samples) for name in samples[0].extra}
    return numbers | extra | ({"digest": samples[0].digest} if samples[0].digest else {})
