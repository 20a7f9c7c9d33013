"""Where the explorer listens: a port of 127.0.0.1, or a Unix socket in a folder that nobody else may enter.

Every user of the machine can connect to a port. So connections have a limit, below that of open files: above it, the oldest one that
does not wait for a page of the user's is closed. Whatever asks nothing for some seconds is closed, too.
"""

import asyncio
import atexit
import errno
import functools
import os
import resource
import shutil
import socket
import stat
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ffkv.base.errors import UserError
from ffkv.base.terminal import say

LONGEST_REQUEST = 2**18  # bytes of an address and its headers
PATIENCE = 5.0  # seconds in which a connection asks something
GRACE = 2.0  # seconds in which pages may be finished at the end
# Connections: a share of the open files that the process may have. The system calls "no limit" -1.
MOST = max(8, min(128, resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**31 // 8))
WAITING = 2048  # connections that the system holds until they are accepted, MOST / 4 at once
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # what a connection is not accepted for
UNREADABLE = (
    "The explorer cannot read this request",
    f"An address may have up to {LONGEST_REQUEST:,} bytes. Shorten the prompt.",
)
STOPPED = "The explorer was stopped", "It was still computing this page. Start it again with `ffkv explore`."


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
        own = f"Make one of your own, and name it: mkdir -m 700 {folder}/ffkv"
        raise UserError(f"The folder {folder} is not yours alone, so others could connect. {own}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)):  # nobody answers: it is of an explorer that was killed
                    path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        problem = f"{path} cannot be made: {error.strerror or error}. Name another file with --socket."
        raise UserError(problem) from error
    path.chmod(0o600)
    listener.listen()
    return listener


def serve(application: ASGIApp, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Answers requests until the process is told to end. Calls `ready` when it begins to."""
    config = uvicorn.Config(
        application, http=_Protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        log_level="error", proxy_headers=False, h11_max_incomplete_event_size=LONGEST_REQUEST, backlog=MOST // 4,
    )  # fmt: skip
    # Not `asyncio.run`, which cancels what is still computed and waits for it: the process ends anyway.
    asyncio.new_event_loop().run_until_complete(_Server(config, ready).serve([listener]))


@functools.cache
def _say_once(text: str) -> None:
    say(text, error=True)


class _Server(uvicorn.Server):
    """Says when it is ready, closes connections that ask nothing, and does not wait for long pages at its end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if getattr(context.get("exception"), "errno", None) in NO_FILES:
                _say_once("A connection cannot be accepted: too many files are open. See `ulimit -n`.")
            else:
                loop.default_exception_handler(context)

        asyncio.get_running_loop().set_exception_handler(report)
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        for connection in self._connections():
            if connection.works:  # a page that is still on its way, through a slow tunnel
                connection.since = now
            elif connection.idle and now - connection.since > PATIENCE:
                connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + GRACE
        while (left := [each for each in self._connections() if each.works]) and loop.time() < end:
            await asyncio.sleep(0.1)
        for connection in left:
            connection.send_page(503, *STOPPED)
        if left:
            say("stopped while a page was computed.", error=True)
            await asyncio.sleep(0.1)  # then they are sent

    def _connections(self) -> list["_Protocol"]:
        return [each for each in self.server_state.connections if isinstance(each, _Protocol)]


class _Protocol(H11Protocol):
    """A connection, of which there are at most `MOST`. It answers a request that cannot be read with a page."""

    @property
    def idle(self) -> bool:
        """Whether no request is being answered: none is there, or it is not whole."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def works(self) -> bool:
        """Whether the user, whom `Guarded` knows, waits for an answer."""
        known = self.cycle is not None and "known" in self.scope["state"]
        return known and (not self.idle or self.transport.get_write_buffer_size() > 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.since = self.loop.time()  # when nothing was asked yet, or any more
        super().connection_made(transport)
        while len(self.connections) > MOST:
            _say_once(
                f"More than {MOST} connections are open. The oldest ones are closed. Another user of this machine may have opened them."
            )
            others = [each for each in self.connections if isinstance(each, _Protocol) and each is not self]
            last = min((each for each in others if not each.works), key=lambda each: each.since, default=self)
            self.connections.discard(last)
            last.transport.abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]
        self.send_page(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400, *UNREADABLE)

    def send_page(self, status: int, heading: str, text: str) -> None:
        """Answers with a page, if no answer has begun, and closes the connection."""
        page = f"<!DOCTYPE html><html lang=en><title>ffkv</title><h1>{heading}</h1><p>{text}</p></html>".encode()
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(page)).encode())]
        headers += [(b"connection", b"close"), (b"content-security-policy", b"default-src 'none'")]
        answer = h11.Response(status_code=status, headers=headers, reason=b"")
        begun = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        for event in () if begun else (answer, h11.Data(data=page), h11.EndOfMessage()):
            if sent := self.conn.send(event):
                self.transport.write(sent)
        if self.cycle is not None:
            self.cycle.disconnected = True  # what still computes an answer sends none
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
