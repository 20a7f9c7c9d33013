"""`ffkv mcp`."""

import contextlib
import os
from pathlib import Path
from typing import Any

import click

from ffkv.base.errors import UserError
from ffkv.base.options import FOLDER, all_threads_option, allowing


@click.command()
@click.argument("results", nargs=-1, required=True, type=FOLDER, metavar="RESULTS...")
@allowing
@all_threads_option
def mcp(results: tuple[Path, ...], allowed: dict[str, Any], threads: int) -> None:
    """Answer an agent's questions about finished runs, by the Model Context Protocol on standard input and output.

    RESULTS are the folders of the runs, such as results/demo. A client of the protocol starts this command. docs/python.md says more.
    """
    if len(results) > 1 and allowed["annotations"]:
        raise UserError("--annotations is the folder of one run. Open that run alone.")
    from ffkv.run.results.run import open
    from ffkv_agents.server import serve

    runs = {run.name: run for run in (open(folder, keep_open=True, **allowed) for folder in results)}
    if len(runs) < len(results):
        raise UserError("Two of the runs have the same name. Open one of them.")
    with contextlib.suppress(SystemExit, KeyboardInterrupt):  # the ways to end it
        serve(runs, threads)
    os._exit(0)  # not Python's own end: a thread that computes would hold it up
