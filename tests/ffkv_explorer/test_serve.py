"""The real server: where it listens, what it prints, and what it says to requests that no browser makes."""

import http.client
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from ffkv.base.errors import UserError
from ffkv_explorer.serve import LONGEST_REQUEST, has_display, listen_port, listen_socket, open_browser

from .conftest import running

pytestmark = pytest.mark.slow


def start(small):
    with running(small.parent.parent, results="results/small") as started:
        yield started


server = pytest.fixture(start, name="server")  # the test may end it
lasting = pytest.fixture(start, scope="module", name="lasting")  # it goes on


def ask(server, address: str, headers: dict[str, str] | None = None, method: str = "GET"):
    connection = http.client.HTTPConnection(server.base.removeprefix("http://"), timeout=30)
    connection.request(method, address, headers=headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer


def test_one_line_names_the_address_and_ctrl_c_ends_it(server):
    assert server.line.startswith("http://127.0.0.1:") and "/?token=" in server.line
    status, _, answer = ask(server, server.address.removeprefix(server.base))
    assert status == 303
    cookie, base = answer.headers["set-cookie"].split(";")[0], answer.headers["location"].rstrip("/")
    assert ask(server, f"{base}/r/small/m/0/0?prompt=hidden", {"Cookie": cookie})[0] == 200
    assert ask(server, f"{base}/r/small/", {"Cookie": "x=y"})[0] == 403
    assert ask(server, "/r/small/", {"Cookie": cookie})[0] == 403
    arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert server.address.split("token=")[1] not in arguments
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(60) == 0
    assert server.process.stdout.read() == "" and server.process.stderr.read() == ""


def test_only_this_machine_can_connect(lasting):
    port = int(lasting.base.rpartition(":")[2])
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {"127.0.0.1"}
    for address in others - {"127.0.1.1"}:
        with pytest.raises(OSError), socket.create_connection((address, port), timeout=5):
            pass
    with Path("/proc/net/tcp").open() as table:
        local = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert f"0100007F:{port:04X}" in local and f"00000000:{port:04X}" not in local


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"GET /r/small/trace?prompt=" + b"a" * 10_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 431),
        (b"\0\1\2 nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000000\r\n\r\n", 403),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 403),
    ],
)  # fmt: skip
def test_requests_that_no_browser_makes(lasting, request_, status):
    with socket.create_connection(("127.0.0.1", int(lasting.base.rpartition(":")[2])), timeout=30) as connection:
        try:
            connection.sendall(request_)
        except OSError:  # it hung up on us, which is an answer
            assert len(request_) > LONGEST_REQUEST
            return
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := connection.recv(65536)):
            answer += piece
    assert answer.split()[1] == str(status).encode()
    assert ask(lasting, "/")[0] == 403  # it goes on


def test_who_leaves_while_sending_is_no_defect(server):
    _, _, answer = ask(server, server.address.removeprefix(server.base))
    cookie, base = answer.headers["set-cookie"].split(";")[0], answer.headers["location"].rstrip("/")
    host = server.base.removeprefix("http://")
    head = f"POST {base}/r/small/annotate/keys/anna/1 HTTP/1.1\r\nHost: {host}\r\nOrigin: {server.base}\r\nCookie: {cookie}\r\n"
    with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\nwhich=".encode())
    assert ask(server, "/" + "?&" + "a&" * 2000)[0] == 400
    server.process.send_signal(signal.SIGINT)
    server.process.wait(60)
    assert server.process.stderr.read() == ""


def test_connections_send_at_once_and_a_port_in_use_is_said():
    with listen_port(0) as listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(UserError, match="cannot be used: Address already in use"):
            listen_port(listener.getsockname()[1])


# The socket


@pytest.fixture
def private(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


def test_a_socket_answers_its_user_alone(small, private):
    with running(small.parent.parent, "--socket", str(private / "s"), results="results/small") as server:
        assert server.line.startswith("http://127.0.0.1:8000/?token=")
        assert f"ssh -L 8000:{private / 's'} HOST" in server.line
        assert stat.S_IMODE((private / "s").stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(private / "s"))
            token = server.address.removeprefix("http://127.0.0.1:8000")
            connection.sendall(f"GET {token} HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n".encode())
            assert b" 303 " in connection.recv(1000)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(60)
        assert not (private / "s").exists()


def test_a_folder_that_others_may_enter_a_link_to_a_private_one_and_none_are_refused(private, tmp_path):
    for mode in (0o755, 0o750, 0o711, 0o777):
        (folder := tmp_path / f"{mode:o}").mkdir()
        folder.chmod(mode)
        with pytest.raises(UserError, match=f"is not yours alone.*: mkdir -m 700 {folder}/ffkv$"):
            listen_socket(folder / "s")
        assert not (folder / "s").exists()
    (tmp_path / "link").symlink_to(private)
    with pytest.raises(UserError, match="is not yours alone"):
        listen_socket(tmp_path / "link" / "s")
    with pytest.raises(UserError, match="mkdir -m 700"):
        listen_socket(tmp_path / "missing" / "s")


def test_the_socket_of_a_killed_explorer_is_taken_over_but_not_one_that_answers(private):
    left = listen_socket(private / "s")
    with pytest.raises(UserError, match="cannot be made"):
        listen_socket(private / "s")
    left.close()
    listen_socket(private / "s").close()
    (private / "f").write_text("mine")
    for name in ("f", "s" * 150):  # another file, and a path too long for a socket
        with pytest.raises(UserError, match="cannot be made"):
            listen_socket(private / name)
    assert (private / "f").read_text() == "mine"


# The browser


def test_the_secret_is_no_argument_of_the_browser(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", opened.append)
    thread = open_browser("http://127.0.0.1:1/?token=s3cr3t")
    thread.join()
    assert "s3cr3t" not in opened[0]
    file = Path(opened[0].removeprefix("file://"))
    assert "url=http://127.0.0.1:1/?token=s3cr3t" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name != "posix" or os.uname().sysname == "Darwin", reason="a desktop that always has a screen")
def test_without_a_screen_there_is_no_browser(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_display()
