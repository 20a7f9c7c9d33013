"""kill -9 at random moments of a whole run: the data are those of an undisturbed one."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import h5py
import pandas as pd
import psutil
import pytest
import yaml
from forks import with_forks
from safetensors import safe_open
from support import OFFLINE, ROOT, assert_same_data, snakemake

pytestmark = pytest.mark.kills
KILLS = 12  # as many of each way
LONGEST_WAIT = 4.0  # seconds
SEED = 20
# Number and message of a job. The message is the same in every attempt, and no other job has it.
JOB = re.compile(r"^Job (\d+): (.+)$", re.MULTILINE)


def began_in(log: str) -> dict[str, str]:
    """The jobs that were started: number to message."""
    return dict(JOB.findall(log))


def ended_in(log: str) -> set[str]:
    """Those of them that Snakemake saw ending well."""
    began = began_in(log)
    return {began[job] for job in re.findall(r"Finished jobid: (\d+)", log) if job in began}


class Attempt:
    """A running Snakemake, in a session of its own, and its log."""

    def __init__(self, directory: Path, configfile: Path, number: int):
        self.log = directory / f"attempt_{number}.log"
        command = ["snakemake", "--snakefile", ROOT / "Snakefile", "--directory", directory, "--configfile", configfile]
        command += ["--workflow-profile", ROOT / "profiles/default", "--cores", "2", "--max-threads", "1"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )

    @property
    def running(self) -> bool:
        """Whether Snakemake itself is alive."""
        return self.process.poll() is None

    def began(self) -> dict[str, str]:
        """The jobs that were started: number to message."""
        return began_in(self.log.read_text())

    def ended(self) -> set[str]:
        """Those of them that Snakemake saw ending well."""
        return ended_in(self.log.read_text())

    def under_way(self) -> set[str]:
        """Those that began and did not end."""
        return set(self.began().values()) - self.ended()

    def steps(self) -> list[psutil.Process]:
        """The running `ffkv` processes of its jobs."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True) if self.running else ():
            try:
                arguments = process.cmdline()
            except psutil.Error:
                continue
            if len(arguments) > 1 and arguments[1].endswith("/ffkv"):
                found.append(process)
        return found

    def kill_snakemake(self) -> None:
        """Snakemake alone: its jobs live on."""
        self.process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        """Snakemake and everything that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_up_to(self, seconds: float) -> None:
        """Waits, at most until Snakemake ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)


LIVE = ("logs", "benchmarks")  # written line by line, by the shell and by Snakemake


def read_whole(path: Path) -> None:
    """Reads a file to its end, by means of its own format alone. Raises whatever that raises."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            file.visititems(lambda name, item: item[...] if isinstance(item, h5py.Dataset) else None)
    elif path.suffix == ".parquet":
        pd.read_parquet(path)
    elif path.suffix == ".csv":
        text = path.read_text()
        assert text.endswith("\n"), "the last line has no end"
        pd.read_csv(path)
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".safetensors":
        with safe_open(path, "numpy") as file:
            [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 (it is no dictionary)
    elif path.suffix in (".html", ".svg"):
        assert path.read_text().rstrip().endswith(f"</{path.suffix[1:]}>"), "the last tag is missing"


class Watcher(threading.Thread):
    """Reads each new file below some folders, and each that was replaced.

    seen: how many were read. broken: what was not whole, and why.
    """

    def __init__(self, folders: list[Path]):
        super().__init__(daemon=True)
        self.seen, self.broken = 0, []
        self._folders, self._known, self._end = folders, {}, threading.Event()

    def run(self):
        while not self._end.is_set():
            self._look()
            time.sleep(0.01)
        self._look()

    def stop(self) -> None:
        """Ends after a last look."""
        self._end.set()
        self.join()

    def _look(self) -> None:
        for folder in self._folders:
            for path in folder.rglob("*"):
                parts = path.relative_to(folder).parts
                if any(part.startswith(".") for part in parts) or set(LIVE) & set(parts[:-1]):
                    continue
                try:
                    entry = path.stat()
                    version = (entry.st_ino, entry.st_mtime_ns, entry.st_size)
                    if not path.is_file() or self._known.get(path) == version:
                        continue
                    self._known[path] = version
                    read_whole(path)
                    self.seen += 1
                except FileNotFoundError:  # Snakemake deletes what a failed job had made
                    continue
                except Exception as error:
                    if path.exists() and path.stat().st_ino == entry.st_ino:
                        self.broken.append((str(path), repr(error)))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """configs/tiny.yaml, in three shards."""
    path = tmp_path_factory.mktemp("settings") / "settings.yaml"
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text()) | {"shards": 3, "layer_groups": 1}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def undisturbed(settings, tmp_path_factory):
    """The folder of a run that nobody disturbed, how many jobs it had, and its seconds."""
    directory, begin = tmp_path_factory.mktemp("undisturbed"), time.monotonic()
    done = snakemake(directory, settings)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory, len(ended_in(done.stderr)), time.monotonic() - begin


def recover(directory) -> None:
    command = ["ffkv", "recover", "--cancel", "--directory", directory]
    done = subprocess.run(command, capture_output=True, text=True, env=with_forks(OFFLINE))
    assert done.returncode == 0, done.stderr


def kill(attempt: Attempt, how: str, choose: random.Random) -> bool:
    """Kills; whether there was something to kill."""
    if how == "step":
        steps = attempt.steps()
        if steps:
            choose.choice(steps).kill()
        return bool(steps)
    if not attempt.running:
        return False
    attempt.kill_group() if how == "group" else attempt.kill_snakemake()
    return True


def test_a_run_that_is_killed_again_and_again_ends_in_the_same_data(settings, undisturbed, tmp_path, cost):
    choose, kills, lost = random.Random(SEED), {"step": 0, "group": 0, "snakemake": 0}, 0
    whole, jobs, seconds = undisturbed
    # Each kill waits until so many jobs are done: kills are spread over the run however fast the machine is, and not so
    # late that it could be over before the last.
    moments = sorted(choose.randrange(2 * jobs // 3) for _ in range(KILLS))
    ways = choose.sample(list(kills) * (KILLS // len(kills)), KILLS)
    finished, watcher, begin = set(), Watcher([tmp_path / "results", tmp_path / "reports"]), time.monotonic()
    watcher.start()
    for number in range(200):
        attempt = Attempt(tmp_path, settings, number)
        while attempt.running and moments:
            if len(finished | attempt.ended()) < moments[0] or not attempt.steps():
                attempt.wait_up_to(0.1)
                continue
            attempt.wait_up_to(choose.uniform(0, LONGEST_WAIT))
            if kill(attempt, ways[-1], choose):
                kills[ways.pop()] += 1
                moments.pop(0)
        attempt.process.wait(1200)
        again = finished & set(attempt.began().values())
        assert not again, f"done twice: {again}"
        finished |= attempt.ended()
        lost += len(attempt.under_way())
        if attempt.process.returncode == 0:
            break
        recover(tmp_path)
    watcher.stop()
    assert attempt.process.returncode == 0, attempt.log.read_text()[-4000:]
    assert not moments, f"the run was over after {kills}"
    assert all(kills.values())
    assert watcher.broken == []
    assert watcher.seen > 50
    assert_same_data(tmp_path, whole)
    beyond = time.monotonic() - begin - seconds
    cost(f"kill -9 of {kills} in {number + 1} starts, {lost} jobs begun again, beyond {seconds:.0f} s", beyond)
