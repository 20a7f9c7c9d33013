"""`ffkv graph`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffkv.base.errors import UserError
from ffkv.base.options import FOLDER, WRITABLE, setting, takes, threads_option
from ffkv.base.settings import Model
from ffkv.base.terminal import announce, say
from ffkv.run.graph.settings import GraphOptions

if TYPE_CHECKING:
    from ffkv.run.graph.of_behaviour import BehaviourGraph
    from ffkv.run.graph.result import Graph

FORMATS = ("text", "json", "svg", "graph")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("text", required=False)
@click.option("--behaviour", help="Show the graph that the run made of a behaviour, in place of that of a prompt.")
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
    text: str | None,
    behaviour: str | None,
    options: GraphOptions,
    format_name: str,
    output: Path | None,
    device: str,
    threads: int,
) -> None:
    """Show the few memories that make the model of a finished run give one answer rather than another.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt. docs/graphs.md says what each number means.
    """
    if (text is None) == (behaviour is None):
        raise UserError("Write a prompt, or name a behaviour of the run by --behaviour.")
    if behaviour is not None and format_name == "graph":
        raise UserError(
            "The viewer of circuit-tracer shows graphs of one prompt alone. Choose --format text, json or svg for a behaviour."
        )
    if behaviour is not None and options != GraphOptions():
        raise UserError("The options of a behaviour's graph are settings of the run. Leave out those of a prompt.")
    from ffkv.base.files.atomic import atomic
    from ffkv.run.graph.text import plain_told, written
    from ffkv.run.results.run import open

    run = open(results)
    found: Graph | BehaviourGraph
    if behaviour is not None:
        from ffkv.run.graph.of_behaviour import behaviour_graph

        found = behaviour_graph(run, behaviour)
    else:
        announce(f"Loading the model of {results}")
        from ffkv.base.process.runtime import torch_with

        torch_with(threads)
        from ffkv.run.graph import step

        found = step.graph(run, str(text), device=device, **options.model_dump())
    content = written(found, run, format_name)
    if output is None:
        say(content)
        return
    with atomic(output, summed=False) as temporary:
        temporary.write_text(content + "\n", encoding="utf-8")
    say(f"{output}: {plain_told(found)}")
