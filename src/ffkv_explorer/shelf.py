"""The open runs, and what the explorer keeps in memory of each."""

import bisect
import contextlib
import functools
import hashlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.terminal import plain
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import check_memory, parse_memory_name
from ffkv.run.results.readings import READINGS
from ffkv.run.results.run import Run, open
from ffkv.run.results.sought import detector

DIGITS = 8  # of each hash that a page names
SAMPLED = 256  # prefixes whose coefficients are kept in memory, at most
SAMPLE_BYTES = 2**26  # of these coefficients
TRACE_ROWS = 2**20  # of the predictions of traces that are kept in memory, some 60 bytes each

PATIENCE = 5.0  # seconds in which a process ends by itself

_importing = threading.Lock()


class NoSuch(UserError):
    """There is no such run, memory, sheet or page."""


class Busy(UserError):
    """Something else is being computed."""


class LruCache:
    """Keeps the answers that were used last, by their question, up to a total size."""

    def __init__(self, limit: float, size: Callable[[Any], float] = lambda answer: 1):
        """limit: the largest sum of sizes; size: the size of an answer."""
        self._limit, self._size = limit, size
        self._lock, self._working = threading.Lock(), threading.RLock()  # an answer may need another one
        self._kept: dict[Any, Any] = {}  # what was used last comes last

    def get(self, question: Any, answer: Callable[[], Any]) -> Any:
        """Returns the kept answer, or makes it. One answer is made at a time; a kept answer need not wait for that."""
        if (found := self.kept(question)) is None:
            with self._working:
                if (found := self.kept(question)) is None:  # else it was made meanwhile
                    found = answer()
                    with self._lock:
                        self._kept[question] = found
                        while len(self._kept) > 1 and sum(map(self._size, self._kept.values())) > self._limit:
                            del self._kept[next(iter(self._kept))]  # what was not used for longest
        return found

    def kept(self, question: Any) -> Any:
        """Returns the kept answer; None if there is none."""
        with self._lock:
            if (found := self._kept.pop(question, None)) is not None:
                self._kept[question] = found
            return found


class Sample(NamedTuple):
    """Coefficients of one layer on sampled prefixes."""

    m: np.ndarray  # coefficients [prefix, memory]
    sentence: np.ndarray  # sentence in the validation split [prefix]
    position: np.ndarray  # length of the prefix in tokens [prefix]
    next_token: np.ndarray  # id of the token that follows [prefix]


def _answers() -> dict[str, LruCache]:
    def rows(trace: Any) -> int:
        return sum(len(each.predictions) for each in (trace, trace.changed) if each)

    return {"trace": LruCache(TRACE_ROWS, rows), "graph": LruCache(16), "generate": LruCache(64)}


