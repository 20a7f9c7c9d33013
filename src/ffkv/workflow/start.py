"""`ffkv init`: the files that a folder needs, so that `snakemake` there runs the workflow that is installed with ffkv."""

from pathlib import Path

import click

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import exists, is_file
from ffkv.base.options import WRITABLE
from ffkv.base.settings import reference
from ffkv.base.terminal import say
from ffkv.workflow import ROOT, SCHEMA

FILES = ("Snakefile", "profiles/default/profile.yaml", "profiles/slurm/profile.yaml")


def start_files() -> dict[str, str]:
    """Returns the text of each file, by its path below the folder."""
    settings = reference.default().replace(str(reference.SCHEMA), str(SCHEMA))
    return {name: (ROOT / name).read_text("utf-8") for name in FILES} | {"config.yaml": settings}


def write_start(folder: Path) -> list[Path]:
    """Writes the files into a folder, which is made if it does not exist, and returns them.

    A file that an interrupted start has written stays. Raises UserError if one of the files exists already and is another
    one. Then nothing is written.
    """
    files = {folder / name: text for name, text in start_files().items()}
    whole = {path for path, text in files.items() if is_file(path) and path.read_bytes() == text.encode()}
    existing = [str(path) for path in files if exists(path) and path not in whole]
    if existing:
        raise UserError(
            f"`ffkv init` overwrites nothing, and these exist already: {', '.join(existing)}. "
            "Name another folder, or move them away."
        )
    for path in [path for path in files if path not in whole]:
        with atomic(path, summed=False) as temporary:
            temporary.write_text(files[path], encoding="utf-8")
    return list(files)


@click.command()
@click.argument("folder", type=WRITABLE, default=".")
def init(folder: Path) -> None:
    """Prepare FOLDER for runs: a Snakefile, a commented config.yaml, and profiles for a workstation and for SLURM.

    The Snakefile uses the workflow that is installed with ffkv. Existing files are never overwritten.
    """
    for path in write_start(folder):
        say(path)
    say(f"Edit {folder / 'config.yaml'}, then run `snakemake` in {folder}.")
