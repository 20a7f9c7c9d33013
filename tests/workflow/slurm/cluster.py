"""A real SLURM cluster on this one machine, for tests: Debian's packages, two virtual nodes, nothing but loopback.

`with cluster(folder) as cluster:` starts munged, slurmctld and a slurmd for each node, and ends them, with whatever they
started and nothing else. Everything is written below the folder. Needs root. No accounting database, no cgroups.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "setpriv")
PACKAGES = "munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins"
CLIENTS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sshare", "sacctmgr")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# 4 CPUs and 64 GB are what each node claims, whatever the machine has; node n1 has a GPU in name only.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=30
# Without these two every daemon listens on all addresses.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0
# A step is one process group, which it stays when a parent dies before its children.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
# Without cgroups nothing holds a job to its memory: this looks once a second, and kills the step that is over.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
# Seconds: quick kills, quick notice of a dead node (whose jobs start again after cred_expire above); squeue shows ended jobs for an hour.
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=20
InactiveLimit=0
MinJobAge=3600
Waittime=0
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=4 RealMemory=64000 Gres=gpu:1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=4 RealMemory=64000
PartitionName=main Nodes=n1,n2 Default=YES DefaultTime=10 MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=n1 Default=NO DefaultTime=10 MaxTime=INFINITE State=UP
"""


class Job(NamedTuple):
    """A job as squeue shows it, ended ones among them."""

    number: str
    name: str  # of the snakemake that submitted it
    state: str  # PENDING, RUNNING, COMPLETED, FAILED, TIMEOUT, CANCELLED, NODE_FAIL, ...
    node: str
    submitted: float  # seconds since the epoch
    memory: str  # what was asked for
    limit: str  # of time
    comment: str  # the rule and its wildcards


class Cluster:
    """A cluster that runs."""

    def __init__(self, folder: Path):
        """folder: where `_configure` has written what the daemons need."""
        self.folder = folder
        self.environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self.daemons: dict[str, subprocess.Popen] = {}

    def call(self, *command: str) -> str:
        """The output of a SLURM command."""
        path = self.folder / "bin" / command[0]
        return subprocess.run([path, *command[1:]], check=True, capture_output=True, text=True, timeout=60).stdout

    def jobs(self) -> list[Job]:
        """Every job of the last hour, by number."""
        lines = self.call("squeue", "--states=all", "--noheader", "--sort=i", "--format=%i|%j|%T|%N|%V|%m|%l|%k")
        rows = [line.split("|", 7) for line in lines.splitlines()]
        return [Job(*row[:4], _seconds(row[4]), *row[5:]) for row in rows]

    def start(self, *names: str) -> None:
        """Starts daemons: munged, slurmctld, or a node's slurmd by the node's name."""
        commands = {
            "munged": ["munged", "--foreground", *_munge_options(self.folder / "munge")],
            "slurmctld": ["slurmctld", "-D"],
            **{node: ["slurmd", "-D", "-N", node] for node in NODES},
        }
        environment = {"PATH": SYSTEM_PATH, "HOME": "/root", "LANG": "C.UTF-8", "SLURM_CONF": str(_slurm_conf(self))}
        for name in names:
            with (self.folder / f"{name}.out").open("w") as output:  # setpriv: no daemon outlives a killed test
                self.daemons[name] = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *commands[name]],
                    env=environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def wait_for(self, what: str, *command: str, answer: str = "", seconds: float = 60) -> None:
        """Waits until a SLURM command succeeds, with `answer` in its output."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                if answer in self.call(*command):
                    return
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons.values()):
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))
                raise RuntimeError(f"{what} did not come up:\n{logs}")
            time.sleep(0.2)

    def started(self, number: str) -> list[float]:
        """When a job that is over started, once for each time that SLURM put it back into the queue."""
        found = re.findall(rf"^JobId={number} .*?StartTime=(\S+)", (self.folder / "jobs.log").read_text(), re.M)
        return [_seconds(text) for text in found]

    def kill_node(self, node: str) -> None:
        """A power cut: the node's slurmd, the managers of its steps, and the steps, by SIGKILL in this order."""
        log = str(self.folder / f"slurmd.{node}.log")
        managers = [step for step in self._managers() if log in {file.path for file in step.open_files()}]
        steps = [process for process in self.processes() if _variable(process, "SLURMD_NODENAME") == node]
        self.daemons.pop(node).kill()
        for process in [*managers, *steps]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """What this cluster runs, the daemons among it: nothing else is ever given its SLURM_CONF."""
        configuration = str(_slurm_conf(self))
        known = [process for process in psutil.process_iter() if _variable(process, "SLURM_CONF") == configuration]
        return [*known, *self._managers()]

    def stop(self) -> None:
        """Ends everything: jobs first, because they outlive their slurmd, then the daemons, then what is left."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.call("scancel", "--user=root")
            deadline = time.monotonic() + 20
            while self.call("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.2)
        for daemon in self.daemons.values():
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in self.daemons.values():
            daemon.wait(10)

    def _managers(self) -> list[psutil.Process]:
        """The managers of steps: they write over their environment, and work where their slurmd does."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name() == "slurmstepd" and process.cwd() == str(self.folder):
                    found.append(process)
        return found


def missing() -> str:
    """What this machine lacks for a cluster; empty where nothing is missing."""
    programs = [program for program in PROGRAMS if shutil.which(program, path=SYSTEM_PATH) is None]
    if programs:
        return f"no {', '.join(programs)} here: apt-get install {PACKAGES}"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "snakemake-executor-plugin-slurm is not installed: make slurm"
    return "" if os.geteuid() == 0 else "a test cluster can only be started by root"


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of two nodes, with all its files below `folder`, which must be empty."""
    _configure(folder)
    started = Cluster(folder)
    try:
        started.start("munged")
        started.wait_for("munged", "munge", "-n", seconds=20)
        started.start("slurmctld")
        started.wait_for("slurmctld", "scontrol", "ping", answer="UP")
        started.start(*NODES)
        for node in NODES:
            started.wait_for(node, "sinfo", "--noheader", f"--nodes={node}", "--format=%t", answer="idle")
        yield started
    finally:
        started.stop()


def _configure(folder: Path) -> None:
    for name in ("bin", "etc", "munge", "state", *(f"spool.{node}" for node in NODES)):
        (folder / name).mkdir(parents=True, mode=0o700)
    (folder / "munge/key").write_bytes(os.urandom(128))
    (folder / "munge/key").chmod(0o400)
    ports = dict(zip(("controller", *NODES), _free_ports(1 + len(NODES))))
    conf = folder / "etc/slurm.conf"
    conf.write_text(CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=folder, **ports))
    (folder / "etc/gres.conf").write_text("NodeName=n1 Name=gpu File=/dev/null\n")  # any file stands for a device
    # SLURM_CONF in the environment is not enough: the executor of a job's step takes it away before it calls srun.
    for client in (*CLIENTS, "munge"):
        if real := shutil.which(client, path=SYSTEM_PATH):
            options = f" -S {folder}/munge/socket" if client == "munge" else ""
            (folder / "bin" / client).write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {real}{options} "$@"\n')
            (folder / "bin" / client).chmod(0o755)


def _seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _munge_options(folder: Path) -> list[str]:
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    return [*(f"--{option}={folder / name}" for option, name in files.items()), "--force"]


def _slurm_conf(started: Cluster) -> Path:
    return started.folder / "etc/slurm.conf"


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except psutil.Error:  # gone, or a kernel thread
        return None
