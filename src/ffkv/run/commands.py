"""The commands about a finished run: `ffkv check`, `collect`, `collections`, `export`, `causes`, `report`, `trace`, `generate`, `graph`."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ffkv.base.doors import entries, inside, load
from ffkv.base.errors import UserError
from ffkv.base.lookup import read_bytes
from ffkv.base.options import (
    ANNOTATIONS,
    FOLDER,
    NEW_FOLDER,
    READABLE,
    WRITABLE,
    all_threads_option,
    allowing,
    output_option,
    setting,
    takes,
    threads_option,
)
from ffkv.base.process.runtime import torch_with
from ffkv.base.settings import Model
from ffkv.base.terminal import announce, emit, say
from ffkv.branches.settings import Behaviour, Concept
from ffkv.run.export.settings import ELSEWHERE, FORMATS, Export
from ffkv.run.trace.settings import GenerateOptions, GraphOptions, TraceOptions

if TYPE_CHECKING:
    from ffkv.run.graph.result import Drawn


ASKED = tuple(name for name in Behaviour.model_fields if name != "prompts")  # which is an argument


def runs_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a command that runs the model of a finished run."""
    return setting(Model, "device")(allowing(all_threads_option(command)))


@click.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Read every file of a run and name those that are damaged, unfinished, missing or doubtful, what asks for trust, and what an earlier ffkv did not measure.

    FOLDER is the folder of the run, such as results/demo. The exit code is 0 only if no file is damaged, unfinished, missing or doubtful.
    """
    from ffkv.run.results.check import check_run

    read, problems = check_run(folder)
    for problem in problems:
        say(f"{problem.path} {problem.reason}")
    counts = Counter(problem.kind for problem in problems)
    counts.pop("earlier", 0)  # nothing is wrong with it
    asks = " Nothing of what is named above happens unless you allow it." if counts.pop("trust", 0) else ""
    if not counts:
        say(f"{folder}: {read} files, all that the run has, and all are whole.{asks}")
        return
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    lines = [f"{folder}: {read} files were read. Not as they should be: {told}."]
    if delete := [str(problem.path) for problem in problems if problem.kind in ("damaged", "unfinished")]:
        lines += ["Delete what is damaged or unfinished:", f"  rm -r {shlex.join(delete)}"]
    # Snakemake's targets are relative to the folder that holds `results`.
    run = Path(os.path.abspath(folder))  # noqa: PTH100 - it removes "..", and keeps links: results may be one
    targets, place = Path("results", run.name), run.parent.parent
    where = "" if place == Path.cwd() else f" in {place}"
    if run.parent.name != "results":
        where = " where your run was made, in the folder that holds results"
    again = {
        kind: [str(targets / one.path.relative_to(folder)) for one in problems if one.kind == kind] for kind in counts
    }
    for kinds, what, force in ((("damaged", "missing"), "files", ""), (("foreign",), "again", "--force ")):
        if make := [path for kind in kinds for path in again.get(kind, ())]:
            lines += [
                f"Make these {what}{where}, with the options of your run:",
                f"  snakemake {force}{shlex.join(make)}",
            ]
    raise UserError("\n".join(lines))


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("name")
@click.argument("memories", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take them out.")
@ANNOTATIONS
def collect(results: Path, name: str, memories: tuple[str, ...], remove: bool, annotations: Path | None) -> None:
    """Put memories into a named list of a run, or take them out.

    RESULTS is the folder of the run, such as results/demo. NAME is the list, such as starred; it is made if there is
    none. MEMORIES are L3.17 for one, L3.17-40 for some, L3 for a layer, @other for those of a list.
    """
    from ffkv.run.results.collect import collect as collect_memories
    from ffkv.run.results.collections import list_name, read_kept
    from ffkv.run.results.run import open

    run = open(results, annotations=annotations)
    collect_memories(run, name, memories, remove=remove)
    count = len(read_kept(run.files).lists.get(list_name(name), {}))
    say(f"@{name} has {count:,} {'memory' if count == 1 else 'memories'}.")


@click.command()
@click.argument("results", type=FOLDER)
@ANNOTATIONS
def collections(results: Path, annotations: Path | None) -> None:
    """Print the named lists of memories of a run, and the notes on memories, as CSV.

    RESULTS is the folder of the run, such as results/demo.
    """
    from ffkv.base.terminal import safe_text
    from ffkv.run.results.collect import collections as read_collections
    from ffkv.run.results.run import open

    emit(read_collections(open(results, annotations=annotations)).map(safe_text).to_csv(index=False).rstrip("\n"))


class _Format(click.Choice[str]):
    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + ELSEWHERE


@click.command()
@click.argument("results", type=FOLDER)
@click.option(
    "--format", "format_name", type=_Format(FORMATS), required=True, help=f"The format of the other tool.{ELSEWHERE}"
)
@output_option("The folder to write.")
@takes(Export, argument="wanted")
@setting(Model, "device")
@allowing
@threads_option
def export(
    results: Path, format_name: str, output: Path, wanted: Export, device: str, allowed: dict[str, Any], threads: int
) -> None:
    """Write memories of a finished run in the format of another tool.

    RESULTS is the folder of the run, such as results/demo. The file ffkv-export.json in the folder says what the
    numbers are. The same command goes on after an interruption. docs/exports.md describes the formats.
    """
    torch_with(threads)
    from ffkv.run.export.step import export as export_memories
    from ffkv.run.results.run import open

    with inside("formats", format_name):
        left_out = export_memories(open(results, **allowed), format_name, output, wanted, device)
    without = f" {len(left_out):,} memories are left out, because the format cannot hold them." if left_out else ""
    say(f"{output}: written in the format {format_name}.{without}")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("file", type=READABLE)
@setting(Behaviour, *ASKED)
@click.option("--output", type=NEW_FOLDER, help="Folder for the tables, as CSV files, and for a page: index.html.")
@runs_model
def causes(
    results: Path, file: Path, output: Path | None, device: str, allowed: dict[str, Any], threads: int, **options: Any
) -> None:
    """Ask which memories of a finished run cause what its model does on a set of prompts.

    RESULTS is the folder of the run, such as results/demo. FILE has the prompts, a JSON object per line. docs/behaviours.md says
    what each number means.
    """
    run = open_with_model(results, threads, allowed)
    from ffkv.run import ask
    from ffkv.run.trace.result import behaviour_as_text

    found = ask.behaviour(run, file, device=device, **options)
    say(behaviour_as_text(found, run.files, found.settings.controls))
    for path in found.save(output) if output is not None else ():
        say(path)


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("labels", required=False, default="")
@setting(Concept, *(name for name in Concept.model_fields if name != "labels"))
@click.option("--output", type=NEW_FOLDER, help="Folder for the tables, as CSV files.")
@runs_model
def probe(
    results: Path, labels: str, output: Path | None, device: str, allowed: dict[str, Any], threads: int, **options: Any
) -> None:
    """Ask how well memories of a finished run separate two labels of texts.

    RESULTS is the folder of the run, such as results/demo. LABELS is a file of texts with labels, or a pattern such as
    package:sae_probes/*; it is left out with --rules. docs/settings.md says what each number means.
    """
    run = open_with_model(results, threads, allowed)
    from ffkv.base.files import tables
    from ffkv.branches.concepts.tables import TASKS
    from ffkv.run import ask

    found = ask.concepts(run, labels, device=device, **options)
    shown = found["concept_tasks"][["task", "train", "test", "one", "many", "whole", "length_auc", "auc", "q"]]
    say(shown.to_string(index=False, float_format="{:.3f}".format))
    say("\n".join(f"{column.name}: {column.about}" for column in TASKS.columns if column.name in shown))
    for name, table in found.items() if output is not None else ():
        tables.write(table, Path(str(output)) / f"{name}.csv")
        say(Path(str(output)) / f"{name}.csv")


@click.command()
@click.option("--results", type=FOLDER, required=True, help="The run's folder, results/<run>.")
@output_option("The HTML file to write, reports/<run>/index.html.")
def report(results: Path, output: Path) -> None:
    """Write the HTML report of a run.

    The report is one file that opens from disk, without network. The folder `figures` beside it gets each figure as an SVG file.
    """
    from ffkv.run.report.step import write_report
    from ffkv.run.results.run import open

    write_report(open(results, keep_open=True), output)
    say(f"{output}: open it in a browser.")


@click.command(context_settings={"default_map": {"top": 5, "memories": 10}})  # as much as a person reads in a terminal
@click.argument("results", type=FOLDER)
@click.argument("text", required=False)
@takes(TraceOptions, argument="options")
@click.option("--reading", default="head", help="How values and layers are read: head, translated, jacobian.")
@click.option("--before", is_flag=True, help="Show layers and memories before the changes, not after them.")
@click.option("--layers", is_flag=True, help="Show every layer and its memories, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
@click.option("--prompts", type=READABLE, help="Trace each line of this file, in place of TEXT. Needs --output.")
@click.option("--output", type=NEW_FOLDER, help="Folder for the tables of --prompts: CSV files with a column `prompt`.")
@runs_model
def trace(
    results: Path,
    text: str | None,
    options: TraceOptions,
    reading: str,
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

    run = run if reading == run.files.reading else run.read_as(reading)
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
@runs_model
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
    """Returns the lines of a text file, one or more. Raises UserError if it cannot be read, or has none."""
    try:
        if text := read_bytes(path, pipes=True).decode():
            return re.split("\r?\n", text.removesuffix("\n"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as text in UTF-8: {error}.") from error
    raise UserError(f"{path} is empty. Write a prompt per line.")


OWN_GRAPHS = ("text", "json", "svg")


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("text", required=False)
@click.option("--behaviour", help="Show the graph that the run made of a behaviour, in place of that of a prompt.")
@takes(GraphOptions, argument="options")
@click.option(
    "--format",
    "format_name",
    type=_Format([*OWN_GRAPHS, *entries("graph_formats")]),
    default="text",
    show_default=True,
    help=f"text: tables for a terminal; json: all tables; svg: a drawing; graph: the JSON of circuit-tracer's viewer.{ELSEWHERE}",
)
@click.option("--output", type=WRITABLE, help="File to write; of the format graph, also graph-metadata.json beside it.")
@runs_model
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
    if behaviour is not None and format_name not in OWN_GRAPHS:
        raise UserError(
            f"The format {format_name} is for graphs of one prompt alone. Choose --format text, json or svg for a behaviour."
        )
    if behaviour is not None and options != GraphOptions():
        raise UserError("The options of a behaviour's graph are settings of the run. Leave out those of a prompt.")
    from ffkv.base.files.atomic import write_text
    from ffkv.run.graph.result import behaviour_graph, plain_told, written
    from ffkv.run.results.run import open

    other = None if format_name in OWN_GRAPHS else load("graph_formats", format_name)
    if other and output is not None:
        other.check(output)
    found: Drawn
    if behaviour is not None:
        found = behaviour_graph(open(results, **allowed), behaviour)
        content = written(found, format_name)
    else:
        run = open_with_model(results, threads, allowed)
        from ffkv.run.graph import of_prompt

        found = of_prompt.graph(run, str(text), device=device, **options.model_dump())
        content = other.write(found, run, output) if other else written(found, format_name)
    if output is None:
        (say if format_name == "text" else emit)(content)
        return
    write_text(output, content + "\n")
    say(f"{output}: {plain_told(found)}")
    if other and (more := other.finish(found, content, output)):
        say(more, error=True)
