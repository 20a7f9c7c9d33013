"""On a real SLURM, runs in which everything fails once give a local run's bytes. `test_page` has a cluster beside this one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import assert_same_data

from tests.workflow.slurm.runs import TARGETS, disturb, finish, from_shards_on, jobs_of, lost, profile

pytestmark = pytest.mark.cluster


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
    process = start(folder, *TARGETS, profile=placed)
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
    assert_same_data(folder, undisturbed)


def recover(slurm, folder: Path, *options: str) -> subprocess.CompletedProcess:
    command = [Path(sys.prefix) / "bin/ffkv", "recover", "--directory", folder, *options]
    return subprocess.run(command, env={**os.environ, **slurm.environment}, capture_output=True, text=True, timeout=300)


def test_an_interrupted_and_a_killed_snakemake_go_on_to_the_same_bytes(slurm, undisturbed, start, tmp_path, cost):
    folder = from_shards_on(undisturbed, tmp_path)

    process = start(folder, *TARGETS)
    disturb(slurm, process, {"triggers .*--shard 0 ": lambda found: process.send_signal(signal.SIGINT)})
    assert process.wait(120) != 0
    deadline = time.monotonic() + 60
    while {job.state for job in jobs_of(slurm, folder)} - {"CANCELLED", "COMPLETED"}:  # its processes write their state
        assert time.monotonic() < deadline, jobs_of(slurm, folder)
        time.sleep(0.3)
    assert recover(slurm, folder).stdout == f"Nothing is left behind in {folder}.\n"
    interrupted = jobs_of(slurm, folder)

    process = start(folder, *TARGETS)
    # The interrupted one for sure is made again; the other may have ended before.
    disturb(slurm, process, {"(triggers|sampled-prefixes) .*--shard 0 ": lambda found: None})
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

    finish(start(folder, *TARGETS), folder)
    assert_same_data(folder, undisturbed)
    completed = [job.comment for job in jobs_of(slurm, folder) if job.state == "COMPLETED"]
    assert len(completed) == len(set(completed))
    first = interrupted[0].comment
    cost("Ctrl-C", lost(slurm, folder, first))
    again = [job for job in jobs_of(slurm, folder, under_way[0].comment) if job not in interrupted]
    cost("snakemake killed hard, `ffkv recover`", again[1].submitted - again[0].submitted)
