"""Settings files: the default one, `ffkv init`, `ffkv settings` and `ffkv write-settings`.

The default one is `config.yaml.template` with text from the models of the settings. `ffkv init` writes it, with the other files that
a folder needs, so that `snakemake` there runs the workflow that is installed with ffkv.
"""

import json
import textwrap
from pathlib import Path

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic, write_text
from ffkv.base.lookup import exists, is_file, read_json
from ffkv.base.options import NEW_FOLDER, READABLE, also_argument, output_option
from ffkv.base.settings.messages import sentences
from ffkv.base.settings.yaml_file import read_settings
from ffkv.base.terminal import emit, say
from ffkv.branches.settings import Section, Settings
from ffkv.workflow import ROOT, SCHEMA
from ffkv.workflow.runs import resolve, sound_settings

FILES = ("Snakefile", "profiles/default/profile.yaml", "profiles/slurm/profile.yaml")
COLUMNS = 110  # of a comment in the settings file
SCHEMA_OF_CLONE = Path("workflow/schemas/config.schema.json")
SECTIONS = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
TOP_LEVEL = {name: field for name, field in Settings.model_fields.items() if name not in SECTIONS}


def default(schema: Path = SCHEMA_OF_CLONE) -> str:
    """Returns the default settings file: every setting at its default with a comment, and the run `demo`."""
    sections = "".join(f"\n{of_section(name)}" for name in SECTIONS)
    others = "".join(f"\n{_lines({name: field}, '')}" for name, field in TOP_LEVEL.items())
    frame = Path(__file__).with_name("config.yaml.template").read_text(encoding="utf-8")
    return frame.replace("{schema}", str(schema)).replace("{settings}", sections + others)


def of_section(name: str) -> str:
    """Returns a section of the default settings file."""
    model = SECTIONS[name]
    return f"{_comment(model.__doc__)}{name}:\n{_lines(model.model_fields, '  ')}"


def _lines(fields: dict[str, FieldInfo], indent: str) -> str:
    return "".join(
        f"{_comment(field.description, indent)}{indent}{name}: {json.dumps(field.default)}\n"
        for name, field in fields.items()
    )


def _comment(text: str | None, indent: str = "") -> str:
    lines = textwrap.wrap(text or "", COLUMNS - len(indent) - 2, break_on_hyphens=False)
    return "".join(f"{indent}# {line}\n" for line in lines)


def start_files() -> dict[str, str]:
    """Returns the text of each file, by its path below the folder."""
    return {name: (ROOT / name).read_text("utf-8") for name in FILES} | {"config.yaml": default(SCHEMA)}


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
        write_text(path, files[path])
    return list(files)


@click.command()
@click.argument("folder", type=NEW_FOLDER, default=".")
def init(folder: Path) -> None:
    """Prepare FOLDER for runs: a Snakefile, a commented config.yaml, and profiles for a workstation and for SLURM.

    The Snakefile uses the workflow that is installed with ffkv. Existing files are never overwritten.
    """
    for path in write_start(folder):
        say(path)
    say(f"Edit {folder / 'config.yaml'}, then {'' if folder == Path() else f'go to {folder} and '}run `snakemake`.")


@click.command()
@also_argument("file", "--check", "FILE")
@click.option("--check", "file", type=click.Path(), help="The settings file.")
@click.option("--show", "name", help="Print a section with its defaults instead, such as keys.")
def settings(file: str | None, name: str | None) -> None:
    """Check a settings file, and look for the text and the prompts that it names: say which runs it has, or all that is wrong."""
    if name is not None and name not in SECTIONS:
        raise UserError(f"There is no section {name!r}. There are {', '.join(SECTIONS)}. Others: docs/settings.md.")
    if name is not None:
        emit(of_section(name).rstrip("\n"))
        return
    if file is None:
        raise click.UsageError("Name the settings file, as in `ffkv settings mine.yaml`.")
    from ffkv.workflow.inputs import unreadable_inputs

    written, problems, runs = read_settings(file), [], {}
    try:
        runs = resolve(written)
    except UserError as error:
        problems = [str(error)]
    named = dict.fromkeys(each for own in sound_settings(written).values() for each in unreadable_inputs(own))
    problems += ["What the settings name cannot be read:", *(f"  {each}" for each in named)] if named else []
    if problems:
        raise UserError("\n".join(problems))
    say(f"{file} is valid, and the files of text and prompts that it names can be read. Its runs: {', '.join(runs)}.")


@click.command()
@click.option("--settings", "text", required=True, help="The settings of the run that are not the defaults, as JSON.")
@click.option("--commit", "commits", type=READABLE, multiple=True, help="Files of `ffkv resolve-commit`.")
@output_option("File to write, settings.json.")
def write_settings(text: str, commits: tuple[Path, ...], output: Path) -> None:
    """Write the complete settings of a run.

    Revisions of the hub become the commits that are read, so the file repeats it.
    """
    try:
        written = Settings.model_validate_json(text).model_dump()
    except ValidationError as error:
        raise UserError("\n".join(sentences(Settings, error))) from None
    for path in commits:
        found = read_json(path)
        written["model" if found["kind"] == "model" else "corpus"]["revision"] = found["commit"] or found["revision"]
    with atomic(output) as temporary:
        temporary.write_text(json.dumps(written, sort_keys=True) + "\n")
