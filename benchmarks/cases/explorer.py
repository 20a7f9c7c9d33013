"""The explorer on a made-up run: how soon it answers, how fast its pages are, and how much memory it takes."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.inputs import GPT2, Shape
from benchmarks.made_up_run import make_run
from benchmarks.measure import Comparison, Contender, Measurement, Work

LARGE = Shape(48, 64, 9557, 50257)  # 458,736 memories; their width matters to nothing that is measured
READERS = 10


def explorer(scratch: Path, shape: list[int], sentences: int, requests: int, readers: int = READERS) -> Work:
    """Starts the explorer, and asks for pages of random memories and for searches, one after the other; then at once."""
    folder = make_run(scratch, shape, sentences)
    return lambda: _measure(folder, Shape(*shape), requests, readers)


def _measure(folder: Path, shape: Shape, requests: int, readers: int) -> dict[str, Any]:
    text = sum((folder / f"corpus/{split}.h5").stat().st_size for split in ("train", "validation"))
    start = time.perf_counter()
    command = [sys.executable, "-m", "ffkv", "explore", folder, "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout
        host, _, token = process.stdout.readline().split()[0].removeprefix("http://").partition("/")
        ask = _visitor(host, f"/{token}")
        ask("/")
        ready = time.perf_counter() - start
        ask("/r/random/memories?promotes=w1")  # waits until the indexes are made
        ask("/r/random/memories?text=w1")
        generator = np.random.default_rng(3)
        places = generator.integers(0, [shape.layers, shape.memories], (requests, 2)).tolist()
        words = generator.integers(0, shape.vocabulary, requests).tolist()
        found = {
            "ready": ready,
            "page": _slowest(ask, [f"/r/random/m/{layer}/{memory}" for layer, memory in places]),
            "token": _slowest(ask, [f"/r/random/memories?promotes=w{word}" for word in words]),
            "text": _slowest(ask, [f"/r/random/memories?text=w{word}" for word in words[: requests // 4]]),
            "memory": psutil.Process(process.pid).memory_info().rss - text,
        }
        with ThreadPoolExecutor(readers) as pool:
            visitors = [_visitor(host, f"/{token}") for _ in range(readers)]
            pages = [f"/r/random/m/{layer}/{memory}" for layer, memory in places]
            list(pool.map(lambda ask: [ask(page) for page in pages[: requests // 4]], visitors))
        return found
    finally:
        process.terminate()
        process.wait()


def _visitor(host: str, address: str) -> Callable[[str], float]:
    """Enters an explorer. Returns a function that asks for a page, and returns the seconds until it was read."""
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("GET", address)
    answer = connection.getresponse()
    answer.read()
    cookie = answer.headers["set-cookie"].split(";")[0]
    base = "/" + answer.headers["location"].split("/")[1]  # with which every address of a visitor begins

    def ask(address: str) -> float:
        start = time.perf_counter()
        connection.request("GET", base + address, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, (address, answer.status)
        return time.perf_counter() - start

    return ask


def _slowest(ask: Callable[[str], float], addresses: list[str]) -> float:
    """The 95th percentile of the seconds."""
    return float(np.quantile([ask(address) for address in addresses], 0.95))


def _number(name: str, factor: float) -> Callable[[dict[str, Measurement]], float]:
    return lambda measurements: factor * measurements["explorer"].extra[name]


def _lines(shape: Shape, limits: dict[str, float | None]) -> list[Comparison]:
    words = {
        "ready": ("explorer: the first page", 1, "s after the command"),
        "page": ("explorer: a memory", 1e3, "ms, 95th percentile"),
        "token": ("explorer: search by token", 1e3, "ms, 95th percentile"),
        "text": ("explorer: search by text", 1e3, "ms, 95th percentile"),
        "memory": ("explorer: memory", 1e-6, "MB resident beside the corpus files"),
    }
    arguments = {"shape": shape, "sentences": 50_000, "requests": 200}
    contenders = {"explorer": Contender(f"{__name__}:explorer", arguments)}
    return [
        Comparison(case, f"{shape}, 50,000 sentences", contenders, _number(name, factor), limits[name], unit, rounds=1)
        for name, (case, factor, unit) in words.items()
    ]


COMPARISONS = [
    *_lines(GPT2, {"ready": 3, "page": 60, "token": 50, "text": 150, "memory": 400}),
    *_lines(LARGE, {"ready": None, "page": None, "token": 400, "text": 400, "memory": None}),
]
