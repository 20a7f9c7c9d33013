"""The jobs of a settings file, as Snakemake lists them: their commands, their files, and whether they are done.

Run as a program, `python -m ffkv.plan.jobs SNAKEFILE FOLDER CONFIGFILE CORES` prints them as JSON: Snakemake has a process of
its own, because it changes the folder and the log of the process that it works in.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import ffkv
from ffkv.errors import UserError

SNAKEFILES = (Path("Snakefile"), Path("workflow/Snakefile"), Path(ffkv.__file__).parent / "workflow/Snakefile")


class Job(NamedTuple):
    """One job of the workflow.

    Attributes:
        rule: name of its rule.
        run: name of its run.
        threads: threads that it may use.
        command: its shell command.
        inputs: paths that it reads.
        outputs: paths that it writes.
        done: whether each output exists and is up to date.
    """

    rule: str
    run: str
    threads: int
    command: str
    inputs: list[str]
    outputs: list[str]
    done: bool


def ask_snakemake(configfile: Path, cores: int, folder: Path = Path()) -> subprocess.Popen:
    """Starts a Snakemake that lists the jobs of a settings file for runs in a folder."""
    snakefile = next((path for path in SNAKEFILES if path.exists()), SNAKEFILES[-1]).resolve()
    arguments = ["-m", "ffkv.plan.jobs", snakefile, folder.resolve(), configfile.resolve(), str(cores)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # rules look for `ffkv`
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *arguments], env={**os.environ, "PATH": path}, **pipes)


def read_jobs(snakemake: subprocess.Popen) -> list[Job]:
    """Waits for a Snakemake of `ask_snakemake` and returns the jobs that it lists.

    Raises:
        UserError: Snakemake refuses the settings or lacks an input.
    """
    listed, messages = snakemake.communicate()
    if snakemake.returncode:
        raise UserError(f"Snakemake cannot plan these runs: {messages.strip()[-1500:]}")
    return [Job(*job) for job in json.loads(listed.splitlines()[-1])]


def list_jobs(snakefile: Path, folder: Path, configfile: Path, cores: int) -> list[Job]:
    """The jobs of a settings file, done or not, from a dry run."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings

    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        settings = ResourceSettings(cores=cores), ConfigSettings(configfiles=[configfile])
        workflow = api.workflow(*settings, snakefile=snakefile, workdir=folder)
        workflow.dag().execute_workflow(executor="dryrun")
        dag = workflow._workflow.dag  # the only place where jobs that are done are listed, too
        return [
            Job(
                job.rule.name,
                job.wildcards_dict.get("run", ""),
                job.threads,
                job.shellcmd or "",
                [str(path) for path in job.input],
                [str(path) for path in job.output],
                not dag.needrun(job),
            )
            for job in dag.jobs
            if job.output
        ]


if __name__ == "__main__":
    print(json.dumps(list_jobs(*map(Path, sys.argv[1:4]), int(sys.argv[4]))))
