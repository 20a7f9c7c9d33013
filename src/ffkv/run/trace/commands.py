"""`ffkv trace` and `ffkv generate`."""

import re
from pathlib import Path
from typing import Any

import click

from ffkv.base.errors import UserError
from ffkv.base.lookup import read_bytes
from ffkv.base.options import FOLDER, READABLE, WRITABLE, all_threads_option, allowing, setting, takes
from ffkv.base.process.runtime import torch_with
from ffkv.base.terminal import announce, emit, say
from ffkv.branches.settings import Model
from ffkv.run.trace.settings import GenerateOptions, TraceOptions


@click.command(context_settings={"default_map": {"top": 5, "memories": 10}})  # as much as a person reads in a terminal
@click.argument("results", type=FOLDER)
@click.argument("text", required=False)
@takes(TraceOptions, argument="options")
@click.option("--translated", is_flag=True, help="Read values and layers through the maps to the last layer.")
@click.option("--before", is_flag=True, help="Show layers and memories before the changes, not after them.")
@click.option("--layers", is_flag=True, help="Show every layer and its memories, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
@click.option("--prompts", type=READABLE, help="Trace each line of this file, in place of TEXT. Needs --output.")
@click.option("--output", type=WRITABLE, help="Folder for the tables of --prompts: CSV files with a column `prompt`.")
@setting(Model, "device")
@allowing
@all_threads_option
def trace(
    results: Path,
    text: str | None,
    options: TraceOptions,
    translated: bool,
    before: bool,
    layers: bool,
    as_json: bool,
    prompts: Path | None,
    output: Path | None,
    device: str,
    allowed: dict[str, Any],
    threads: int,
) -> None:
    """Run a prompt through the model of a finished run, and show which memories make its prediction.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt. --prompts traces many. docs/trace.md says
    what each number means.
    """
    if (text is None) == (prompts is None) or (prompts is None) != (output is None) or (as_json and prompts):
        raise UserError("Name one prompt as TEXT, or a file of prompts with --prompts and a folder with --output.")
    texts = _read_lines(prompts) if prompts else []
    run, given = open_with_model(results, threads, allowed), options.model_dump()
    from ffkv.base.files import tables
    from ffkv.run.trace import trace as tracing
    from ffkv.run.trace.result import as_text

    run = run.translated if translated else run
    if text is not None:
        found = tracing.trace(run, text, device=device, **given)
        emit(found.to_json()) if as_json else say(as_text(found, before, layers))
    elif output is not None:
        for name, table in tracing.trace_all(run, texts, device=device, **given).items():
            tables.write(table, output / f"{name}.csv")
            say(output / f"{name}.csv")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("text")
@takes(GenerateOptions, argument="options")
@setting(Model, "device")
@allowing
@all_threads_option
def generate(
    results: Path, text: str, options: GenerateOptions, device: str, allowed: dict[str, Any], threads: int
) -> None:
    """Let the model of a finished run write text behind a prompt: untouched, and with memories switched off or scaled.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt.
    """
    run = open_with_model(results, threads, allowed)
    from ffkv.run.trace import generate as writing

    for row in writing.generate(run, text, device=device, **options.model_dump()).itertuples():
        say(f"{row.changes or 'untouched'}:\n{text}{row.text}\n")


def open_with_model(results: Path, threads: int, allowed: dict[str, Any]) -> Any:
    """Opens a run whose model will run with so many threads, and says at once that this takes a while."""
    announce(f"Loading the model of {results}")
    torch_with(threads)
    from ffkv.run.results.run import open

    return open(results, **allowed)


def _read_lines(path: Path) -> list[str]:
    """Returns the lines of a text file. Raises UserError if it cannot be read."""
    try:
        return re.split("\r?\n", read_bytes(path, pipes=True).decode().removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as text in UTF-8: {error}.") from error
