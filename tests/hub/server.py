"""The emulated hub on the network: HTTP/1.1 on 127.0.0.1, what is spoilt on purpose, and the log of requests."""

import contextlib
import http.server
import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from hub.protocol import Answer, Question, respond

if TYPE_CHECKING:
    from hub.emulator import Hub

CHUNK = 1 << 16
LOGIN_PAGE = b"<!DOCTYPE html><html><head><title>Guest network</title></head><body>Please log in.</body></html>\n"


@dataclass
class Request:
    """A request and what became of it.

    path: with its query, unquoted. status: 0 if there was no answer. sent: bytes of the body that were sent, or given to
    the network at least. range: the header of this name.
    """

    method: str
    path: str
    range: str
    token: str | None
    status: int = 0
    sent: int = 0


@dataclass
class Fault:
    """Answers to spoil; see `Hub.fail`."""

    pattern: str
    kind: int | str
    times: int | None
    method: str | None
    after: int


def _checksum(answer: Answer) -> Answer:
    """The last byte is another. The headers still tell the hash of the right content."""
    return replace(answer, body=answer.body[:-1] + bytes([answer.body[-1] ^ 0xFF])) if answer.body else answer


# What a fault does to an answer, or None if it is a fault of the connection.
FAULTS: dict[str, Callable[[Answer], Answer] | None] = {
    "garbage": lambda answer: replace(answer, body=random.Random(0).randbytes(len(answer.body))),  # of the right length
    "checksum": _checksum,
    "html": lambda _: Answer(200, LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"}),
    "truncate": None,  # half of the body, then the connection is closed
    "stall": None,  # no answer at all
    "stall halfway": None,  # half of the body, and no more
    "reset": None,  # the connection is reset before the answer
}


def spoil(answer: Answer, kind: int | str) -> Answer:
    """The answer after a fault. It is the same if the fault is one of the connection. Unknown kinds raise KeyError."""
    if isinstance(kind, int):
        return Answer(kind, b"", {"Retry-After": "0"} if kind == 429 else {})
    change = FAULTS[kind]
    return change(answer) if change else answer


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Server"

    def handle_one_request(self) -> None:
        # A client may leave whenever it likes, and so may this server.
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def do_GET(self) -> None:
        hub = self.server.hub
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        question = Question(self.command, parts.path, parse_qs(parts.query), self.headers, body)
        request = Request(self.command, unquote(self.path), self.headers.get("Range", ""), question.token)
        hub.requests.append(request)
        hub.run_hooks(request.path)
        answer = respond(hub, question)
        fault = hub.next_fault(request.path, self.command)
        kind = fault.kind if fault else ""
        if fault:
            answer = spoil(answer, kind)
        if kind == "stall":
            self._wait()
        elif kind == "reset":
            self._reset()
        else:
            self._send(answer, request, halfway=kind in ("truncate", "stall halfway"))
            if kind == "stall halfway":
                self._wait()

    do_HEAD = do_POST = do_GET

    def _send(self, answer: Answer, request: Request, halfway: bool) -> None:
        """Sends the answer, or half of its body, after which the connection ends."""
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        request.status = answer.status
        self.end_headers()
        body = b"" if self.command == "HEAD" else answer.body
        self.close_connection = self.close_connection or halfway
        for start in range(0, len(body) // 2 if halfway else len(body), CHUNK):
            chunk = body[start : min(start + CHUNK, len(body) // 2 if halfway else len(body))]
            request.sent += len(chunk)  # before it is sent: a client that has it may ask the log
            self.wfile.write(chunk)

    def _reset(self) -> None:
        """Ends the connection by a reset in place of an orderly end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def _wait(self) -> None:
        """Waits until the client leaves or the server stops."""
        self.close_connection = True
        while not self.server.stopped.wait(0.02):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: `hub.requests` is the log."""


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection. Port 0: any that is free."""

    daemon_threads = True

    def __init__(self, hub: "Hub", port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.hub = hub
        self.stopped = threading.Event()
        self._connections: set[socket.socket] = set()

    def process_request(self, request, client_address) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        """Closes the server and each connection, which a client would keep for its next request."""
        self.stopped.set()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
