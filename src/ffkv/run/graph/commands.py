"""`ffkv graph`."""

from pathlib import Path

import click

from ffkv.base.options import FOLDER, WRITABLE, setting, takes, threads_option
from ffkv.base.settings import Model
from ffkv.base.terminal import announce, say
from ffkv.run.graph.settings import GraphOptions

FORMATS = ("text", "json", "svg", "graph")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("text")
@takes(GraphOptions, argument="options")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="text: tables for a terminal; json: all tables; svg: a drawing; graph: the JSON of circuit-tracer's viewer.",
)
@click.option("--output", type=WRITABLE, help="File to write, in place of printing.")
@setting(Model, "device")
@threads_option
def graph(
    results: Path,
    text: str,
    options: GraphOptions,
    format_name: str,
    output: Path | None,
    device: str,
    threads: int,
) -> None:
    """Show the few memories that make the model of a finished run give one answer rather than another.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt. docs/graphs.md says what each number means.
    """
    announce(f"Loading the model of {results}")
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.base.files.atomic import atomic
    from ffkv.run.graph import step
    from ffkv.run.graph.text import plain_told, written
    from ffkv.run.results.run import open

    run = open(results)
    found = step.graph(run, text, device=device, **options.model_dump())
    content = written(found, run, format_name)
    if output is None:
        say(content)
        return
    with atomic(output, summed=False) as temporary:
        temporary.write_text(content + "\n", encoding="utf-8")
    say(f"{output}: {plain_told(found)}")
