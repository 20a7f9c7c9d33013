"""An emulated Hugging Face hub on 127.0.0.1, for huggingface_hub, transformers and datasets as they are.

    with Hub() as hub:
        first = hub.model("someone/tiny").push_folder(folder)
        hub.dataset("someone/words").push({"README.md": b"...", "data/train-00000.parquet": b"..."})
        subprocess.run([...], env=hub.environment(tmp_path / "cache"))
        assert hub.asked("model.safetensors", "GET")

Repositories (`hub.repositories`): `push`, `push_folder`, `branches`, `tags`, `private`, `gated`. `hub.tokens` says which
repositories a token may access. `hub.contents` makes tiny models and data sets.

`hub.requests` is a list of what was asked, in the order of arrival. `hub.fail(pattern, kind, method)` spoils answers whose path
matches, until `hub.faults.clear()`. `hub.when(pattern, action)` does something once when a path is asked for, as a push in the
middle of a run. `hub.stop()` takes the hub off the network.

Emulated are the requests that the clients make for ffkv: information on repositories, trees with pages, refs, files with
ranges, gates, private ones. The address of the data set viewer does not exist: the clients go on without.
"""

import contextlib
import http.server
import os
import random
import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.base.hub.answers import Answer, Question, respond
from tests.base.hub.repositories import Repository

LOGIN_PAGE = b"<!DOCTYPE html><html><head><title>Guest network</title></head><body>Please log in.</body></html>\n"


class Request(NamedTuple):
    """A request. path: with its query, unquoted."""

    method: str
    path: str


class Fault(NamedTuple):
    """Answers to spoil; see `Hub.fail`."""

    pattern: str
    kind: int | str
    method: str | None


def _checksum(answer: Answer) -> Answer:
    """The last byte is another. The headers still tell the hash of the right content."""
    return replace(answer, body=answer.body[:-1] + bytes([answer.body[-1] ^ 0xFF])) if answer.body else answer


# What a fault does to an answer.
SPOILT: dict[str, Callable[[Answer], Answer]] = {
    "garbage": lambda answer: replace(answer, body=random.Random(0).randbytes(len(answer.body))),  # of the right length
    "checksum": _checksum,
    "html": lambda _: Answer(200, LOGIN_PAGE, {"Content-Type": "text/html; charset=utf-8"}),
}


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
        hub, parts = self.server.hub, urlsplit(self.path)
        request = Request(self.command, unquote(self.path))
        hub.requests.append(request)
        hub.run_hooks(request.path)
        answer, kind = respond(hub, Question(parts.path, parse_qs(parts.query), self.headers)), hub.fault_of(request)
        if isinstance(kind, int):
            answer = Answer(kind, b"", {"Retry-After": "0"} if kind == 429 else {})
        elif kind in SPOILT:
            answer = SPOILT[kind](answer)
        if kind == "stall":
            self._wait()
        elif kind == "reset":  # in place of an orderly end
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        else:
            self._send(answer, halfway=kind == "truncate")

    do_HEAD = do_GET

    def _send(self, answer: Answer, halfway: bool) -> None:
        """Sends the answer, or half of its body, after which the connection ends."""
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = self.close_connection or halfway
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) // 2] if halfway else answer.body)

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
        self._connections: set[Any] = set()

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


class Hub:
    """An emulated hub. As a context manager it is on the network between start and end.

    port: of its address; 0 for any. tokens: names of repositories that a token may access, by token. page_size: entries in a
    page of a listing.
    """

    def __init__(self, port: int = 0) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.tokens: dict[str, set[str]] = {}
        self.page_size = 1000
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.hooks: dict[str, Callable[[], object]] = {}
        self.lock = threading.Lock()
        self.port = port
        self._server: Server | None = None

    def __enter__(self) -> "Hub":
        self._server = Server(self, self.port)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT must be."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Takes the hub off the network and closes all connections, those that stall included."""
        if self._server is not None:
            self._server.shutdown()
            self._server.close_all()
            self._server = None

    def model(self, name: str, private: bool = False, gated: Literal["auto", "manual", False] = False) -> Repository:
        """The repository of a model. It is made if there is none."""
        return self.repositories.setdefault(("model", name), Repository(private, gated))

    def dataset(self, name: str, private: bool = False, gated: Literal["auto", "manual", False] = False) -> Repository:
        """The repository of a data set. It is made if there is none."""
        return self.repositories.setdefault(("dataset", name), Repository(private, gated))

    def asked(self, pattern: str, method: str | None = None) -> list[Request]:
        """The requests whose path a regular expression is found in."""
        found = [request for request in list(self.requests) if re.search(pattern, request.path)]
        return [request for request in found if method in (None, request.method)]

    def fail(self, pattern: str, kind: int | str, method: str | None = None) -> None:
        """Spoils the answers to requests whose path a regular expression is found in.

        kind: a status, as 503 (429 comes with Retry-After: 0); a key of `SPOILT`; "truncate", half of the body, then the
        connection is closed; "stall", no answer at all; "reset", the connection is reset before the answer.
        """
        self.faults.append(Fault(pattern, kind, method))

    def fault_of(self, request: Request) -> int | str:
        """The kind of the first fault of a request; "" if there is none."""
        return next(
            (
                fault.kind
                for fault in list(self.faults)
                if fault.method in (None, request.method) and re.search(fault.pattern, request.path)
            ),
            "",
        )

    def when(self, pattern: str, action: Callable[[], object]) -> None:
        """Does something before a request is answered whose path a regular expression is found in, once."""
        self.hooks[pattern] = action

    def run_hooks(self, path: str) -> None:
        """Does what `when` asked for."""
        with self.lock:
            due = [self.hooks.pop(pattern) for pattern in list(self.hooks) if re.search(pattern, path)]
        for action in due:
            action()

    def environment(self, cache: Path, timeout: int = 10, **more: str) -> dict[str, str]:
        """The environment of a process that knows this hub and no other.

        cache: HF_HOME. timeout: seconds after which a client gives up a request. more: further variables.
        """
        strange = re.compile(r"(HF|HUGGINGFACE|TRANSFORMERS)_.*|.*_proxy", re.IGNORECASE)
        kept = {name: value for name, value in os.environ.items() if not strange.fullmatch(name)}
        own = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            # Otherwise transformers asks a service of the real hub to convert pytorch_model.bin.
            "DISABLE_SAFETENSORS_CONVERSION": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": str(timeout),
            "HF_HUB_ETAG_TIMEOUT": str(timeout),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        return kept | own | more
