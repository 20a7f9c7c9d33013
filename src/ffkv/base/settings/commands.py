"""`ffkv settings`."""

import json
from pathlib import Path

import click
from pydantic import ValidationError

from ffkv.base.errors import UserError
from ffkv.base.files.bounded import read_json
from ffkv.base.lookup import is_dir
from ffkv.base.options import READABLE, output_option
from ffkv.base.settings import Settings
from ffkv.base.settings.messages import sentences
from ffkv.base.terminal import say


@click.command()
@click.option("--check", "file", type=click.Path(), help="Only check this settings file: say what is wrong, and where.")
def settings(file: str | None) -> None:
    """Write the default settings file, its JSON schema and the reference page of the settings into a clone of ffkv.

    This is for those who change ffkv. `ffkv init` writes a settings file into a folder of your own.
    """
    from ffkv.base.files.atomic import atomic
    from ffkv.base.settings.reference import DEFAULT, PAGE, SCHEMA, default, page, schema
    from ffkv.base.settings.runs import resolve
    from ffkv.base.settings.yaml_file import read_settings

    if file is not None:
        say(f"{file} is valid. Its runs: {', '.join(resolve(read_settings(file)))}.")
        return
    if not is_dir(SCHEMA.parent):
        raise UserError(
            f"The working directory is no clone of ffkv: it has no folder {SCHEMA.parent}. `ffkv settings` writes config.yaml"
            " of a clone anew. `ffkv settings --check FILE` checks a settings file. `ffkv init FOLDER` writes one."
        )
    for path, text in ((DEFAULT, default()), (SCHEMA, schema()), (PAGE, page())):
        with atomic(path, summed=False) as temporary:
            temporary.write_text(text, encoding="utf-8")
        say(path)


@click.command()
@click.option("--settings", "text", required=True, help="The settings of the run that are not the defaults, as JSON.")
@click.option("--commit", "commits", type=READABLE, multiple=True, help="Files of `ffkv resolve-commit`.")
@output_option("File to write, settings.json.")
def write_settings(text: str, commits: tuple[Path, ...], output: Path) -> None:
    """Write the complete settings of a run.

    Revisions of the hub become the commits that are read, so the file repeats it.
    """
    from ffkv.base.files.atomic import atomic

    try:
        written = Settings.model_validate_json(text).model_dump()
    except ValidationError as error:
        raise UserError("\n".join(sentences(Settings, error))) from None
    for path in commits:
        found = read_json(path)
        written["model" if found["kind"] == "model" else "corpus"]["revision"] = found["commit"] or found["revision"]
    with atomic(output) as temporary:
        temporary.write_text(json.dumps(written, sort_keys=True) + "\n")
