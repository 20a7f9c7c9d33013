"""What this machine can do, from a measurement of a few seconds, and what it has left."""

import functools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from ffkv.activations.contest import Contest
from ffkv.activations.statistics import Statistics
from ffkv.keys.features import shallow_evidence
from ffkv.model.discover.probe_texts import PASSAGES
from ffkv.model.head import topk as reading
from ffkv.model.head.head import CACHED_BYTES, CHUNK_BYTES
from ffkv.plan.shape import Shape
from ffkv.process.runtime import choose_device
from ffkv.values import step as values_step

# What jobs import, and in which stages: each holds what stands before it in its line.
STAGES = (
    {
        "store": "ffkv.files.hdf5",
        "tables": "ffkv.files.tables, pyarrow.parquet, ffkv.corpus.corpus_file",
        "keys": "ffkv.keys.patterns",
    },
    {
        "model": "ffkv.model.checkpoint.load, ffkv.model.head.head_file, transformers.models.gpt2.modeling_gpt2",
        "model and tables": "ffkv.files.tables, pyarrow.parquet",
        "all": "ffkv.keys.patterns",
    },
)
LIBRARIES = tuple(name for stage in STAGES for name in stage)
REPEATED = 300  # times that a short thing is timed together
EVIDENCE_SECONDS = 1.15e-5  # `shallow_evidence` of `PREFIX` on the machine where the constants in `costs` were fitted
PREFIX = PASSAGES[1].split()[:18]
DOCUMENTS_SECONDS = 2.4  # to read the embedded corpus, likewise
# Kinds of work that more threads do not make faster.
SERIAL = ("candidates", "calls", "bytes", "text", "seconds", "documents")
THREAD = 0.75  # of its work, what each further thread adds
SENTENCE = 25  # tokens
LARGEST = 4096  # columns of a matrix that is timed
TRAINING = 0.7  # what a step of training reaches of the rate of its matrix products alone
# By how much parts of the work take longer in a run than alone: `python -m benchmarks.costs` fits them.
FITTED: dict[str, float] = json.loads((Path(__file__).parent / "fitted.json").read_text())
DISK_RATE = 5e8  # bytes a second that are read, hashed or written; not measured: a page cache would answer
AT_WORK = 4e7  # bytes that libraries take besides, once they are used: pools of threads, readers and writers of files
TIMED = 0.15  # seconds that each measurement takes, about


class Libraries(NamedTuple):
    """What a job needs to start: seconds, and bytes that its libraries hold."""

    seconds: float
    memory: float


@dataclass(frozen=True)
class Rates:
    """Amounts of each kind of work that are done in a second: by one thread, or by the GPU.

    body, head, training: floating-point operations of matrix products in the blocks, in reading out, in training.
    coefficients: that are counted. candidates: that enter the contest for triggers. calls: of a block, on a batch of no size:
    alone, one small operation is timed; `FITTED` says of how many it takes the time. read, kept, normalized: logits of which
    the highest is taken, all that is kept of a value, a log-probability. bytes: read, hashed or written.
    text: seconds that splitting and tokenizing took here (1).
    seconds: of the machine where the constants were fitted; documents: times that the embedded corpus is read.
    """

    body: float
    head: float
    training: float
    coefficients: float
    candidates: float
    calls: float
    read: float
    kept: float
    normalized: float
    bytes: float
    text: float
    seconds: float
    documents: float


@dataclass(frozen=True)
class Machine:
    """cores: that the run may use. device: of torch. libraries: by name, see `LIBRARIES`."""

    cores: int
    device: str
    rates: Rates
    libraries: dict[str, Libraries]

    def rate(self, kind: str, threads: int) -> float:
        """Amount of a kind of work a second, by a job of so many threads."""
        if kind in SERIAL or self.device != "cpu":
            return getattr(self.rates, kind)
        return getattr(self.rates, kind) * (1 + THREAD * (threads - 1))


def measure(shape: Shape, device: str, batch_tokens: int, available: int) -> Machine:
    """Times the work that rules are made of, on random numbers of the run's own shape.

    On the CPU the processor time of one thread is taken, so that a machine that is busy for a moment is not taken for a
    slow one.

    Args:
        device: as the setting `model.device`. available: cores that the run may use.
    Raises:
        UserError: the device is not here.
    """
    device = choose_device(device)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return Machine(available, device, _rates(shape, device, batch_tokens), libraries())
    finally:
        torch.set_num_threads(before)


