"""Disks that are full, read-only, or damaged: what a person sees, and that nothing wrong is analysed."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import ROOT, assert_same_data, snakemake

from ffkv.run.results.check import check_run

pytestmark = pytest.mark.kills
SETTINGS = ROOT / "configs/tiny.yaml"
# What a step makes, and its file that is larger than what is left on the disk, ROOM, which is more than what a run needs
# to start.
TARGETS = [
    ("results/tiny/corpus/train.h5", "results/tiny/corpus/train.h5"),
    ("results/tiny/sampled_prefixes/1.h5", "results/tiny/sampled_prefixes/1.blocks/0.h5"),
    ("reports/tiny/index.html", "reports/tiny/index.html"),
]
ROOM = 200_000


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    """A disk of its own at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def run(tiny, tmp_path):
    """A copy of the finished run on a disk of 16 MB."""
    with small_disk(tmp_path / "disk", 16) as disk:
        shutil.copytree(tiny, disk, dirs_exist_ok=True, symlinks=True)  # with the times of its files
        yield disk


def fill(disk: Path, leaving: int) -> Path:
    """Fills a disk up to some bytes."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    os.truncate(disk / "filler", max(0, (disk / "filler").stat().st_size - leaving))
    return disk / "filler"


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(("target", "large"), TARGETS)
def test_a_full_disk_is_named_and_the_same_command_goes_on(tiny, run, target, large):
    for path in {target, large}:
        remove(run / path)
    filler = fill(run, leaving=ROOM)
    done = snakemake(run, SETTINGS, target)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"{large} does not fit: " in said
    assert "Traceback" not in said
    assert not (run / target).exists()
    assert not list(run.rglob("*.partial"))
    filler.unlink()
    assert snakemake(run, SETTINGS, target).returncode == 0
    assert (run / target).exists()
    assert_same_data(run, tiny)


def test_a_disk_with_no_room_at_all_is_named_before_anything_runs(run):
    remove(run / "results/tiny/triggers.h5")
    fill(run, leaving=0)
    done = snakemake(run, SETTINGS, "results/tiny/triggers.h5")
    assert done.returncode == 1
    assert (
        f"The disk of {run} is full. Free some space, then start the same command again." in done.stdout + done.stderr
    )


@pytest.mark.parametrize(
    ("what", "target"),
    [
        ("", "results/tiny/sampled_prefixes.h5"),
        ("results", "results/tiny/sampled_prefixes.h5"),
        ("results/tiny/keys", "results/tiny/keys/removal/0.parquet"),
    ],
)
def test_a_folder_that_is_read_only_is_named_before_anything_runs(tiny, tmp_path, what, target):
    shutil.copytree(tiny, tmp_path / "run", symlinks=True)
    remove(tmp_path / "run" / target)
    place = tmp_path / "run" / what
    with small_disk(tmp_path / "disk", 16) as disk:
        shutil.copytree(place, disk, dirs_exist_ok=True, symlinks=True)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        shutil.rmtree(place)
        place.symlink_to(disk)
        done = snakemake(tmp_path / "run", SETTINGS, target)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"{disk} cannot be written: its disk is read-only, or it belongs to somebody else." in said
    assert "Traceback" not in said


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damaged", "damage", "reader"),
    [
        ("results/tiny/sampled_prefixes/1.h5", cut, "results/tiny/sampled_prefixes.h5"),
        ("results/tiny/keys/by_prefix/1.parquet", flip, "results/tiny/keys/figure_2_categories.csv"),
        ("results/tiny/model/head.safetensors", flip, "results/tiny/values/projections/1.h5"),
        ("results/tiny/refinement/prediction_changes.csv", cut, "reports/tiny/index.html"),
    ],
)
def test_a_damaged_file_is_named_and_not_analysed(tiny, tmp_path, damaged, reader, damage):
    """What another program does to a file, Snakemake sees by its time; a bad disk changes no time."""
    run = tmp_path / "run"
    shutil.copytree(tiny, run, symlinks=True)
    entry = (run / damaged).stat()
    damage(run / damaged)
    os.utime(run / damaged, ns=(entry.st_atime_ns, entry.st_mtime_ns))
    remove(run / reader)
    done = snakemake(run, SETTINGS, reader)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"{damaged} is not what ffkv wrote" in said
    assert "Traceback" not in said
    assert not (run / reader).exists()
    # What the message and the check say is enough.
    (problem,) = [one for one in check_run(run / "results/tiny")[1] if one.kind != "missing"]
    assert problem.kind == "damaged"
    remove(problem.path)
    assert snakemake(run, SETTINGS, str(problem.path.relative_to(run))).returncode == 0
    assert snakemake(run, SETTINGS).returncode == 0
    assert check_run(run / "results/tiny")[1] == []
    assert_same_data(run, tiny)


def test_the_second_of_two_runs_in_one_folder_says_so_and_ends(tiny, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(tiny, run, symlinks=True)
    assert not (run / "results/tiny/triggers/0.h5").exists()  # it was deleted when it was merged
    command = ["snakemake", "--snakefile", ROOT / "Snakefile", "--directory", run, "--configfile", SETTINGS]
    target = "results/tiny/triggers/0.h5"
    with subprocess.Popen(
        [*command, "--cores", "1", target], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as first:
        while b"trigger examples of every key" not in first.stderr.readline():
            pass
        second = snakemake(run, SETTINGS, target)
        first.stderr.read()
    assert first.returncode == 0
    assert second.returncode == 1
    assert "cannot be locked" in second.stdout + second.stderr
