"""Changes the methods, one place at a time, and runs the tests that reach the place: does one fail?

    python tests/mutants.py [PATTERN ...] [--share SHARE] [--jobs N]

mutmut makes the changed functions, the mutants: `[tool.mutmut]` of pyproject.toml names the modules and the tests. The tests run once
without a change, which tells what each of them reaches. Then a fork of this process runs them for each mutant, the fastest
ones first, until one fails.

Prints the mutants that no test kills, and how many are killed of each module. Exit code 1 if it is less than 90 %. A mutant
that takes too long, or that makes Python crash, is killed. One that no test reaches is not. A pattern such as
`*.keys.*` chooses mutants by name, and a share such as 0.1 at random.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest
from _pytest.runner import runtestprotocol
from mutmut.__main__ import create_mutants
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths
from mutmut.utils.format_utils import mangled_name_from_mutant_name
from tqdm import tqdm

LEAST = 0.9  # share of all mutants that tests must kill
SURVIVED, UNREACHED = "no test fails", "no test reaches it"
REACHED = Path("reached.jsonl")  # in the folder of the mutants
Timed = tuple[float, pytest.Item]  # seconds that a test takes, and the test


class Mutants:
    """A plugin of pytest that runs the collected tests for each mutant."""

    def __init__(self, names: list[str], jobs: int):
        self.names, self.jobs = names, jobs
        self.alive: dict[str, str] = {}  # mutants that are not killed, and why
        self.running: dict[int, str] = {}  # by process
        shown = os.fdopen(os.dup(2), "w")  # pytest takes what else is written
        self.bar = tqdm(total=len(names), file=shown, unit="mutant")

    def pytest_sessionstart(self) -> None:
        """Lets hypothesis fail at once: it need not look for a smaller example."""
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", hypothesis.settings(phases=phases, database=None))
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs all tests without a change, then those of each mutant. Each time in a fork: a fork of what has run torch can stop."""
        gc.freeze()  # else each fork copies the memory that it collects garbage in
        if os.waitpid(fork(lambda: study(session.items)), 0)[1]:
            pytest.exit(f"A test fails without a change: {REACHED.read_text().splitlines()[-1]}", 2)
        reached: dict[str, list[Timed]] = defaultdict(list)  # tests by function
        for item, line in zip(session.items, REACHED.read_text().splitlines(), strict=True):
            for function in json.loads(line)["reached"]:
                reached[function].append((json.loads(line)["seconds"], item))
        tests_of = {
            name: sorted(reached.get(mangled_name_from_mutant_name(name), []), key=lambda test: test[0])
            for name in self.names
        }
        for name, tests in sorted(tests_of.items(), key=lambda of: sum(seconds for seconds, _ in of[1])):
            if tests:
                while len(self.running) >= self.jobs:
                    self.wait()
                self.running[fork(lambda name=name, tests=tests: try_mutant(name, tests))] = name
            else:
                self.note(name, UNREACHED)
        while self.running:
            self.wait()
        return True

    def wait(self) -> None:
        """Waits for a process, and notes what became of its mutant."""
        process, status = os.wait()
        self.note(self.running.pop(process), SURVIVED if status == 0 else "")

    def note(self, name: str, alive: str) -> None:
        """Notes that a mutant is killed, or why it is not."""
        if alive:
            self.alive[name] = alive
            self.bar.write(f"{name}: {alive}", self.bar.fp)
        self.bar.update()


def fails(item: pytest.Item, following: pytest.Item) -> bool:
    """Runs a test, and tells whether it fails. Fixtures that the following test needs, too, stay."""
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def study(items: list[pytest.Item]) -> int:
    """Writes what each test reaches and how many seconds it takes, until one fails."""
    set_mutant_under_test("stats")
    with REACHED.open("w") as file:
        for item, following in zip(items, [*items[1:], items[0]], strict=True):
            state()._stats.clear()
            start = time.process_time()
            failed = fails(item, following)
            found = {"test": item.nodeid, "seconds": time.process_time() - start, "reached": [*state()._stats]}
            print(json.dumps(found), file=file, flush=True)
            if failed:
                return 1
    return 0


def try_mutant(name: str, tests: list[Timed]) -> int:
    """Returns 0 if no test fails of a mutant, else 1."""
    seconds = 10 + 20 * int(sum(taken for taken, _ in tests))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.alarm(60 * seconds)  # for one that waits without end
    set_mutant_under_test(name)
    items = [item for _, item in tests]
    return int(any(map(fails, items, [*items[1:], items[0]])))


def fork(work: Callable[[], int]) -> int:
    """Starts a process that does some work and ends with what it returns. Returns the number of the process."""
    if process := os.fork():
        return process
    status = 1
    try:
        status = work()
    finally:
        os._exit(status)


def make_mutants() -> dict[Path, list[str]]:
    """Writes the folder `mutants`: the repository with all mutants in its functions. Returns their names by module."""
    shutil.rmtree("mutants", ignore_errors=True)
    with contextlib.redirect_stdout(io.StringIO()):
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(os.cpu_count() or 1)
    setup_source_paths()
    names = {}
    for path in config().source_paths:
        made = SourceFileMutationData(path=path)
        made.load()
        names[path] = [*made.exit_code_by_key]
    return names


def main() -> int:
    """Makes the mutants, runs the tests, and prints what survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--share", type=float, default=1, help="of the mutants: a random sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    drawn = random.Random(0)
    names = {
        path: [
            name
            for name in made
            if drawn.random() < arguments.share and any(fnmatch(name, pattern) for pattern in arguments.patterns)
        ]
        for path, made in make_mutants().items()
    }
    mutants = Mutants([name for of_module in names.values() for name in of_module], arguments.jobs)
    with contextlib.chdir("mutants"):
        code = pytest.main(
            [*config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection], plugins=[mutants]
        )
    if code:
        return int(code)
    for path, of_module in names.items():
        for name in filter(mutants.alive.get, of_module):
            changed = [line for line in get_diff_for_mutant(name, path=path).splitlines()[2:] if line[0] in "+-"]
            print(name, *changed, "", sep="\n")
    for path, of_module in names.items():
        if of_module:
            report(str(path), of_module, mutants.alive)
    return int(report("all", mutants.names, mutants.alive) < LEAST)


def report(title: str, names: list[str], alive: dict[str, str]) -> float:
    """Prints how many of some mutants are killed, and returns their share."""
    killed = sum(name not in alive for name in names)
    print(f"{killed:5} of {len(names):5} killed, {killed / len(names):6.1%}  {title}")
    return killed / len(names)


if __name__ == "__main__":
    sys.exit(main())
