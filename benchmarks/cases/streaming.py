"""Memory of `ffkv corpus`, with small and large data sets, from the emulated hub of the tests and from local files."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import Shape, draw_lengths, make_model
from benchmarks.measure import ROOT, Comparison, Contender, Measurement, Work

SHAPE = Shape(1, 16, 32, 8192)
FILES = 10
SMALL, LARGE, LIMIT = 2_000, 20_000, 1_000
SENTENCES = 5  # of a document
HUB = "someone/words"
# A process starts with the peak of the one that starts it. This process is large; one that starts the command is not.
SMALL_PROCESS = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(usage.ru_maxrss)
sys.exit(process.returncode)
"""


def corpus(scratch: Path, shape: list[int], rows: int, ending: str, limit: int) -> Work:
    """`ffkv corpus` of local files (ending "parquet", "jsonl.gz" or "jsonl.zst"), or of the emulated hub ("hub")."""
    model = make_model(scratch, shape)
    files = make_files(scratch, rows, "jsonl.gz" if ending == "hub" else ending, shape[-1])
    output = scratch / "streamed.h5"
    options = ["--split=train", "--splitter=line", "--validation-share=1e-9"]
    options += [f"--model={model}", f"--output={output}", f"--limit={limit}"]

    def work() -> dict[str, Any]:
        if ending != "hub":
            peak = peak_of([*options, "--dataset=files", f"--train={files}/*"], dict(os.environ))
        else:
            sys.path.append(str(ROOT / "tests"))
            from tests.base.hub.emulator import Hub

            with Hub() as hub:
                hub.dataset(HUB).push({path.name: path.read_bytes() for path in files.iterdir()})
                peak = peak_of([*options, f"--dataset={HUB}"], hub.environment(scratch / "hub_cache"))
        return {"command": peak, "written": output.stat().st_size}

    return work


def peak_of(options: list[str], environment: dict[str, str]) -> int:
    """The largest resident memory of `ffkv corpus`, in bytes."""
    command = [sys.executable, "-c", SMALL_PROCESS, Path(sys.executable).parent / "ffkv", "corpus", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ffkv corpus ended with {done.returncode}: {done.stderr[-2000:]}")
    return int(done.stdout) * 1024


def make_files(scratch: Path, documents: int, ending: str, vocabulary: int) -> Path:
    """A folder with `FILES` files of random documents, made if it is not there."""
    folder = scratch / "texts" / f"{vocabulary}-{documents}-{ending}"
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    rows = [{"text": text} for text in draw_texts(documents, vocabulary)]
    for number in range(FILES):
        part = rows[len(rows) * number // FILES : len(rows) * (number + 1) // FILES]
        write_rows(folder / f"train-{number:05}-of-{FILES:05}.{ending}", part)
    return folder


def draw_texts(documents: int, vocabulary: int) -> Iterator[str]:
    """Random documents of `SENTENCES` lines with the lengths of WikiText's sentences."""
    lengths = draw_lengths(documents * SENTENCES)
    words = np.random.default_rng(2).integers(1, vocabulary, int(lengths.sum())).tolist()
    sentences = []
    for length in lengths:
        sentences.append(" ".join(f"w{words.pop()}" for _ in range(length)))
        if len(sentences) == SENTENCES:
            yield "\n".join(sentences)
            sentences = []


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """Writes rows into a file of the kind that its name says."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=1000)
        return
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data, mtime=0))
    else:
        import zstandard

        path.write_bytes(zstandard.compress(data))


def command(documents: int, ending: str, limit: int = 0) -> Contender:
    """`ffkv corpus` over so many documents."""
    arguments = {"shape": SHAPE, "rows": documents, "ending": ending, "limit": limit}
    return Contender(f"{__name__}:corpus", arguments)


def sizes_of(ending: str, limit: int = 0) -> dict[str, Contender]:
    """The small and the large data set."""
    return {f"{documents:,} documents": command(documents, ending, limit) for documents in (SMALL, LARGE)}


def peak_ratio(measurements: dict[str, Measurement]) -> float:
    """The peak with the large data set, divided by that with the small one."""
    small, large = measurements.values()
    return large.extra["command"] / small.extra["command"]


def growth(measurements: dict[str, Measurement]) -> float:
    """The peak with the large data set, divided by that with the small one and twice what the written corpus grows by."""
    small, large = (measurement.extra for measurement in measurements.values())
    return large["command"] / (small["command"] + 2 * (large["written"] - small["written"]))


KINDS = {"hub": "jsonl.gz on the emulated hub", "parquet": "parquet", "jsonl.zst": "jsonl.zst"}
COMPARISONS = [
    *(
        Comparison(
            "memory of a streamed corpus",
            f"{kind}, limit {LIMIT:,}: {LARGE:,} documents in {FILES} files over {SMALL:,}",
            sizes_of(ending, LIMIT),
            peak_ratio,
            1.1,
            "times the peak",
            rounds=1,
        )
        for ending, kind in KINDS.items()
    ),
    Comparison(
        "memory of a whole corpus",
        f"jsonl.gz: {LARGE:,} documents in {FILES} files over {SMALL:,}",
        sizes_of("jsonl.gz"),
        growth,
        1.1,
        "times the peak with few documents and twice the bytes that are written more",
        rounds=1,
    ),
]
