"""Connections of strangers, who reach the server before anybody asks who they are; and how the server ends.

The server is that of the explorer, before an application of a few lines, in a process that may open 256 files.
"""

import contextlib
import http.client
import signal
import socket
import subprocess
import sys
import time

import pytest

CODE = """
import os, resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from ffkv_explorer import serve
from ffkv.base.signals import end_in_good_order

async def application(scope, receive, send):
    if scope["path"] == "/slow":
        scope["state"]["known"] = True  # as `Guarded` does
        await run_in_threadpool(time.sleep, 60)
    if scope["path"] == "/mine":
        scope["state"]["known"] = True
    large = {"/large": 2**20, "/mine": 2**25}.get(scope["path"])
    text = "x" * large if large else "here"
    await PlainTextResponse(text)(scope, receive, send)

end_in_good_order()
serve.PATIENCE = float(sys.argv[1])
listener = serve.listen_port(0)
try:
    serve.serve(application, listener, lambda: print(listener.getsockname()[1], serve.MOST, flush=True))
except (KeyboardInterrupt, SystemExit) as told:
    os._exit(getattr(told, "code", 0))
"""


@contextlib.contextmanager
def server(patience=30.0):
    """Yields the process, its port, and how many connections it may have."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CODE, str(patience)], **pipes) as process:
        try:
            yield process, *map(int, process.stdout.readline().split())
        finally:
            process.kill()


def end(process, number=signal.SIGTERM):
    """Ends the process. Returns its exit code and what it said."""
    process.send_signal(number)
    code = process.wait(20)
    return code, process.stderr.read()


def ask(port, path="/", timeout=10):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def connect(port, count, sent=b""):
    """Returns connections that have sent some bytes, and read nothing."""
    connections = []
    for _ in range(count):
        connection = socket.socket()
        connections.append(connection)
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
    time.sleep(0.5)
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send(sent)
    return connections


def is_open(connection) -> bool:
    try:
        return connection.recv(100_000) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * 20]
)
def test_who_asks_nothing_keeps_nobody_out(sent):
    with server() as (process, port, most):
        assert most == 32
        strangers = connect(port, 400, sent)
        for _ in range(3):
            started = time.monotonic()
            assert ask(port) == (200, "here")
            assert time.monotonic() - started < 5
        asks_nothing, deadline = not sent.endswith(b"\n"), time.monotonic() + 10
        while asks_nothing and sum(map(is_open, strangers)) > most and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not asks_nothing or sum(map(is_open, strangers)) <= most
        code, said = end(process)
        for stranger in strangers:
            stranger.close()
        assert code == 143 and said.count("\n") == 1 and f"More than {most} connections are open" in said


def test_a_page_of_the_user_arrives_whole_through_a_slow_tunnel():
    """It waits longer than a connection that asks nothing may, and more of it waits than the system holds."""
    with server(patience=1.0) as (_, port, _), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /mine HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        time.sleep(4)
        parts = iter(lambda: connection.recv(2**20), b"")
        assert sum(map(len, parts)) > 2**25


def test_a_connection_that_asks_nothing_is_closed():
    with server(patience=0.5) as (process, port, _):
        silent, slow, served = connect(port, 3)
        slow.send(b"GET / HTTP/1.1\r\n")
        served.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        deadline = time.monotonic() + 10
        while any(map(is_open, (silent, slow, served))) and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                slow.send(b"a")  # byte by byte
            time.sleep(0.1)
        assert not any(map(is_open, (silent, slow, served)))
        for connection in (silent, slow, served):
            connection.close()
        assert end(process) == (143, "")


STRANGE = [
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
]


def test_requests_of_strangers_write_nothing_to_the_terminal():
    with server() as (process, port, _):
        for strange in STRANGE * 3:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(strange)
                assert connection.recv(100).startswith(b"HTTP/1.1 "), strange
            assert ask(port) == (200, "here")
        assert end(process) == (143, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_end_does_not_wait_for_a_page_that_is_computed(number, code):
    with server() as (process, port, _):
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        waiting.request("GET", "/slow")
        time.sleep(0.5)
        started = time.monotonic()
        assert end(process, number) == (code, "ffkv: stopped while a page was computed.\n")
        assert time.monotonic() - started < 5  # 2 of them are for pages that may still be finished
        answer = waiting.getresponse()
        assert answer.status == 503 and "The explorer was stopped" in answer.read().decode()
        waiting.close()
