"""Where the explorer listens: a port of 127.0.0.1, or a Unix socket in a folder that nobody else may enter."""

import atexit
import os
import shutil
import socket
import stat
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ffkv.base.errors import UserError

LONGEST_REQUEST = 2**18  # bytes of an address and its headers
UNREADABLE = (
    "<!DOCTYPE html><html lang=en><title>ffkv</title><h1>The explorer cannot read this request</h1>"
    f"<p>An address may have up to {LONGEST_REQUEST:,} bytes. Shorten the prompt.</p></html>"
)


def listen_port(port: int) -> socket.socket:
    """Listens on a port of 127.0.0.1; 0 for one that is free. Raises UserError if the port is in use."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise UserError(
            f"Port {port} cannot be used: {reason}. Choose another with --port, or leave the option out."
        ) from error
    # Connections inherit it. Without it the end of each page waits for the browser's delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def listen_socket(path: Path) -> socket.socket:
    """Listens on a Unix socket. Raises UserError if others may enter its folder, or something else is at the path."""
    folder = path.absolute().parent
    try:
        about = folder.lstat()
    except OSError as error:
        problem = f"The folder {folder} cannot be used: {error.strerror}. Make it: mkdir -m 700 {folder}"
        raise UserError(problem) from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise UserError(
            f"The folder {folder} is not yours alone, so others could connect. Use a folder of mode 0700 that belongs to"
            f" you: mkdir -m 700 {folder}/ffkv, or chmod 700 {folder}."
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):  # of an explorer that was killed
            path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        problem = f"{path} cannot be made: {error.strerror or error}. Name another file with --socket."
        raise UserError(problem) from error
    path.chmod(0o600)
    listener.listen()
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return not probe.connect_ex(str(path))


def serve(application: ASGIApp, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Answers requests until the process is told to end. Calls `ready` when it begins to."""
    config = uvicorn.Config(
        application, http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, h11_max_incomplete_event_size=LONGEST_REQUEST, timeout_graceful_shutdown=2,
    )  # fmt: skip
    _Server(config, ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class _Protocol(H11Protocol):
    """Answers a request that cannot be read with a page."""

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        page = UNREADABLE.encode()
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(page)).encode())]
        headers += [(b"connection", b"close"), (b"content-security-policy", b"default-src 'none'")]
        answer = h11.Response(status_code=status, headers=headers, reason=b"")
        for event in (answer, h11.Data(data=page), h11.EndOfMessage()):
            if sent := self.conn.send(event):
                self.transport.write(sent)
        self.transport.close()


def has_display() -> bool:
    """Tells whether a browser would have a screen."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_browser(address: str) -> threading.Thread:
    """Opens a browser at an address with a secret, in a thread.

    The secret stands in a file of the user's. An argument of the browser could be read by every user of the machine.
    """
    folder = tempfile.mkdtemp(prefix="ffkv-explore-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder, "open.html")
    file.touch(mode=0o600)
    link = f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">The explorer</a>'
    file.write_text(f"<!DOCTYPE html>{link}")
    thread = threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True)
    thread.start()
    return thread
