"""`ffkv resolve-commit`."""

from pathlib import Path
from typing import Any

import click

from ffkv.options import output_option
from ffkv.terminal import say


@click.command()
@click.option("--kind", type=click.Choice(["model", "dataset"]), required=True, help="Kind of the repository.")
@click.option("--repository", required=True, help="Its id on the hub.")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit.")
@click.option(
    "--trust-remote-code/--no-trust-remote-code", help="The model's own Python code is run, so its commit counts, too."
)
@output_option("File to write, commits/<kind>.json.")
def resolve_commit(kind: Any, repository: str, revision: str, trust_remote_code: bool, output: Path) -> None:
    """Ask the hub at which commit a branch is, and write it down. What is given this file reads this commit."""
    from ffkv.files.atomic import atomic
    from ffkv.hub import commit

    found = commit.resolve_commit(kind, repository, revision, trust_remote_code)
    with atomic(output) as temporary:
        commit.write_commit(temporary, found)
    say(f"{repository}: {found}")
