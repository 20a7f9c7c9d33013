"""`ffkv recover`: after a hard kill nothing of the run is left, and nothing else is touched."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner

from ffkv.base.errors import UserError
from ffkv.workflow import recover

SQUEUE = '#!/bin/sh\ntest "$1 $2" = "--me --noheader" && cat {queue}\n'
SCANCEL = '#!/bin/sh\nfor job; do sed -i "/^$job|/d" {queue}; done\n'


@pytest.fixture
def folder(tmp_path):
    """Where a snakemake was killed: locked, with two unfinished files and two whole ones."""
    folder = tmp_path / "a run's folder"
    for path in (
        ".snakemake/locks/0.input.lock",
        "results/tiny/triggers/.0.h5.node1.4711.partial",
        "results/tiny/.model.node1.4712.partial/anatomy.json",
        "results/tiny/values.h5",
        "reports/tiny/index.html",
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("text")
    return folder


@pytest.fixture
def slurm(folder, tmp_path, monkeypatch):
    """squeue and scancel over a file of jobs: two of the folder, and one each of another name and another folder."""
    queue = tmp_path / "queue"
    queue.write_text(
        f"7|RUNNING|ffkv_1|rule_triggers_wildcards_tiny_0|{folder}\n8|PENDING|ffkv_1|rule_keys|{folder}\n"
        f"9|RUNNING|other_1|rule_keys|{folder}\n10|RUNNING|ffkv_2|rule_keys|{tmp_path}\n"
    )
    for name, text in {"squeue": SQUEUE, "scancel": SCANCEL}.items():
        (tmp_path / name).write_text(text.format(queue=queue))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (folder / ".snakemake/slurm_logs").mkdir(parents=True)  # of jobs that were submitted
    return tmp_path


def call(folder, *options):
    return CliRunner().invoke(recover.recover, ["--directory", str(folder), *options])


def wait_until(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_left_is_listed_and_nothing_changed(folder, slurm):
    result = call(folder)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "SLURM job 7, running: triggers tiny_0",
        "SLURM job 8, pending: keys",
        "unfinished: results/tiny/.model.node1.4712.partial",
        "unfinished: results/tiny/triggers/.0.h5.node1.4711.partial",
        "the folder is locked",
        "Nothing was changed. `ffkv recover --cancel` cancels, deletes and unlocks all of this.",
    ]
    assert len((slurm / "queue").read_text().splitlines()) == 4


def test_cancel_ends_deletes_and_unlocks_this_folders_and_nothing_else(folder, slurm):
    result = call(folder, "--cancel")
    assert result.exit_code == 0, result.output
    assert [line.split("|")[0] for line in (slurm / "queue").read_text().splitlines()] == ["9", "10"]
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"results/tiny/values.h5", "reports/tiny/index.html"}
    assert call(folder).output == f"Nothing is left behind in {folder}.\n"


@pytest.mark.parametrize("name", ["unlink", "rmdir", "scandir", "open"])
def test_what_cannot_be_looked_up_or_deleted_is_not_called_done(folder, monkeypatch, name):
    def fail(path, *_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    (folder / ".snakemake/ffkv_owner.json").write_text("{}")
    monkeypatch.setattr("ffkv.base.lookup.open_file" if name == "open" else f"os.{name}", fail)
    result = call(folder, "--cancel")
    monkeypatch.undo()
    assert result.exit_code
    assert "Input/output error" in f"{result.output}{result.exception}"
    assert not {"Done", "Nothing"} & {*result.output.split()}
    assert recover.is_locked(folder)


@pytest.mark.parametrize(("answer", "locked"), [("y\n", False), ("n\n", True), ("\n", True)])
def test_at_a_terminal_one_is_asked(folder, slurm, monkeypatch, answer, locked):
    monkeypatch.setattr(recover, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    result = CliRunner().invoke(recover.recover, ["--directory", str(folder)], input=answer)
    assert result.exit_code == 0, result.output
    assert recover.is_locked(folder) == locked


def test_without_slurm_the_folder_is_still_unlocked(folder, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert call(folder, "--cancel").exit_code == 0
    assert not recover.is_locked(folder)


@pytest.mark.parametrize(
    ("program", "text", "message"),
    [
        ("squeue", "echo 'no contact with slurmctld' >&2; exit 1", "`squeue` failed: no contact with slurmctld"),
        ("squeue", "exec sleep 60", "SLURM gave no answer to `squeue`"),
        ("scancel", "echo 'access denied' >&2; exit 1", "`scancel` failed: access denied"),
        ("scancel", "exit 0", "SLURM job 7 (RUNNING), SLURM job 8 (PENDING) of"),
    ],
)
def test_a_slurm_that_fails_is_named_and_the_folder_stays_locked(folder, slurm, monkeypatch, program, text, message):
    (slurm / program).write_text(f"#!/bin/sh\n{text}\n")
    monkeypatch.setattr(recover, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(recover, "END_SECONDS", 0.5)
    result = call(folder, "--cancel")
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert recover.is_locked(folder)
    assert len(recover.unfinished_files(folder)) == 2


@pytest.fixture
def pretend(folder):
    """Starts a process of the folder that looks like a snakemake."""
    started = []

    def start(*arguments):
        script = folder.parent / "snakemake"
        script.write_text("import time\nprint(flush=True)\ntime.sleep(60)\n")
        process = subprocess.Popen([sys.executable, script, *arguments], cwd=folder, stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("options", [[], ["--cancel"], ["--cancel", "--insist"]])
def test_a_snakemake_at_work_here_is_named(folder, pretend, options):
    process = pretend("--cores", "2")
    result = call(folder, *options)
    assert isinstance(result.exception, UserError)
    assert f"process {process.pid}" in str(result.exception)
    assert recover.is_locked(folder)


def test_the_snakemake_inside_a_job_is_none(folder, pretend):
    pretend("--mode", "remote")
    recover.refuse_living(folder)


def test_a_snakemake_of_another_folder_is_none(folder, pretend, tmp_path):
    pretend()
    recover.refuse_living(tmp_path)


def test_a_snakemake_on_another_host_is_named_unless_one_insists(folder):
    (folder / recover.OWNER).write_text(json.dumps({"host": "login2", "pid": 4711, "local": True}))
    result = call(folder, "--cancel")
    assert isinstance(result.exception, UserError)
    assert "login2 (process 4711)" in str(result.exception)
    assert recover.is_locked(folder)
    assert call(folder, "--cancel", "--insist").exit_code == 0
    assert not recover.is_locked(folder)
    recover.refuse_living(folder)  # not locked: that one has ended


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "a"}', '{"host": "a", "pid": null, "local": true}'])
def test_a_note_that_was_cut_short_is_no_obstacle(folder, text):
    (folder / recover.OWNER).write_text(text)
    recover.refuse_living(folder)


def test_the_workflow_notes_who_works_in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    recover.note_owner(local=False)
    note = {"host": socket.gethostname(), "pid": os.getpid(), "local": False}
    assert json.loads((folder / recover.OWNER).read_text()) == note


def test_slurm_is_asked_only_about_folders_that_may_have_jobs_there(folder, slurm, monkeypatch):
    monkeypatch.chdir(folder)
    recover.SLURM_LOGS.rmdir()
    assert recover.slurm_jobs(folder) == []  # nothing was ever started
    recover.note_owner(local=True)
    assert recover.slurm_jobs(folder) == []
    recover.SLURM_LOGS.mkdir()  # an earlier snakemake submitted some
    assert len(recover.slurm_jobs(folder)) == 2


STEP = "sleep 300; : ffkv triggers --output {output}"


@pytest.mark.workflow
def test_processes_of_a_killed_snakemake_are_ended(tmp_path):
    (tmp_path / "Snakefile").write_text(
        "from ffkv.workflow.recover import note_owner\n\nonstart:\n    note_owner(workflow.local_exec)\n\n"
        f'rule step:\n    output: "results/x"\n    shell: "echo > started; {STEP}"\n'
    )
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet"]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as snakemake:
        wait_until((tmp_path / "started").exists)
        with pytest.raises(UserError, match=f"process {snakemake.pid}"):
            recover.refuse_living(tmp_path)
        assert recover.local_orphans(tmp_path, []) == []
        snakemake.send_signal(signal.SIGKILL)
    wait_until(lambda: recover.local_orphans(tmp_path, []))
    orphans = recover.local_orphans(tmp_path, [])
    assert {orphan.name() for orphan in orphans} == {"bash", "sleep"}
    assert recover.local_orphans(tmp_path.parent, []) == []
    assert call(tmp_path, "--cancel").exit_code == 0
    assert not [orphan for orphan in orphans if orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE]
    assert not recover.is_locked(tmp_path)


def test_a_step_that_runs_by_hand_is_no_orphan(tmp_path):
    shell = f"set -euo pipefail; {STEP}"
    with subprocess.Popen(["bash", "-c", shell], cwd=tmp_path, stdout=subprocess.DEVNULL) as step:
        wait_until(lambda: psutil.Process(step.pid).children())
        assert recover.local_orphans(tmp_path, []) == []
        psutil.Process(step.pid).children()[0].kill()


def test_a_folder_without_a_run_is_said(tmp_path):
    """The answer "nothing is left behind" is true of a run only."""
    refused = call(tmp_path)
    assert isinstance(refused.exception, UserError)
    assert str(refused.exception) == f"No snakemake has run in {tmp_path}. Name its folder with --directory."


def test_inside_of_a_run_the_folder_above_is_named(folder):
    refused = call(folder / "results/tiny", "--cancel")
    assert f"It has in {folder}: name that with --directory." in str(refused.exception)
    assert recover.is_locked(folder)


def test_a_leftover_that_is_a_link_is_deleted_and_what_it_points_to_stays(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine").write_text("mine")
    link = folder / "results/tiny/.x.h5.node1.999999.partial"
    link.symlink_to(tmp_path / "elsewhere")
    assert call(folder, "--cancel").exit_code == 0
    assert not link.is_symlink()
    assert (tmp_path / "elsewhere/mine").read_text() == "mine"
    assert not recover.is_locked(folder)