def _rates(shape: Shape, device: str, batch_tokens: int) -> Rates:
    body, head = _products(shape, device, batch_tokens)
    speed = REPEATED * EVIDENCE_SECONDS / seconds_of(lambda: [shallow_evidence(PREFIX) for _ in range(REPEATED)], "cpu")
    alone = {
        "body": body,
        "head": head,
        "training": TRAINING * body,
        **_coefficients(min(max(shape.memories), LARGEST), max(1, batch_tokens // SENTENCE), device),
        "calls": _calls(device),
        **_logits(shape.vocabulary, device),
        "bytes": DISK_RATE,
        "text": 1.0,
        "seconds": speed,
        "documents": speed / DOCUMENTS_SECONDS,
    }
    return Rates(**{kind: rate / FITTED.get(kind, 1.0) for kind, rate in alone.items()})


def _products(shape: Shape, device: str, batch_tokens: int) -> tuple[float, float]:
    """Operations a second of the products of the blocks, and of the head. Beyond `LARGEST` columns rates stay the same."""
    dtype, keys = getattr(torch, shape.dtype), min(max(shape.memories), LARGEST)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device).to(dtype)

    x, first = random(batch_tokens, shape.width), random(shape.width, keys)
    body = 2 * x.numel() * keys / seconds_of(lambda: x @ first, device)
    vectors = random(_rows(shape.vocabulary), max(1, shape.head // shape.vocabulary))
    embedding = random(min(shape.vocabulary, 8 * LARGEST), vectors.shape[1]).T
    return body, 2 * vectors.shape[0] * embedding.numel() / seconds_of(lambda: vectors @ embedding, device)


def _coefficients(keys: int, sentences: int, device: str) -> dict[str, float]:
    """How many coefficients are counted in a second, and how many candidates enter the contest."""
    m = torch.randn(sentences, SENTENCE, keys, device=device)
    peaks, statistics, places = m.amax(1), Statistics(keys, device), torch.arange(sentences, device=device)
    competes = torch.ones(sentences * SENTENCE, device=device)

    def count() -> None:
        statistics.add(m.reshape(-1, keys), competes, m.amax(1))
        statistics.add_histogram(m[:: max(1, sentences // 5)].reshape(-1, keys))

    def compete() -> None:
        Contest(keys, 50, 1, True, device).enter(m, peaks, None, places)

    entered = int((peaks > 0).sum())
    return {"coefficients": m.numel() / seconds_of(count, device), "candidates": entered / seconds_of(compete, device)}


def _calls(device: str) -> float:
    """How many small operations are called in a second."""
    small = torch.zeros(8, 8, device=device)
    return REPEATED / seconds_of(lambda: [small @ small for _ in range(REPEATED)], device)


def _logits(vocabulary: int, device: str) -> dict[str, float]:
    """How many logits are read in a second, by what is wanted of them."""
    rows = max(1, CACHED_BYTES // (4 * vocabulary)) if device == "cpu" else _rows(vocabulary)
    logits, tokens = torch.randn(rows, vocabulary, device=device), torch.zeros(rows, dtype=torch.long, device=device)
    wanted = {
        "read": lambda: reading.highest(logits),
        "kept": lambda: values_step.describe_logits(logits, 50, tokens),
        "normalized": lambda: reading.log_probability(logits, tokens),
    }
    return {kind: logits.numel() / seconds_of(work, device) for kind, work in wanted.items()}


def _rows(vocabulary: int) -> int:
    """Rows of logits that are timed: a quarter of what is made at a time."""
    return max(1, CHUNK_BYTES // 4 // (4 * vocabulary))


def seconds_of(work: Callable[[], object], device: str) -> float:
    """Seconds that some work takes: the best of several times, because whatever else runs here only makes it slower."""
    clock = time.perf_counter if device.startswith("cuda") else time.thread_time

    def once() -> float:
        start = clock()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return clock() - start

    end = time.perf_counter() + TIMED
    best = min(once(), once())  # the first call makes room and may compile
    while time.perf_counter() < end:
        best = min(best, once())
    return best


@functools.cache
def libraries() -> dict[str, Libraries]:
    """Processor time and memory that each group of libraries takes to import, in a process of its own."""
    found = {}
    for stages in STAGES:
        code = "import psutil, time\n"
        for modules in stages.values():
            code += f"import {modules}\nprint(time.process_time(), psutil.Process().memory_info().rss)\n"
        lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
        for name, line in zip(stages, lines):
            seconds, memory = map(float, line.split())
            found[name] = Libraries(seconds, memory + (AT_WORK if name != "store" else 0))
    return found


def disk_left(folder: Path) -> float:
    """Free bytes of the disk that a folder stands on, or will stand on."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return float(shutil.disk_usage(folder).free)


def memory_left(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes of memory that may be used: what is available, or what the limit of the process' group leaves.

    Args:
        groups: where control groups are mounted, of version 2 or 1.
    """
    left = float(psutil.virtual_memory().available)
    version_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")
    for limit, used, details in (("memory.max", "memory.current", "memory.stat"), version_1):
        try:
            allowed, taken = float((groups / limit).read_text()), float((groups / used).read_text())
            lines = dict(line.split() for line in (groups / details).read_text().splitlines())
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        left = min(left, allowed - taken + float(lines.get("inactive_file", 0)))  # a page cache gives way
    return max(left, 0.0)
