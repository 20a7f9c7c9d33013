"""What the rules share: the checked settings, and how inputs follow from them."""

import json
import shutil
import sys
from os import environ
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import contains_wildcard

try:
    from ffkv.settings.runs import resolve
    from ffkv.corpus.sources import find_files
    from ffkv.process.disk import check_disk, full, is_full
    from ffkv.errors import UserError
    from ffkv.process.recover import note_owner
    from ffkv.settings import EMBEDDED, corpus_sources, section
    from ffkv.settings import Corpus as CorpusSettings
    from ffkv.settings.yaml_file import read_settings
except ImportError as error:
    raise WorkflowError(
        f"ffkv is not installed beside Snakemake ({error}). Run `make install` and `. .venv/bin/activate`."
    )

if shutil.which("ffkv") is None:
    raise WorkflowError(
        "The `ffkv` command is not on the PATH. Run `make install` and `. .venv/bin/activate`."
    )

# envs/ffkv.post-deploy.sh installs ffkv from here, where Snakemake makes the environment (--sdm conda).
environ["FFKV_SOURCE"] = str(workflow.basedir)

try:
    check_disk([Path(), Path(".snakemake")])
    for file in workflow.config_settings.configfiles or ["config.yaml"]:
        read_settings(file)  # a key that stands there twice would override itself
    # Settings of each run, complete: defaults, shared settings, the run's own.
    SETTINGS = {run: settings.model_dump() for run, settings in resolve(config).items()}
except UserError as error:
    raise WorkflowError(str(error))


PLACES = (Path("results"), Path("reports"))


wildcard_constraints:
    run=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    split="train|validation",
    shard=r"\d+",
    group=r"\d+",


def check_places():
    """Before a run: the folders of its results can be written."""
    runs = [place / run for place in PLACES for run in SETTINGS]
    try:
        check_disk(
            [
                *PLACES,
                *(path for top in runs for path in (top, *top.rglob("*"))),
            ]
        )
    except UserError as error:
        raise WorkflowError(str(error))


def say_what_is_full():
    """After a failure."""
    for place in full(PLACES):
        print(is_full(place), file=sys.stderr)


def setting(name):
    """One setting of the job's run: a change of it reruns what uses it, and nothing else."""
    return lookup(dpath=f"{{run}}/{name}", within=SETTINGS)


def switch(name, flag):
    """A setting that is true or false, as the command's option."""
    return branch(setting(name), then=f"--{flag}", otherwise=f"--no-{flag}")


def code(*rooms):
    """The modules of some rooms, and single ones: an edit of one reruns the rules that it serves."""
    source = Path(workflow.basedir)
    if source == Path.cwd():
        source = Path()
    named = [source / "src" / "ffkv" / room for room in rooms]
    return [
        str(path)
        for room in named
        for path in (sorted(room.rglob("*")) if room.is_dir() else [room])
        if path.suffix in (".py", ".html", ".css", ".json")
    ]


def parts(path, name, count):
    """The files of all parts of a run: its shards, or its groups of layers."""
    return lambda wildcards: collect(
        path, run=wildcards.run, **{name: range(SETTINGS[wildcards.run][count])}
    )


def checkpoint(wildcards):
    """The checkpoint's name for the commands: the trained one's folder, a local folder, or a hub id."""
    name = SETTINGS[wildcards.run]["model"]["checkpoint"]
    return f"results/{wildcards.run}/checkpoint" if name == EMBEDDED else name


def checkpoint_files(wildcards):
    """The files behind a local checkpoint."""
    folder = Path(checkpoint(wildcards))
    if SETTINGS[wildcards.run]["model"]["checkpoint"] == EMBEDDED:
        return [str(folder)]
    return (
        sorted(str(path) for path in folder.iterdir() if path.is_file())
        if folder.is_dir()
        else []
    )


def tracked(files):
    """Files as inputs, so that new ones rerun what was made from the old."""
    return lambda wildcards: [
        path for path in files(wildcards) if not contains_wildcard(path)
    ]


def untracked(files):
    """The state of the files that cannot be inputs, for params: Snakemake takes braces in a name for wildcards."""
    return lambda wildcards: [
        f"{path}: {Path(path).stat().st_size} bytes of {Path(path).stat().st_mtime}"
        for path in files(wildcards)
        if contains_wildcard(path)
    ]


def embedded_corpus(name):
    """A corpus setting as the embedded model's training sees it: its own default where the run reads another corpus."""
    default = CorpusSettings().model_dump()
    return lambda wildcards: (
        SETTINGS[wildcards.run]["corpus"]
        if SETTINGS[wildcards.run]["corpus"]["dataset"] == EMBEDDED
        else default
    )[name]


def corpus_files(wildcards):
    """The files behind a local corpus, likewise."""
    corpus = SETTINGS[wildcards.run]["corpus"]
    if corpus["dataset"] != "files":
        return code("embedded") if corpus["dataset"] == EMBEDDED else []
    patterns, _ = corpus_sources(section(CorpusSettings, **corpus), wildcards.split)
    try:
        return find_files(patterns)
    except UserError:  # the corpus command says so, with its reason
        return []


def repeated(flag, name):
    """A setting that is a list, as an option repeated for each of its items."""
    from shlex import quote

    section, key = name.split("/")
    return lambda wildcards: " ".join(
        f"--{flag} {quote(item)}" for item in SETTINGS[wildcards.run][section][key]
    )
