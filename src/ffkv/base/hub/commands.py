"""`ffkv resolve-commit`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import output_option, setting
from ffkv.base.settings import Corpus, Model, section
from ffkv.base.terminal import say


@click.command()
@click.option("--kind", type=click.Choice(["model", "dataset"]), required=True, help="What to ask for.")
@setting(Model, "checkpoint", "adapter", "adapter_revision", "trust_remote_code")
@setting(Corpus, "dataset")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of the model or data set.")
@output_option("File to write, commits/<kind>.json.")
def resolve_commit(kind: str, dataset: str, revision: str, output: Path, **options: Any) -> None:
    """Ask the hub at which commit a model or a data set is, and write it down.

    `--commit` of other commands reads it.
    """
    from ffkv.base.files.atomic import atomic
    from ffkv.base.hub.commit import resolve_dataset, resolve_model, write_commit

    if kind == "model":
        commit = resolve_model(section(Model, revision=revision, **options))
    else:
        commit = resolve_dataset(section(Corpus, dataset=dataset, revision=revision))
    with atomic(output) as temporary:
        write_commit(temporary, commit)
    say(f"{commit.repository}: {commit}")
