"""The jobs that Snakemake lists, and what is done of them."""

from pathlib import Path

import pytest
import yaml

from ffkv.base.errors import UserError
from ffkv.workflow.jobs import ask_snakemake, read_jobs

pytestmark = pytest.mark.workflow

SNAKEFILE = """
configfile: "mine.yaml"
rule all:
    input: "results/mine/last"
rule first:
    output: "results/{run}/one", "results/{run}/two"
    threads: 2
    shell: "ffkv first >log"
rule last:
    input: "results/{run}/one"
    output: "results/{run}/last"
    shell: "ffkv last >log"
"""


@pytest.fixture
def listed(tmp_path, monkeypatch, forked_python):
    """Lists the jobs of a small workflow of which some files exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"runs": {"mine": {}}}))

    def jobs(*existing):
        for name in existing:
            path = tmp_path / "results/mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        return {job.rule: job for job in read_jobs(ask_snakemake(Path("mine.yaml"), 1))}

    return jobs


def test_a_job_with_a_missing_output_is_not_done(listed):
    jobs = listed("one", "last")
    assert not jobs["first"].done
    assert jobs["first"].outputs == ["results/mine/one", "results/mine/two"]
    assert (jobs["first"].run, jobs["first"].threads, jobs["first"].command) == ("mine", 1, "ffkv first >log")
    assert jobs["last"].inputs == ["results/mine/one"]


def test_a_job_whose_outputs_all_exist_is_done(listed):
    assert all(job.done for job in listed("one", "two", "last").values())


def test_what_snakemake_refuses_is_said(listed, tmp_path):
    (tmp_path / "Snakefile").write_text("rule all:\n    input: 'nowhere'\n")
    with pytest.raises(UserError, match=r"Snakemake cannot plan these runs: (.|\n)*nowhere") as refused:
        listed()
    assert "Traceback" not in str(refused.value) and ".py" not in str(refused.value)