@dataclass
class Held:
    """An open run."""

    run: Run
    name: str  # its name in addresses
    # Coefficients of sampled prefixes by layer, and of all tokens of the trigger examples by memory; similar memories.
    samples: LruCache = field(default_factory=lambda: LruCache(SAMPLE_BYTES, lambda sample: sample.m.nbytes))
    colours: LruCache = field(default_factory=lambda: LruCache(64))
    similar: LruCache = field(default_factory=lambda: LruCache(256))
    # Pages of the run with its maps, by what these asked; the drawings of the claims.
    maps: LruCache = field(default_factory=lambda: LruCache(32))
    # By the function of ffkv that gives them, answers by what was asked: traces, graphs, and texts that the model wrote.
    answers: dict[str, LruCache] = field(default_factory=_answers)
    readings: dict[str, "Held"] = field(default_factory=dict)  # the same run in other readings
    loading: threading.Thread | None = None  # what loads the model before anybody asks it
    measuring: threading.Thread | None = None  # what measures chance before anybody seeks patterns

    def read_as(self, reading: str) -> "Held":
        """The same run in another reading. What does not depend on the reading is shared. Raises NoSuch if there is none."""
        if reading not in self.readings:
            try:
                run = self.run.read_as(reading)
            except UserError as error:
                raise NoSuch(str(error)) from error
            held = Held(run, self.name, samples=self.samples, colours=self.colours)
            held.answers["generate"] = self.answers["generate"]
            self.readings[reading] = held
        return self.readings[reading]

    @property
    def note(self) -> str:
        """What precedes the head in this reading, as a sentence."""
        return READINGS[self.run.files.reading].note

    @property
    def asks(self) -> dict[str, str]:
        """What an address asks so that a page is in this reading."""
        return {} if self.run.files.reading == "head" else {"reading": self.run.files.reading}

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """Which model, corpus and settings the run's numbers are of, by short hashes."""
        settings = hashlib.sha256(self.run.settings.model_dump_json().encode()).hexdigest()
        corpus = self.run.files.corpora["train"]["corpus_hash"]
        named = {"model": self.run.anatomy.model_hash, "corpus": corpus, "settings": settings}
        return {name: value[:DIGITS] for name, value in named.items()}

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Number of memories of each layer [layer]."""
        return [layer.memories for layer in self.run.anatomy.layers]

    def place(self, name: str) -> tuple[int, int]:
        """Returns the place of a memory by its name. Raises NoSuch if it is none, or the run has no such memory."""
        try:
            place = parse_memory_name(name)
            check_memory(*place, self.sizes)
        except UserError as error:
            raise NoSuch(str(error)) from error
        return place

    @property
    def data(self) -> str:
        """The hashes in one word, for `data=` in addresses."""
        return "-".join(self.hashes.values())

    def sample(self, layer: int) -> Sample:
        """Up to 256 prefixes of `sampled_prefixes.h5`, spread evenly; kept for the next memory of the layer."""

        def read() -> Sample:
            start, stop = self.run.anatomy.layer_offset[layer : layer + 2]
            with self.run.files.open_sampled_prefixes() as file:
                # The file has them in the order of the corpus, so every so many-th is a sample of the whole.
                chosen = slice(0, None, max(1, -(-len(file["sentence"]) // SAMPLED)))
                rest = (file[name][chosen] for name in ("sentence", "position", "next_token"))
                return Sample(file["m"][chosen, start:stop], *rest)

        return self.samples.get(layer, read)

    def load_in_background(self) -> None:
        """Begins to load the model, once, so that the first trace need not."""

        def load() -> None:
            import_model_code()
            model = self.run.model()
            _ = model.tokenizer, model.head  # which are read when they are asked for

        self.loading = self.loading or _in_background(load)

    def prepare_to_seek(self) -> None:
        """Begins to measure, once, what patterns random prefixes show, so that the first search for patterns need not."""

        def measure() -> None:
            import_page_code()
            detector(self.run.files)

        self.measuring = self.measuring or _in_background(measure)

    def prepare(self) -> None:
        """Reads what searches need, once. Whoever asks meanwhile waits."""
        files = self.run.files
        for end in ("top", "bottom"):
            indexes.kept_tokens(files, end)
        of_memories = (indexes.statistics, indexes.labels, indexes.explanations, indexes.effects_by_memory)
        for index in (*of_memories, indexes.trigger_places, indexes.trigger_patterns, indexes.sampled_keys):
            index(files)


@dataclass
class Shelf:
    """The open runs."""

    runs: dict[str, Held]  # by name
    history: bool = True  # whether traces are kept, so that pages lead back to them
    model: threading.Lock = field(default_factory=threading.Lock)  # held by what runs a model: one request at a time
    starting: threading.Lock = field(default_factory=threading.Lock)  # held by what starts a process
    # processes, by the file of prompts that each is asked
    asking: dict[Path, subprocess.Popen] = field(default_factory=dict)

    @property
    def running(self) -> Path | None:
        """The file of prompts that a process is still asked; None if there is none."""
        return next((path for path, process in self.asking.items() if process.poll() is None), None)

    def stop(self) -> None:
        """Ends what is still computed, and waits for its end."""
        for process in self.asking.values():
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()

    def run(self, name: str) -> Held:
        """Returns an open run. Raises NoSuch if no run of this name is open."""
        if name not in self.runs:
            raise NoSuch(f"No run {plain(name)!r} is open. Open are: {', '.join(self.runs)}.")
        return self.runs[name]


def open_shelf(folders: Sequence[Path], history: bool = True, **allowed: Any) -> Shelf:
    """Opens finished runs. A second run of one name gets a number.

    `allowed`: as for `ffkv.open`. Raises UserError: see there; or a run keeps annotations where its files cannot send ffkv.
    """
    if len(folders) > 1 and allowed.get("annotations"):
        raise UserError("--annotations is the folder of one run. Open that run alone.")
    runs: dict[str, Held] = {}
    for folder in folders:
        run = open(folder, keep_open=True, **allowed)
        names = (run.name, *(f"{run.name}-{number}" for number in range(2, len(folders) + 1)))
        name = next(name for name in names if name not in runs)
        runs[name] = Held(run, name)
        # The corpus belongs to the model, and people can keep what they say, or the run cannot be opened.
        runs[name].hashes, run.files.annotations
    return Shelf(runs, history)


def prepare_in_background(shelf: Shelf) -> None:
    """Reads in a thread what the first pages would wait for, and imports what the first trace would."""

    def prepare() -> None:
        for held in shelf.runs.values():
            with contextlib.suppress(UserError):
                held.prepare()
                sizes = accumulate(4 * SAMPLED * memories for memories in held.sizes)
                for layer in range(bisect.bisect(list(sizes), SAMPLE_BYTES)):  # as many as are kept
                    held.sample(layer)
        import_model_code()
        import_page_code()

    _in_background(prepare)


@functools.cache
def import_page_code() -> None:
    """Imports what some pages need and the others need not wait for: torch, then scipy and matplotlib.

    One thread at a time imports: another one would find modules that are not whole. scipy looks at torch, also while it computes. So
    it is imported nowhere else, and a page that computes with it comes here first.
    """
    with _importing:
        import torch  # noqa: F401

        import ffkv.branches.keys.patterns
        import ffkv.run.report.claims
        import ffkv.run.report.drawing
        import ffkv.run.report.overview  # noqa: F401


@functools.cache
def import_model_code() -> None:
    """Imports what runs a model, with transformers, which takes some seconds. See `import_page_code`."""
    with _importing:
        import transformers.models.auto.modeling_auto  # noqa: F401

        import ffkv.run.graph.of_prompt
        import ffkv.run.trace.coefficients
        import ffkv.run.trace.generate
        import ffkv.run.trace.trace  # noqa: F401


def _in_background(work: Callable[[], Any]) -> threading.Thread:
    """Begins to do something in a thread. What fails is left to the page that needs it, which does it again."""

    def do() -> None:
        with contextlib.suppress(BaseException):  # what libraries in Rust raise is no `Exception`
            work()

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread
