"""`ffkv explore`."""

import sys
from pathlib import Path

import click

from ffkv.errors import UserError
from ffkv.options import FOLDER, WRITABLE
from ffkv.terminal import say


@click.command()
@click.argument("results", type=FOLDER, nargs=-1, required=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port of 127.0.0.1. By default one that is free.")
@click.option("--socket", "socket_file", type=WRITABLE, help="Listen on this Unix socket instead, for `ssh -L`.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
def explore(results: tuple[Path, ...], port: int, socket_file: Path | None, no_browser: bool) -> None:
    """Open finished runs in a browser.

    RESULTS are the folders of the runs, such as results/demo. Only you can open the address that is printed. Ctrl-C ends
    the explorer.
    """
    from ffkv.explorer.application import create_application
    from ffkv.explorer.security import Guard
    from ffkv.explorer.serve import has_display, listen_port, listen_socket, open_browser, serve
    from ffkv.explorer.shelf import open_shelf, prepare_in_background

    if socket_file and port:
        raise UserError("--port and --socket exclude each other. Name one of them.")
    guard, shelf = Guard(), open_shelf(results)
    application = create_application(shelf, guard)
    listener = listen_socket(socket_file) if socket_file else listen_port(port)
    place = 8000 if socket_file else listener.getsockname()[1]
    address = f"http://127.0.0.1:{place}/?token={guard.token}"

    def ready() -> None:
        tunnel = f"   (first: ssh -L 8000:{socket_file.absolute()} HOST)" if socket_file else ""
        say(f"{address}{tunnel}")
        sys.stdout.flush()
        prepare_in_background(shelf)
        if not (no_browser or socket_file) and has_display():
            open_browser(address)

    try:
        serve(application, listener, ready)
    except KeyboardInterrupt:  # the way to end it
        pass
    finally:
        if socket_file:
            socket_file.unlink(missing_ok=True)
