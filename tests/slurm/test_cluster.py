"""On a real SLURM: the documented commands give a local run's bytes, and so do runs in which everything fails once."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml
from slurm.cluster import Job
from slurm.conftest import SHARDS
from support import ROOT, assert_same_data

pytestmark = pytest.mark.cluster
# So that the last digits agree with the local run's, and that a test need not wait for the questions of a busy cluster.
OPTIONS = ("--max-threads", "1", "--slurm-init-seconds-before-status-checks", "10")


def from_shards_on(undisturbed: Path, folder: Path) -> Path:
    """A copy of the finished run whose corpus passes, and what follows from them, are still to be done."""
    copy = shutil.copytree(undisturbed, folder / "copy")
    results = copy / "results/tiny"
    for path in (*results.glob("triggers*"), *results.glob("sampled_prefixes*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (results / "keys", results / "composition", results / "refinement", copy / "reports"):
        shutil.rmtree(path)
    return copy


def profile(folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of the profile with changes in its text, as the page says."""
    shutil.copytree(ROOT / "profiles/slurm", folder / "profile")
    path = folder / "profile/profile.yaml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return folder / "profile"


@pytest.fixture
def start(slurm):
    """Starts snakemake on the cluster as a person does, so that it can be interrupted; a test leaves none behind."""
    started = []

    def go(folder: Path, *arguments: str, **files: Path) -> subprocess.Popen:
        started.append(submit(slurm, folder, *arguments, **files))
        return started[-1]

    yield go
    for process in started:
        process.kill()
        process.wait()


def submit(slurm, folder: Path, *arguments: str, profile=ROOT / "profiles/slurm", config=ROOT / "configs/tiny.yaml"):
    """A snakemake of the tiny run in a folder, its output in a file there."""
    command = ["env", "--default-signal=INT", "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", folder]
    command += ["--configfile", config, *SHARDS, "--workflow-profile", profile, *OPTIONS, *arguments]
    environment = {**os.environ, **slurm.environment, "HF_HUB_OFFLINE": "1"}
    with (folder / "output").open("a") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen, folder: Path) -> None:
    assert process.wait(600) == 0, (folder / "output").read_text()[-8000:]


def step(slurm, command: str) -> psutil.Process | None:
    """The process inside a job whose command line matches, once it is at work."""
    for process in slurm.processes():
        with contextlib.suppress(psutil.Error):
            if re.search(rf"bin/ffkv {command}", " ".join(process.cmdline())):
                return process
    return None


def disturb(slurm, process: subprocess.Popen, disturbances: dict[str, Callable[[psutil.Process], None]]) -> None:
    """Waits for steps by their command lines, and disturbs each as soon as it is at work."""
    waiting = dict(disturbances)
    while waiting:
        assert process.poll() is None, f"snakemake ended before {list(waiting)}"
        for command in list(waiting):
            if found := step(slurm, command):
                waiting.pop(command)(found)
        time.sleep(0.3)


def jobs_of(slurm, folder: Path, rule: str = "") -> list[Job]:
    """The jobs that the snakemakes of a folder submitted, in their order: all, or a rule's by its comment."""
    runs = re.findall(r"SLURM run ID: (\S+)", (folder / "output").read_text())
    return [job for job in slurm.jobs() if job.name in runs and rule in ("", job.comment)]


def lost(slurm, folder: Path, rule: str) -> float:
    """Seconds between the first two submissions of a job: its lost work, and the time until that was noticed."""
    first, second, *_ = jobs_of(slurm, folder, rule)
    return second.submitted - first.submitted


def commands(page: Path) -> list[str]:
    """The blocks of commands of a page, in their order."""
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.M | re.S)


def repository(folder: Path) -> Path:
    """This source, as it stands, as a repository that can be cloned."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "source"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


# Around the page's commands: this environment stands for the one that `make slurm` would install, which only says what it
# would do; every snakemake gets the options above; and there is a checkpoint and a text where the page has its own.
AROUND = """
set -euo pipefail
snakemake() {{ command snakemake "$@" {options}; }}
git() {{ command git "$@" && ln -s {environment} ffkv/.venv && mkdir -p ffkv/path/to ffkv/texts \\
    && ln -s {checkpoint} ffkv/path/to/checkpoint && cp {readme} ffkv/texts/a.txt; }}
