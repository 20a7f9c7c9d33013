"""What the rules share: the checked settings of every run, and how options, inputs and parameters follow from them."""

import json
import shutil
from os import environ
from pathlib import Path

from snakemake.exceptions import WorkflowError

from ffkv.base.dependencies import code_hash
from ffkv.base.errors import UserError
from ffkv.base.options import command_line
from ffkv.base.system.disk import check_disk, describe_full, full, temporary_folders
from ffkv.base.process.recover import note_owner
from ffkv.run.results.expected import TABLES
from ffkv.base.settings import EMBEDDED
from ffkv.base.settings.runs import resolve, resolve_comparisons
from ffkv.base.settings.yaml_file import typed
from ffkv.base.terminal import plain, say
from ffkv.workflow import SOURCE
from ffkv.workflow.inputs import (
    annotation_files,
    checkpoint_files,
    contents,
    corpus_files,
    find_corpus_files,
    hub_repositories,
    moves,
    tracked,
    training_settings,
)

if shutil.which("ffkv") is None:
    raise WorkflowError(
        "The `ffkv` command is not on the PATH. Activate the environment that ffkv is installed in, "
        "for example by `. .venv/bin/activate`."
    )

# envs/ffkv.post-deploy.sh installs this into the environments that Snakemake makes (--sdm conda).
environ.setdefault("FFKV_SOURCE", SOURCE)

PLACES = (Path("results"), Path("reports"))


class Runs(dict):
    """Run to its complete settings: the defaults, the shared settings, the run's own."""

    def __missing__(self, run):
        """Whoever names a file of another run has most likely forgotten the settings file."""
        raise WorkflowError(
            f"No run is called {run}. The settings name: {', '.join(self)}. Name the settings file of {run} with --configfile."
        )


try:
    check_disk([Path(), Path(".snakemake"), *temporary_folders()])
    CONFIGURATION = typed(config, workflow.config_settings.config)
    SETTINGS = Runs(
        {run: settings.model_dump() for run, settings in resolve(CONFIGURATION).items()}
    )
    COMPARISONS = {
        name: comparison.model_dump()
        for name, comparison in resolve_comparisons(CONFIGURATION).items()
    }
except UserError as error:
    raise WorkflowError(plain(str(error)))

# Run to the options that name its repositories on the hub, by kind.
HUB = {run: hub_repositories(settings) for run, settings in SETTINGS.items()}
TRAINING = {run: training_settings(settings) for run, settings in SETTINGS.items()}


wildcard_constraints:
    run=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    split="train|validation",
    shard=r"\d+",
    group=r"\d+",
    kind="model|dataset",
    comparison=r"[A-Za-z0-9][A-Za-z0-9._-]*",


def check_places():
    """Before a run: the folders of its results can be written."""
    runs = [place / run for place in PLACES for run in SETTINGS]
    try:
        check_disk(
            [*PLACES, *(path for top in runs for path in (top, *top.rglob("*")))]
        )
    except UserError as error:
        raise WorkflowError(plain(str(error)))


def check_corpora():
    """Before a run: the text of each corpus that is still to be read is there. A model may be trained before it is read."""
    for job in workflow.dag.needrun_jobs():
        if job.rule.name.endswith("corpus"):
            settings, split = SETTINGS[job.wildcards.run], job.wildcards.split
            try:
                find_corpus_files(settings, split)
            except UserError as error:
                raise WorkflowError(plain(str(error)))


def name_full_disks():
    """After a failure."""
    try:
        places = full([*PLACES, *temporary_folders()])
    except UserError as error:  # no folder for temporary files can be written
        say(str(error), error=True)
        places = full(PLACES)
    for place in places:
        say(describe_full(place), error=True)


def say_moves():
    """At both ends of a run: which branches are at another commit than the one that its results are made from."""
    for run in SETTINGS:
        for text in moves(Path("results") / run):
            say(text, error=True)


def commit(kind):
    """The file with the commit of the model or the data set of the job's run, if it comes from the hub."""
    return lambda wildcards: [
        f"results/{wildcards.run}/commits/{kind}.json"
        for kind in [kind]
        if kind in HUB[wildcards.run]
    ]


def setting(name):
    """One setting of the job's run."""
    return lookup(dpath=f"{{run}}/{name}", within=SETTINGS)


def gpus(on_cluster):
    """The GPUs of a job of a rule that uses one if there is one.

    A cluster is asked for `model.gpus` for the rules that run the model over text, and for none for the others. On a
    workstation, whose profile says how many GPUs there are, such a job takes at least one, so that no two jobs share one.
    """

    def count(wildcards):
        model = SETTINGS[wildcards.run]["model"]
        asked = model["gpus"] if on_cluster else 0
        takes = "gpu" in workflow.global_resources and model["device"] != "cpu"
        return max(asked, 1) if takes else asked

    return count


