"""Thread pools as the commands set them, before torch is imported."""

import os
import subprocess
import sys

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


def test_who_wants_threads_that_wait_in_a_loop_gets_them():
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in start(OMP_WAIT_POLICY="ACTIVE").stderr
