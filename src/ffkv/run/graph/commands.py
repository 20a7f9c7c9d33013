"""`ffkv graph`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffkv.base.errors import UserError
from ffkv.base.options import FOLDER, WRITABLE, all_threads_option, allowing, setting, takes
from ffkv.base.settings import Model
from ffkv.base.terminal import emit, say
from ffkv.run.trace.commands import open_with_model
from ffkv.run.trace.settings import GraphOptions

if TYPE_CHECKING:
    from ffkv.run.graph.result import Drawn

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
@click.option(
    "--output",
    type=WRITABLE,
    help="File to write, in place of printing. Of the format graph, graph-metadata.json beside it lists the graphs of the folder.",
)
@setting(Model, "device")
@allowing
@all_threads_option
def graph(
    results: Path,
    text: str | None,
    behaviour: str | None,
    options: GraphOptions,
    format_name: str,
    output: Path | None,
    device: str,
    allowed: dict[str, Any],
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
    from ffkv.run.graph.exchange import add_to_list, name_for_viewer, plain_told, written
    from ffkv.run.results.run import open

    for_viewer = format_name == "graph"
    slug = name_for_viewer(output) if for_viewer and output is not None else ""
    found: Drawn
    if behaviour is not None:
        from ffkv.run.graph.result import behaviour_graph

        run = open(results, **allowed)
        found = behaviour_graph(run, behaviour)
    else:
        run = open_with_model(results, threads, allowed)
        from ffkv.run.graph import of_prompt

        found = of_prompt.graph(run, str(text), device=device, **options.model_dump())
    content = written(found, run, format_name, slug)
    if output is None:
        (say if format_name == "text" else emit)(content)
        return
    with atomic(output, summed=False) as temporary:
        temporary.write_text(content + "\n", encoding="utf-8")
    if for_viewer:
        add_to_list(json.loads(content)["metadata"], output.parent)
    say(f"{output}: {plain_told(found)}")
    if for_viewer and not found.nodes["layer"].any():
        say("Neuronpedia opens no graph without a memory above layer 0. The viewer of circuit-tracer does.", error=True)
