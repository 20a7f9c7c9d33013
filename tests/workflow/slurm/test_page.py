"""On a real SLURM: the documented commands give a local run's bytes, and a job gets the memory and the GPU that it needs."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support import ROOT, assert_same_data

from tests.workflow.slurm.runs import OPTIONS, finish, jobs_of, lost, profile

pytestmark = pytest.mark.cluster


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
# would do; every snakemake gets the options of `runs`; there is one group of layers, as in the local run; and there is a
# checkpoint and a text where the page has its own.
AROUND = """
set -euo pipefail
snakemake() {{ command snakemake "$@" {options}; }}
git() {{ command git "$@" && ln -s {environment} ffkv/.venv && mkdir -p ffkv/path/to ffkv/texts \\
    && ln -s {checkpoint} ffkv/path/to/checkpoint && cp {readme} ffkv/texts/a.txt \\
    && sed -i 's/^layer_groups: 2$/layer_groups: 1/' ffkv/configs/tiny.yaml; }}
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
        timeout=3600,  # against a cluster that hangs, and no measure of one that is slow
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
