"""`ffkv explore`."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from ffkv.base.errors import UserError
from ffkv.base.options import NEW_FOLDER, WRITABLE, allowing, threads_option
from ffkv.base.terminal import say


@click.command()
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1. By default one that is free."
)
@click.option("--socket", "socket_file", type=WRITABLE, help="Listen on this Unix socket instead, for `ssh -L`.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--export", "export_folder", type=NEW_FOLDER, help="Write pages as files into this folder instead.")
@click.option(
    "--colours/--no-colours", default=True, show_default=True, help="Whether exported pages colour every token."
)
@click.option("--history/--no-history", default=True, show_default=True, help="Whether your traces are kept.")
@allowing
@threads_option
def explore(
    results: tuple[str, ...],
    port: int,
    socket_file: Path | None,
    no_browser: bool,
    export_folder: Path | None,
    colours: bool,
    history: bool,
    allowed: dict[str, Any],
    threads: int,
) -> None:
    """Open finished runs in a browser.

    RESULTS are the folders of the runs, such as results/demo. Only you can open the address that is printed. Ctrl-C
    ends the explorer.

    With --export, RESULTS is one run and the names of memories, such as results/demo L3.17 L5.2. Without names the
    memories are those that a report shows.
    """
    from ffkv_explorer.shelf import open_shelf, prepare_in_background

    if export_folder:
        from ffkv_explorer.page_memory import export

        shelf = open_shelf([Path(results[0])], **allowed)
        (held,) = shelf.runs.values()
        say(f"{export(shelf, held, results[1:], export_folder, colours)[0]}: open it in a browser.")
        return
    if socket_file and port:
        raise UserError("--port and --socket exclude each other. Name one of them.")
    from ffkv_explorer.application import create_application
    from ffkv_explorer.security import Guard
    from ffkv_explorer.serve import has_display, listen_port, listen_socket, open_browser, serve

    guard, shelf = Guard(), open_shelf([Path(folder) for folder in results], history, **allowed)
    listener = listen_socket(socket_file) if socket_file else listen_port(port)
    place = 8000 if socket_file else listener.getsockname()[1]
    address = f"http://127.0.0.1:{place}/?token={guard.token}"

    def ready() -> None:
        say(f"{address}  (after: ssh -L {place}:{socket_file.absolute()} HOST)" if socket_file else address)
        sys.stdout.flush()
        prepare_in_background(shelf)
        if not no_browser and not socket_file and has_display():
            open_browser(address)

    code: int | str | None = 0
    try:
        serve(create_application(shelf, guard), listener, ready)
    except KeyboardInterrupt:  # the way to end it
        pass
    except SystemExit as told:  # SIGTERM
        code = told.code
    finally:
        shelf.stop()
        if socket_file:
            socket_file.unlink(missing_ok=True)
    sys.stdout.flush()
    # Not Python's own end: a thread that imports torch meanwhile would fail, or hold it up.
    os._exit(code if isinstance(code, int) else 1)