make() {{ command make --dry-run "$@"; }}
"""


def test_the_documented_commands_give_the_bytes_of_a_local_run(slurm, undisturbed, tmp_path, cost):
    """From `git clone` to the report, over both nodes."""
    (tmp_path / "source").mkdir()
    around = AROUND.format(
        options=" ".join(OPTIONS),
        environment=sys.prefix,
        checkpoint=undisturbed / "results/tiny/checkpoint",
        readme=ROOT / "README.md",
    )
    environment = {**os.environ, **slurm.environment, "SOURCE": str(repository(tmp_path / "source"))}
    started = time.monotonic()
    followed = subprocess.run(
        ["bash", "-c", around + "\n".join(commands(ROOT / "docs/cluster.md"))],
        cwd=tmp_path,
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    cost("nothing failed: the page's commands", time.monotonic() - started)
    assert followed.returncode == 0, followed.stdout[-4000:] + followed.stderr[-8000:]
    assert_same_data(tmp_path / "ffkv", undisturbed)
    assert (tmp_path / "ffkv/reports/tiny/index.html").exists()
    assert {"n1", "n2"} <= {job.node for job in slurm.jobs() if job.state == "COMPLETED"}
    said = followed.stdout + followed.stderr
    assert said.count("Using workflow specific profile profiles/slurm") == 3
    assert "pip install --quiet -c envs/constraints.txt -r envs/requirements-slurm.txt" in said
    assert f"Nothing is left behind in {tmp_path / 'ffkv'}." in said


def test_a_job_over_its_memory_is_retried_with_more_and_gets_a_gpu_when_asked_for(
    slurm, undisturbed, start, tmp_path, monkeypatch, cost
):
    folder = shutil.copytree(undisturbed, tmp_path / "copy")
    made = "results/tiny/keys/removal/0.parquet"
    (folder / made).unlink()
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text()) | {"model": {"gpus": 1}}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("FFKV_GPU_PARTITION", "gpu")
    small = profile(tmp_path, ("16000 * attempt", "350 * attempt"))
    finish(start(folder, made, profile=small, config=tmp_path / "settings.yaml"), folder)
    first, *others = jobs_of(slurm, folder, "rule_keys_removal_wildcards_tiny_0")
    assert (first.state, first.memory) == ("FAILED", "350M")
    assert (others[-1].state, others[-1].memory) in {("COMPLETED", f"{350 * attempt}M") for attempt in (2, 3, 4)}
    about = slurm.call("scontrol", "show", "job", others[-1].number)
    assert "Partition=gpu" in about and "TresPerJob=gres:gpu:1" in about
    assert_same_data(folder, undisturbed)
    cost("a job over its memory", lost(slurm, folder, first.comment))


def test_a_job_over_its_time_a_cancelled_job_and_a_dead_node_do_not_end_the_run(
    slurm, undisturbed, start, tmp_path, cost
):
    """One step hangs beyond its time limit, one job is cancelled, and one node is cut off, in one run."""
    folder = from_shards_on(undisturbed, tmp_path)
    placed = profile(
        tmp_path,
        (
            "  triggers:\n    mem_mb: 16000 * attempt\n    runtime: 240 * attempt\n",
            "  triggers:\n    slurm_extra: \"'--nodelist=n1'\"\n    mem_mb: 2000 * attempt\n"
            "    runtime: 4 * attempt - 3 if wildcards.shard == '0' else 60\n",
        ),
        (
            "  sampled_prefixes:\n    mem_mb: 16000 * attempt\n",
            "  sampled_prefixes:\n    slurm_extra: \"'--nodelist=n2' + (' --no-requeue' if wildcards.shard == '0' else '')"
            " if attempt == 1 else ''\"\n    mem_mb: 2000 * attempt\n",
        ),
    )
    targets = ("results/tiny/triggers.h5", "results/tiny/sampled_prefixes.h5")
    process = start(folder, *targets, profile=placed)
    disturb(
        slurm,
        process,
        {
            "triggers .*--shard 0 ": lambda found: found.suspend(),
            "triggers .*--shard 1 ": lambda found: slurm.call("scancel", found.environ()["SLURM_JOB_ID"]),
            "sampled-prefixes .*--shard 0 ": lambda found: slurm.kill_node("n2"),
        },
    )
    slurm.wait_for("the end of n2", "sinfo", "--noheader", "--nodes=n2", "--format=%t", answer="down")
    slurm.start("n2")
    finish(process, folder)
    for failure, rule, first in (
        ("a job over its time", "rule_triggers_wildcards_tiny_0", "TIMEOUT"),
        ("a cancelled job", "rule_triggers_wildcards_tiny_1", "CANCELLED"),
        ("a dead node, seen by Snakemake", "rule_sampled_prefixes_wildcards_tiny_0", "NODE_FAIL"),
    ):
        jobs = jobs_of(slurm, folder, rule)
        assert [job.state for job in jobs] == [first, "COMPLETED"]
        cost(failure, lost(slurm, folder, rule))
    # SLURM may kill one that it has put back, by a late message to the node; then Snakemake tries it again.
    requeued = jobs_of(slurm, folder, "rule_sampled_prefixes_wildcards_tiny_1")
    first, second = slurm.started(requeued[0].number)
    assert requeued[-1].state == "COMPLETED"
    cost("a dead node, whose jobs SLURM puts back into the queue", second - first)
    for name in ("triggers.h5", "sampled_prefixes.h5"):
        path = f"results/tiny/{name}"
        assert (folder / path).read_bytes() == (undisturbed / path).read_bytes()


def recover(slurm, folder: Path, *options: str) -> subprocess.CompletedProcess:
    command = [Path(sys.prefix) / "bin/ffkv", "recover", "--directory", folder, *options]
    return subprocess.run(command, env={**os.environ, **slurm.environment}, capture_output=True, text=True, timeout=300)


def test_an_interrupted_and_a_killed_snakemake_go_on_to_the_same_bytes(slurm, undisturbed, start, tmp_path, cost):
    folder = from_shards_on(undisturbed, tmp_path)

    process = start(folder)
    disturb(slurm, process, {"triggers .*--shard 0 ": lambda found: process.send_signal(signal.SIGINT)})
    assert process.wait(120) != 0
    deadline = time.monotonic() + 60
    while {job.state for job in jobs_of(slurm, folder)} - {"CANCELLED", "COMPLETED"}:  # its processes write their state
        assert time.monotonic() < deadline, jobs_of(slurm, folder)
        time.sleep(0.3)
    assert recover(slurm, folder).stdout == f"Nothing is left behind in {folder}.\n"
    interrupted = jobs_of(slurm, folder)

    process = start(folder)
    disturb(slurm, process, {"sampled-prefixes .*--shard 0 ": lambda found: None})
    refused = recover(slurm, folder, "--cancel")
    assert (refused.returncode, f"process {process.pid}" in refused.stderr) == (2, True)
    process.kill()
    process.wait()
    under_way = [job for job in jobs_of(slurm, folder) if job.state == "RUNNING"]
    assert under_way
    listed = recover(slurm, folder)
    assert all(f"SLURM job {job.number}, running" in listed.stdout for job in under_way)
    assert "the folder is locked" in listed.stdout
    done = recover(slurm, folder, "--cancel")
    assert done.returncode == 0, done.stderr
    assert not [job for job in jobs_of(slurm, folder) if job.state in ("PENDING", "RUNNING", "COMPLETING")]

    finish(start(folder), folder)
    assert_same_data(folder, undisturbed)
    completed = [job.comment for job in jobs_of(slurm, folder) if job.state == "COMPLETED"]
    assert len(completed) == len(set(completed))
    first = interrupted[0].comment
    cost("Ctrl-C", lost(slurm, folder, first))
    again = [job for job in jobs_of(slurm, folder, under_way[0].comment) if job not in interrupted]
    cost("snakemake killed hard, `ffkv recover`", again[1].submitted - again[0].submitted)
