"""Thread pools as the commands set them, before torch is imported; and the GPU that a process has for itself. Progress in a log file."""

import os
import subprocess
import sys

import pytest
from tqdm import tqdm

from ffkv.base.process.progress import Bar, progress
from ffkv.base.process.runtime import usual_threads

PROGRAM = "from ffkv.base.process.runtime import configure; configure(2); import torch; print(torch.get_num_threads())"


def start(**environment: str) -> subprocess.CompletedProcess:
    """Imports torch in a process of its own. OpenMP prints what it read of the environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    environment = {**inherited, "OMP_DISPLAY_ENV": "true", **environment}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)


def test_threads_that_wait_leave_the_core_to_others():
    done = start()
    assert done.stdout == "2\n"
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr


def test_a_job_says_how_many_threads_it_has_and_no_other_limit_is_known(monkeypatch):
    monkeypatch.setattr("ffkv.base.process.runtime.allowed_cores", lambda: 16)
    for omp, slurm, expected in (("", "", 16), ("1", "8", 1), ("", "8", 8), ("0", "x", 16), ("4", "", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", slurm)
        assert usual_threads() == expected


def test_who_wants_threads_that_wait_in_a_loop_gets_them():
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in start(OMP_WAIT_POLICY="ACTIVE").stderr


ENTRIES = {
    "import ffkv; ffkv.open": None,
    "from ffkv.cli import main; sys.argv = ['ffkv', '--version']; main()": None,
    **{
        f"from ffkv.cli import ffkv; ffkv(['{command}', '--threads', '3', '--help'])": 3
        for command in ("explore", "trace", "generate", "graph", "causes", "export", "inspect")
    },
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_tells_threads_to_sleep_before_torch_is_there(entry):
    """An entry with `--threads` limits them, too. Others leave to the user how many threads a process has."""
    program = (
        "import atexit, os, sys\n"
        "names = 'OMP_WAIT_POLICY', 'OMP_NUM_THREADS'\n"
        "atexit.register(lambda: print('\\n', *(os.environ.get(name) for name in names), 'torch' in sys.modules, sep=' ', end=''))\n"
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run([sys.executable, "-c", program + entry], env=inherited, capture_output=True, text=True)
    assert done.stdout.split()[-3:-1] == ["PASSIVE", str(ENTRIES[entry])], done.stderr
    assert done.stdout.endswith("False")


def test_a_log_file_gets_plain_lines_that_say_what_is_done(capfd):
    with progress(1500, "sentence", "triggers") as bar:
        bar.update(1500)
    text = capfd.readouterr().err
    assert "triggers: 100%" in text
    assert "1.50k/1.50k" in text
    assert text.isascii()


def test_a_bar_has_no_thread(monkeypatch):
    """A process with threads cannot be forked safely."""
    monkeypatch.setattr(tqdm, "monitor", None)
    with progress(100, "sentence", "triggers") as bar:
        assert bar.monitor is None


def test_a_bar_looks_at_the_clock_at_each_update(capfd):
    with progress(100, "sentence", "triggers") as bar:
        bar.mininterval = 0  # seconds between lines
        bar.update(90)  # after so large a step tqdm would wait for another one
        bar.update(1)
        assert "91.0/100" in capfd.readouterr().err


def test_a_bar_notes_once_how_long_it_was_open(monkeypatch):
    """`ffkv plan` takes it for the time in which a command works."""
    monkeypatch.setattr(Bar, "spent", [])
    with progress(1, "things", "work") as bar:
        bar.update()
    bar.close()
    (seconds,) = Bar.spent
    assert 0 <= seconds < 60
