"""What the rules share: the settings of all runs, checked (`ffkv.workflow.rules`), and what needs Snakemake's own globals."""

import atexit
import shutil
from functools import cache
from os import environ
from pathlib import Path
from signal import SIGTERM

from snakemake.exceptions import WorkflowError
from snakemake.logging import is_quiet_about
from snakemake.settings.types import ExecMode

from ffkv.base.doors import entries, is_own, load_all, package_of
from ffkv.base.errors import UserError
from ffkv.base.fault import check_disk, describe_full, full, temporary_folders
from ffkv.base.lookup import is_file
from ffkv.base.settings.yaml_file import typed
from ffkv.base.signals import handle_apart
from ffkv.base.terminal import plain, say
from ffkv.branches.registry import BRANCHES, BROKEN
from ffkv.corpus.sources import source_files
from ffkv.model.checkpoint.checks import check_checkpoint
from ffkv.run.report.registry import LACKS
from ffkv.workflow import SOURCE, checked
from ffkv.workflow.changed import changes, rules_of
from ffkv.workflow.dry_run import before_jobs_are_listed, summarize
from ffkv.workflow.inputs import moves
from ffkv.workflow.live import hide_progress, show_progress
from ffkv.workflow.recover import note_owner
from ffkv.workflow.rules import DEFAULTS, Runs, code, repeated, rules_file, tables

if shutil.which("ffkv") is None:
    raise WorkflowError(
        "The `ffkv` command is not on the PATH. Activate the environment that ffkv is installed in, "
        "for example by `. .venv/bin/activate`."
    )

# envs/ffkv.post-deploy.sh installs this into the environments that Snakemake makes (--sdm conda).
environ.setdefault("FFKV_SOURCE", SOURCE)

PLACES = (Path("results"), Path("reports"))
RESULTS = Path(
    "results"
).absolute()  # Snakemake leaves its folder (--directory) before it ends

try:
    check_disk([Path(), Path(".snakemake"), *temporary_folders()])
    runs = Runs(typed(config, workflow.config_settings.config))
except UserError as error:
    raise WorkflowError(plain(str(error)))


wildcard_constraints:
    run=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    split="train|validation",
    shard=r"\d+",
    group=r"\d+",
    behaviour=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    concept=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    kind="model|dataset",
    comparison=r"[A-Za-z0-9][A-Za-z0-9._-]*",


def gpus(whole_model=False):
    """The GPUs of a job of a rule that uses one if there is one.

    A cluster is asked for `model.gpus` for a job with the whole model, and for at most one for a job with its head alone. On a
    workstation, whose profile says how many GPUs there are, such a job takes at least one, so that no two jobs share one.
    """

    def count(wildcards):
        model = runs.settings[wildcards.run].model
        asked = model.gpus if whole_model else min(model.gpus, 1)
        takes = "gpu" in workflow.global_resources and model.device != "cpu"
        return max(asked, 1) if takes else asked

    return count


def say_broken():
    """Before a run: which packages beside ffkv cannot be used. Their rules are left out."""
    for error in [*BROKEN.values(), *load_all("rules")[1].values()]:
        say(str(error), error=True)


def include_rules(name):
    """Includes the rules of a branch or a package. Of those of others that cannot be read, the message names the package."""
    try:
        workflow.include(rules_file(name))
    except Exception as error:
        entry = {**entries("rules"), **entries("branches")}.get(name)
        if entry is None or is_own(entry):
            raise
        raise WorkflowError(
            f"The rules of {name!r} cannot be read ({rules_file(name)}: {type(error).__name__}: {error}). They are of the"
            f" package {package_of(entry)}: tell its developers. Uninstall it, and take its settings out of the settings"
            " file: all else runs without it."
        ) from None


def check_places():
    """Before a run: the folders of its results can be written."""
    tops = [place / run for place in PLACES for run in runs.settings]
    try:
        check_disk(
            [*PLACES, *(path for top in tops for path in (top, *top.rglob("*")))]
        )
    except UserError as error:
        raise WorkflowError(plain(str(error)))


