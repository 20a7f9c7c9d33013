"""The step behind each rule, and the jobs of a settings file, as Snakemake lists them. As a program, it prints them as JSON."""

import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import psutil

from ffkv.activations.steps import STEPS as ACTIVATIONS
from ffkv.base.doors import load_all
from ffkv.base.errors import UserError
from ffkv.base.lookup import exists
from ffkv.base.steps import Step
from ffkv.branches.registry import BRANCHES
from ffkv.corpus.steps import STEPS as CORPUS
from ffkv.model.steps import STEPS as MODEL
from ffkv.run.steps import STEPS as RUN
from ffkv.workflow import SNAKEFILE
from ffkv.workflow.inputs import PLANNING

# The step of each rule whose output has numbers.
STEPS: dict[str, Step] = {**CORPUS, **MODEL, **ACTIVATIONS}
for _branch in BRANCHES.values():
    STEPS |= _branch.rules
STEPS |= RUN
for _rules in load_all("rules")[0].values():
    STEPS |= _rules

SNAKEFILES = (Path("Snakefile"), Path("workflow/Snakefile"), Path(SNAKEFILE))
LIBRARIES = {  # what jobs import, each with what is before it: tables only, the head alone, the model
    "tables": ("ffkv.base.files.tables", "pyarrow.parquet", "ffkv.corpus.corpus_file", "ffkv.branches.keys.patterns"),
    "head": ("torch", "ffkv.model.head.head_file"),
    "model": ("ffkv.model.checkpoint.load", "transformers.models.gpt2.modeling_gpt2"),
}


def libraries_of(rule: str) -> str:
    """Returns what the jobs of a rule import: a name in `LIBRARIES`."""
    return STEPS[rule].imports if rule in STEPS else "tables"


class Job(NamedTuple):
    """One job of the workflow."""

    rule: str
    run: str  # its run; "" if it is of a comparison
    threads: int  # number of its threads
    command: str  # its shell command
    inputs: list[str]  # the paths that it reads
    outputs: list[str]  # the paths that it writes
    done: bool  # whether each output exists and Snakemake would not run it again


def ask_snakemake(configfile: Path, cores: int, folder: Path = Path()) -> subprocess.Popen:
    """Starts a Snakemake, in a process of its own, that lists the jobs of a settings file for runs in a folder."""
    snakefile = next(path for path in SNAKEFILES if exists(path))
    paths = [str(path.resolve()) for path in (snakefile, folder, configfile)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # the rules look for `ffkv`
    environment = {**os.environ, "PATH": path, PLANNING: "1"}
    command, pipe = [sys.executable, "-m", __name__, *paths, str(cores)], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def read_jobs(snakemake: subprocess.Popen) -> list[Job]:
    """Returns the jobs that a Snakemake lists. Raises UserError if it refuses the settings or lacks an input."""
    listed, messages = snakemake.communicate()
    if snakemake.returncode:
        raise UserError(f"Snakemake cannot plan these runs: {messages.strip()[-1500:]}")
    return [Job(*job) for job in json.loads(listed.splitlines()[-1])]


def list_jobs(snakefile: str, folder: str, configfile: str, cores: str) -> list[Job]:
    """Returns the jobs of a settings file, done or not, from a dry run, in the order of the rules."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings

    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        settings = ResourceSettings(cores=int(cores)), ConfigSettings(configfiles=[Path(configfile)])
        workflow = api.workflow(*settings, snakefile=Path(snakefile), workdir=Path(folder))
        workflow.dag().execute_workflow(executor="dryrun")
        dag = workflow._workflow.dag  # no public way lists the jobs that are done
        order, jobs = [rule.name for rule in workflow._workflow.rules], []
        for job in sorted(dag.jobs, key=lambda job: order.index(job.rule.name)):
            inputs, outputs = [str(path) for path in job.input], [str(path) for path in job.output]
            kept = [path for path in outputs if path not in job.temp_output]
            done = not dag.needrun(job) and all(exists(path) for path in kept)
            run, command = job.wildcards_dict.get("run", ""), job.shellcmd or ""
            jobs.append(Job(job.rule.name, run, job.threads, command, inputs, outputs, done))
    return [job for job in jobs if job.outputs]


def run_command(command: str) -> None:
    """Runs the command of a job, without its redirections, in this process: a fork that has its libraries already."""
    from ffkv.cli import ffkv

    name, *words = shlex.split(command)
    if name != "ffkv":
        raise ValueError(f"this is no command of ffkv: {command}")
    ffkv.main([*takewhile(lambda word: not word.startswith(">"), words)], standalone_mode=False)


@cache
def import_libraries() -> dict[str, tuple[float, float]]:
    """Imports what jobs import, first of all. Returns the seconds and bytes at a job's start, by `LIBRARIES`."""
    taken = {}
    for name, modules in LIBRARIES.items():
        for module in modules:
            importlib.import_module(module)
        taken[name] = time.process_time(), float(psutil.Process().memory_info().rss)
    return taken


if __name__ == "__main__":
    from snakemake.exceptions import RuleException, WorkflowError

    try:
        print(json.dumps(list_jobs(*sys.argv[1:])))
    except (RuleException, WorkflowError) as error:
        sys.exit(str(error))
