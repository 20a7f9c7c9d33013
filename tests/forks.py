"""Commands in forks of one process that has their libraries: `ffkv` and `snakemake` begin in 0.1 s instead of 4 s.

`with_forks` gives the environment in which they do. `python-code` does there what `python -c` and `python -m` do: `ffkv` takes it
for its own Python. The processes that run tests side by side are such forks too, see `share`. As a program, this is the process.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Asks the process for a fork that is called like this file, has its arguments, folder, environment, and input and outputs.
ASK = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect({address!r})
    socket.send_fds(asking, [b"."], [0, 1, 2])
    asking.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    asking.shutdown(socket.SHUT_WR)
    sys.exit(int(asking.recv(9)) & 255)
"""
# What commands, and Snakemake, import later than at their start.
LATER = ["ffkv.run.report.step", "ffkv.workflow.rules", "peft", "spacy", "snakemake.report.html_reporter", "requests"]
COMMANDS = ("ffkv", "snakemake", "python-code")
SHARED = "FFKV_TEST_FORKS"  # the folder of the commands of a process that another one started
# By environment: the process, or None if another one started it, and the folder of its commands.
_started: dict[tuple, tuple[subprocess.Popen | None, Path]] = {}


def with_forks(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which `COMMANDS` are forks of a process that was started in the given one.

    In the environment that is returned, PYTHONPATH may get further places: they come last. Other variables should stay, because
    libraries read some only when they are imported. So another environment has a process of its own. The first one
    stays, because most tests ask for it; the others end when yet another environment is asked for.
    """
    if SHARED in os.environ and not _started:
        folder = Path(os.environ[SHARED])
        _started[_settings(json.loads((folder / "environment").read_text()))] = None, folder
    wanted = _settings(environment)
    if wanted not in _started:
        for other in [*_started][1:]:
            _started.pop(other)[0].stdin.close()  # which ends it, as the end of this process would
        _started[wanted] = _start(dict(wanted))
    return {**environment, "PATH": f"{_started[wanted][1]}{os.pathsep}{environment['PATH']}"}


def forks_of(environment: dict[str, str]) -> Path:
    """The folder of the commands of `with_forks`, for what is started by its path."""
    return Path(with_forks(environment)["PATH"].partition(os.pathsep)[0])


def share(environment: dict[str, str]) -> Path:
    """Starts the process for an environment. Returns `python-code`, in which other processes of tests begin in no time.

    For the same environment they take this process, and start none of their own.
    """
    folder = forks_of(environment)
    (folder / "environment").write_text(json.dumps(environment))
    os.environ[SHARED] = str(folder)
    return folder / "python-code"


def _settings(environment: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that libraries may read: all but what tells who runs which test, and what an import of readline sets."""
    left_out = ("PYTEST_", SHARED, "LINES", "COLUMNS")
    return tuple(sorted((name, value) for name, value in environment.items() if not name.startswith(left_out)))


def _start(environment: dict[str, str]) -> tuple[subprocess.Popen, Path]:
    """Starts the process. Returns it, and the folder with the commands that ask it for forks."""
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    command, pipe = [sys.executable, __file__, folder / "socket"], subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe)
    assert process.stdout.readline() == b"ready\n"
    for name in COMMANDS:
        (folder / name).write_text(ASK.format(python=sys.executable, address=str(folder / "socket")))
        (folder / name).chmod(0o755)
    return process, folder


def modules() -> list[str]:
    """The modules of commands and of the steps of branches."""
    from ffkv.branches.registry import BRANCHES
    from ffkv.cli import COMMANDS

    steps = [step.function for branch in BRANCHES.values() for step in branch.steps.values()]
    return sorted({place.partition(":")[0] for place in [*steps, *(place for place, _ in COMMANDS.values())] if place})


def serve(address: str) -> Callable[[], None]:
    """Waits for commands. Returns, in a fork, what the command does."""
    from ffkv.base.process.runtime import configure

    gc.disable()  # imports leave no garbage
    configure(1)  # no thread pool starts before the forks
    from snakemake.cli import main as snakemake

    from ffkv.cli import main
    from ffkv.workflow.jobs import STEPS, import_libraries

    import_libraries()
    for module in [*modules(), *LATER]:
        importlib.import_module(module)
    if "PYTHONPATH" not in os.environ:  # else a test may change the code there
        _ = [step.code for step in STEPS.values()]  # every start of Snakemake asks for these hashes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        gc.freeze()  # a fork does not touch, and so copy, what is there already
        gc.enable()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                break
            connection.close()
        else:
            shutil.rmtree(Path(address).parent)
            return lambda: None
    with connection:
        _, files, _, _ = socket.recv_fds(connection, 1, 3)
        words, folder, environment = json.load(connection.makefile())
        if command := os.fork():
            connection.send(str(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])).encode())
            os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path += [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place not in sys.path]
    sys.argv = words
    if Path(words[0]).name == "ffkv":
        sys.executable = str(Path(address).with_name("python-code"))
    return dict(zip(COMMANDS, (main, snakemake, run_code), strict=True))[Path(words[0]).name]


def run_code() -> None:
    """Runs the Python code, or with -m the module, after the options of `python` with which it is called."""
    options = []
    while (code := sys.argv.pop(1)) in ("-u", "-c", "-m", "-P"):
        options.append(code)
    if "-P" not in options:
        sys.path.insert(0, "")
    if "-m" in options:
        sys.modules.pop(code, None)  # else it is warned of
        runpy.run_module(code, run_name="__main__", alter_sys=True)
    else:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    try:
        serve(sys.argv[1])()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else ended.code is not None
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without taking all modules apart, which takes a second