@cache
def say_other_settings():
    """Before a run, or where there is nothing to do: which settings are others than those that results are made with.

    Snakemake repeats what they are for, unless its own notes on these results are gone.
    """
    if workflow.exec_mode != ExecMode.DEFAULT or workflow.scheduler is None:
        return  # inside a job, or the jobs are not known: the settings were refused, a file is missing
    made = {}
    for run, settings in runs.settings.items():
        commits = RESULTS / runs.controls.get(run, run) / "commits"
        if changed := changes(RESULTS / run, settings.model_dump(), commits):
            told = "; ".join(map(str, changed))
            say(f"results/{run} was made with other settings: {told}.", error=True)
            made[run] = rules_of(changed)
    kept = [
        job
        for job in workflow.dag.jobs
        if getattr(job.wildcards, "run", None) in made and not workflow.dag.needrun(job)
    ]
    unknown = {job.wildcards.run for job in kept if job.rule.name == "write_settings"}
    for run in sorted(unknown):
        rules = {job.rule.name for job in kept if job.wildcards.run == run} & made[run]
        say(
            f"Snakemake has no notes on how results/{run} was made, and keeps it. To make it with the new settings, with the options of your run:"
            f" snakemake reports/{runs.controls.get(run, run)}/index.html --forcerun {' '.join(sorted(rules))}",
            error=True,
        )


# Snakemake calls no `onstart` for a dry run, nor if there is nothing to do.
atexit.register(say_other_settings)


def check_inputs():
    """Before a run and in a dry run: the checkpoint, the text of each corpus, and the files of branches that are still to be read are there.

    A model may be trained before they are read.
    """
    for job in workflow.dag.needrun_jobs():
        settings = runs.settings.get(getattr(job.wildcards, "run", ""))
        try:
            if job.rule.name.endswith("corpus") and job.wildcards.run in runs.named:
                source_files(settings.corpus, job.wildcards.split)
            reads_files = "content" in job.rule.params.keys()
            for branch in BRANCHES.values() if reads_files else ():
                if job.rule.name in branch.rules:
                    for its in branch.sections(settings, dict(job.wildcards.items())):
                        branch.find_files(its, read=True)
            if job.rule.name in ("model", "unpack") and not (
                job.input.get("trained") or job.input.get("unpacked")
            ):
                model = settings.model.located()
                check_checkpoint(model.checkpoint, model.gguf)
        except UserError as error:
            raise WorkflowError(plain(str(error)))


def show_dry_run():
    """In a dry run of a Snakefile that `ffkv init` wrote: a page in all, unless Snakemake's own words are asked for."""
    shown = workflow.output_settings
    if not shown.dryrun or not checked:
        return
    own_words = shown.quiet or shown.printshellcmds or shown.verbose or shown.debug_dag
    names = [rule.name for rule in workflow.rules]
    before_jobs_are_listed(
        check_inputs,
        None if own_words else lambda: summarize(workflow.dag, names, checked[0]),
    )


def show_running_jobs():
    """During a run, at a terminal, unless Snakemake is to be quiet about progress."""

    def logs():
        jobs = workflow.scheduler.running if workflow.scheduler else ()
        return [log for job in list(jobs) for log in getattr(job, "log", ())]

    if not is_quiet_about(workflow.output_settings.quiet or (), "progress"):
        show_progress(logs)


def name_full_disks():
    """After a failure."""
    try:
        places = full([*PLACES, *temporary_folders()])
    except UserError as error:  # no folder for temporary files can be written
        say(str(error), error=True)
        places = full(PLACES)
    for place in places:
        say(describe_full(place), error=True)


def say_how_to_go_on():
    """After a failure or Ctrl-C, behind all that Snakemake says."""
    atexit.register(
        say,
        "the run is not finished. Start the same command again, after a failure when its cause is mended: finished"
        " steps are not repeated.",
        error=True,
    )


def say_lacking():
    """At the end of a run: what pages lack because a package of others failed. It stands in the logs of their jobs."""
    pages = [
        job
        for job in workflow.dag.jobs
        if job.rule.name.endswith(("report", "comparison_measure"))
    ]
    for log in (Path(log) for job in pages for log in job.log):
        for line in log.read_text().splitlines() if is_file(log) else ():
            if LACKS in line:
                say(line.removeprefix("ffkv: "), error=True)


def say_moves():
    """At both ends of a run: which branches are at another commit than the one that its results are made from."""
    for run in runs.named:
        for text in moves(Path("results") / run):
            say(text, error=True)
