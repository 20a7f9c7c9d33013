"""The commands `ffkv check`, `ffkv collect` and `ffkv collections`."""

import os
import shlex
from collections import Counter
from pathlib import Path

import click

from ffkv.base.errors import UserError
from ffkv.base.options import FOLDER
from ffkv.base.terminal import say


@click.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Read every file of a run and name those that are damaged, unfinished, missing or doubtful.

    FOLDER is the folder of the run, such as results/demo. The exit code is 0 only if nothing is.
    """
    from ffkv.run.results.check import check_run

    read, problems = check_run(folder)
    for problem in problems:
        say(f"{problem.path} {problem.reason}")
    if not problems:
        say(f"{folder}: {read} files, all that the run has, and all are whole.")
        return
    counts = Counter(problem.kind for problem in problems)
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
    if make := again.get("damaged", []) + again.get("missing", []):
        lines += [f"Make these files{where}, with the options of your run:", f"  snakemake {shlex.join(make)}"]
    if foreign := again.get("foreign"):
        lines += [
            f"Make these again{where}, with the options of your run:",
            f"  snakemake --force {shlex.join(foreign)}",
        ]
    raise UserError("\n".join(lines))


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("name")
@click.argument("memories", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take them out.")
def collect(results: Path, name: str, memories: tuple[str, ...], remove: bool) -> None:
    """Put memories into a named list of a run, or take them out.

    RESULTS is the folder of the run, such as results/demo. NAME is the list, such as starred; it is made if there is
    none. MEMORIES are L3.17 for one, L3.17-40 for some, L3 for a layer, @other for those of a list.
    """
    from ffkv.run.results.collect import collect as collect_memories
    from ffkv.run.results.collections import list_name, read_kept
    from ffkv.run.results.run import open

    run = open(results)
    collect_memories(run, name, memories, remove=remove)
    say(f"@{name} has {len(read_kept(run.files).lists.get(list_name(name), {})):,} memories.")


@click.command()
@click.argument("results", type=FOLDER)
def collections(results: Path) -> None:
    """Print the named lists of memories of a run, and the notes on memories, as CSV.

    RESULTS is the folder of the run, such as results/demo.
    """
    from ffkv.base.files.spreadsheet import safe_text
    from ffkv.run.results.collect import collections as read_collections
    from ffkv.run.results.run import open

    say(read_collections(open(results)).map(safe_text).to_csv(index=False).rstrip("\n"))
