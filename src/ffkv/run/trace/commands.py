"""`ffkv trace`, `ffkv behaviour` and `ffkv generate`."""

import re
from pathlib import Path
from typing import Any

import click

from ffkv.base.errors import UserError
from ffkv.base.files.bounded import read_bytes
from ffkv.base.options import FOLDER, READABLE, WRITABLE, setting, takes, threads_option
from ffkv.base.settings import Behaviour, Model
from ffkv.base.terminal import announce, say
from ffkv.run.trace.settings import GenerateOptions, TraceOptions

ASKED = tuple(name for name in Behaviour.model_fields if name != "prompts")  # which is an argument


@click.command(context_settings={"default_map": {"top": 5, "memories": 5}})  # as much as a person reads in a terminal
@click.argument("results", type=FOLDER)
@click.argument("text", required=False)
@takes(TraceOptions, argument="options")
@click.option("--translated", is_flag=True, help="Read values and layers through the maps to the last layer.")
@click.option("--before", is_flag=True, help="Show layers and memories before the changes, not after them.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
@click.option("--prompts", type=READABLE, help="Trace each line of this file, in place of TEXT. Needs --output.")
@click.option("--output", type=WRITABLE, help="Folder for the tables of --prompts: CSV files with a column `prompt`.")
@setting(Model, "device")
@threads_option
def trace(
    results: Path,
    text: str | None,
    options: TraceOptions,
    translated: bool,
    before: bool,
    as_json: bool,
    prompts: Path | None,
    output: Path | None,
    device: str,
    threads: int,
) -> None:
    """Run a prompt through the model of a finished run, and show which memories make its prediction.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt. --prompts traces many. docs/trace.md says
    what each number means.
    """
    if (text is None) == (prompts is None) or (prompts is None) != (output is None) or (as_json and prompts):
        raise UserError("Name one prompt as TEXT, or a file of prompts with --prompts and a folder with --output.")
    texts = _read_lines(prompts) if prompts else []
    announce(f"Loading the model of {results}")
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.base.files import tables
    from ffkv.run.results.run import open
    from ffkv.run.trace import step
    from ffkv.run.trace.text import as_text

    run, given = open(results), options.model_dump()
    run = run.translated if translated else run
    if text is not None:
        found = step.trace(run, text, device=device, **given)
        say(found.to_json() if as_json else as_text(found, before))
    elif output is not None:
        for name, table in step.trace_all(run, texts, device=device, **given).items():
            tables.write(table, output / f"{name}.csv")
            say(output / f"{name}.csv")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("file", type=READABLE)
@setting(Behaviour, *ASKED)
@click.option("--output", type=WRITABLE, help="Folder for the tables, as CSV files.")
@setting(Model, "device")
@threads_option
def behaviour(results: Path, file: Path, output: Path | None, device: str, threads: int, **options: Any) -> None:
    """Ask which memories of a finished run cause what its model does on a set of prompts.

    RESULTS is the folder of the run, such as results/demo. FILE has the prompts, a JSON object per line. docs/behaviours.md says
    what each number means.
    """
    announce(f"Loading the model of {results}")
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.base.files import tables
    from ffkv.run.results.run import open
    from ffkv.run.trace import behaviour as asked
    from ffkv.run.trace.text import behaviour_as_text

    found = asked.behaviour(open(results), file, device=device, **options)
    say(behaviour_as_text(found))
    for name, table in found.items() if output is not None else ():
        tables.write(table, Path(output or "", f"{name}.csv"))
        say(f"{output}/{name}.csv")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("text")
@takes(GenerateOptions, argument="options")
@setting(Model, "device")
@threads_option
def generate(results: Path, text: str, options: GenerateOptions, device: str, threads: int) -> None:
    """Let the model of a finished run write text behind a prompt: untouched, and with memories switched off or scaled.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt.
    """
    announce(f"Loading the model of {results}")
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.run.results.run import open
    from ffkv.run.trace import generate as writing

    for row in writing.generate(open(results), text, device=device, **options.model_dump()).itertuples():
        say(f"{row.changes or 'untouched'}:\n{text}{row.text}\n")


def _read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file. Raises UserError if it cannot be read."""
    try:
        return re.split("\r?\n", read_bytes(path).decode().removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as text in UTF-8: {error}.") from error