def options(*names, settings=SETTINGS):
    """Settings of the job's run as options of its command. A change of one of them repeats the rule."""
    return lambda wildcards: command_line(settings[wildcards.run], *names)


def memory_limits(wildcards, input):
    """The option `--max-memory`. A change of it changes no number and repeats no rule: Snakemake does not track a
    parameter that is made from an input."""
    return command_line(SETTINGS[wildcards.run], "model/max_memory")


def repeated(name):
    """An option that is repeated for each file of the input of that name."""
    return lambda wildcards, input: [
        f"--{name.replace('_', '-')}={path}" for path in input[name]
    ]


def code(name):
    """The version of the modules that a rule's numbers depend on. A change of one of them repeats the rule."""
    return f"code {code_hash(name)}"


def tables(room):
    """The tables that a room writes for the report."""
    return [f"results/{{run}}/{room}/{table}.csv" for table in TABLES[room]]


def every_shard(path):
    """The files of all shards of the job's run."""
    return lambda wildcards: collect(
        path, run=wildcards.run, shard=range(SETTINGS[wildcards.run]["shards"])
    )


def every_layer_group(path):
    """The files of all layer groups of the job's run."""
    return lambda wildcards: collect(
        path, run=wildcards.run, group=range(SETTINGS[wildcards.run]["layer_groups"])
    )


def control_report(wildcards):
    """The report of the control run: all that this run's report reads of it is there then."""
    control = SETTINGS[wildcards.run]["report"]["control"]
    return [f"reports/{control}/index.html"] if control else []


def reports_of_runs(wildcards):
    """The reports of the runs that are compared: all that is read of the runs is there then."""
    runs = COMPARISONS[wildcards.comparison]["runs"]
    return collect("reports/{run}/index.html", run=runs)


def comparison_options(wildcards):
    """The settings of a comparison, without its runs, and the seed of its first run, as options."""
    comparison = {**COMPARISONS[wildcards.comparison]}
    first = SETTINGS[comparison.pop("runs")[0]]
    return command_line(
        {"comparison": comparison, "seed": first["seed"]}, "comparison", "seed"
    )


def trained_checkpoint(wildcards):
    """The checkpoint that the workflow trains, for this run or another one, if the job's run asks for it.

    A run can also name a checkpoint of a training step, a folder below it.
    """
    named = SETTINGS[wildcards.run]["model"]["checkpoint"]
    if named == EMBEDDED:
        return f"results/{wildcards.run}/checkpoint"
    trained = [
        f"results/{run}/checkpoint"
        for run, settings in SETTINGS.items()
        if settings["model"]["checkpoint"] == EMBEDDED
    ]
    return [
        folder
        for folder in trained
        if Path(folder) in (Path(named), *Path(named).parents)
    ]


def place_of_checkpoint(wildcards, input):
    """Where the job's checkpoint is. A trained one lies below the `prefix:` that another workflow may give this one."""
    named = SETTINGS[wildcards.run]["model"]["checkpoint"]
    if not input.trained or named == EMBEDDED:
        return input.trained or named
    (folder,) = trained_checkpoint(wildcards)
    return Path(str(input.trained)) / Path(named).relative_to(folder)


def files_of_checkpoint(wildcards):
    """The files of a local checkpoint that the workflow does not train.

    They stay where they are if another workflow gives this one a `prefix:`. What counts is not their time but their
    content, see `contents`.
    """
    if trained_checkpoint(wildcards):
        return []
    return local(ancient(tracked(checkpoint_files(SETTINGS[wildcards.run]))))


def files_of_corpus(wildcards):
    """The files of a local corpus, likewise."""
    return local(
        ancient(tracked(corpus_files(SETTINGS[wildcards.run], wildcards.split)))
    )


def files_of_annotations(wildcards):
    """The files of what people and machines said about a run, likewise. There are none if nobody did."""
    return local(
        ancient(tracked(annotation_files(SETTINGS[wildcards.run], wildcards.run)))
    )


def content_of_annotations(wildcards):
    """A hash over these files, likewise."""
    return contents(annotation_files(SETTINGS[wildcards.run], wildcards.run))


def content_of_checkpoint(wildcards):
    """A hash over the files of a local checkpoint that the workflow does not train. A change repeats the rule."""
    if trained_checkpoint(wildcards):
        return "trained"
    return contents(checkpoint_files(SETTINGS[wildcards.run]))


def content_of_corpus(wildcards):
    """A hash over the files of a local corpus, likewise."""
    return contents(corpus_files(SETTINGS[wildcards.run], wildcards.split))
