"""The command `ffkv check`."""

import shlex
from collections import Counter
from pathlib import Path

import click

from ffkv.errors import UserError
from ffkv.options import FOLDER
from ffkv.terminal import say


@click.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Read every file of a run and name those that are damaged, unfinished, missing or doubtful.

    FOLDER is the folder of the run, such as results/demo. The exit code is 0 only if nothing is.
    """
    from ffkv.results.check import check_run

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
    place = folder.parent.parent  # Snakemake's targets are relative to the folder that holds results/
    again = {kind: [str(one.path.relative_to(place)) for one in problems if one.kind == kind] for kind in counts}
    if make := again.get("damaged", []) + again.get("missing", []):
        lines += ["Make these files, with the options of your run:", f"  snakemake {shlex.join(make)}"]
    if foreign := again.get("foreign"):
        lines += ["Make these again, with the options of your run:", f"  snakemake --force {shlex.join(foreign)}"]
    raise UserError("\n".join(lines))
