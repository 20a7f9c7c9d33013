"""Only whoever started the explorer may ask, and only from its own pages."""

import pytest
from starlette.testclient import TestClient

from ffkv.apps.explorer.application import create_application
from ffkv.apps.explorer.security import POLICY, Guard

ADDRESSES = [
    "/",
    "/r/small/",
    "/r/small/m/0/0",
    "/r/small/memories?format=json",
    "/static/explorer.js",
    "/nothing",
    "/compare",
]


@pytest.fixture
def stranger(visitor):
    """Another user of the machine: no token, no cookie."""
    return TestClient(visitor.client.app, base_url="http://127.0.0.1:8000", follow_redirects=False)


@pytest.mark.parametrize("address", ADDRESSES)
def test_without_the_token_nothing_is_answered(stranger, address):
    answer = stranger.get(address)
    assert answer.status_code == 403
    assert "small" not in answer.text.replace(address, "") and "church" not in answer.text
    assert "Open the address that `ffkv explore` printed" in answer.text


@pytest.mark.parametrize("token", ["", "x", "\u00e9\u0142", "%00", "%ff%fe"])
def test_a_wrong_token_is_refused(stranger, token):
    answer = stranger.get(f"/?token={token}")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(visitor, stranger):
    answer = stranger.get(f"/r/small/memories?promotes=%20the&token={visitor.guard.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/r/small/memories?promotes=+the"
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
    assert visitor.guard.token not in cookie
    assert stranger.get("/r/small/").status_code == 200


def test_a_click_on_another_site_leads_in_by_a_page_of_ours(visitor, stranger):
    # A browser would not send the strict cookie along with a redirect.
    answer = stranger.get(f"/?token={visitor.guard.token}", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["refresh"] == "0; url=/"


@pytest.mark.parametrize("path", ["//evil.example/", "/%2Fevil.example/", "/\\evil.example"])
def test_the_redirect_stays_here(visitor, stranger, path):
    answer = stranger.get(f"{path}?token={visitor.guard.token}")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/") and not answer.headers["location"].startswith(("//", "/\\"))


def test_the_cookie_of_another_explorer_opens_nothing(visitor, small, visit):
    other = visit(small)
    assert other.guard.cookie != visitor.guard.cookie
    client = TestClient(visitor.client.app, base_url="http://127.0.0.1:8000", cookies=dict(other.client.cookies))
    assert client.get("/").status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1]:8000"]
)
def test_another_host_is_refused_even_with_the_cookie(visitor, host):
    answer = visitor.client.get("/", headers={"Host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:1234"])
def test_any_port_of_a_tunnel_will_do(visitor, host):
    assert visitor.client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "https://127.0.0.1:8000"])
def test_a_request_of_another_site_is_refused(visitor, method, origin):
    answer = visitor.client.request(method, "/r/small/trace", headers={"Origin": origin} if origin else {})
    assert answer.status_code == 403


def test_pages_are_only_asked_for(visitor):
    answer = visitor.client.post("/r/small/", headers={"Origin": "http://127.0.0.1:8000"}, content=b"x" * 10_000_000)
    assert answer.status_code == 405


@pytest.mark.parametrize("address", ["/", "/nothing", "/r/small/m/0/0", "/static/explorer.css"])
def test_every_answer_forbids_the_page_everything_else(visitor, stranger, address):
    for client in (visitor.client, stranger):
        headers = client.get(address).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_secrets_are_not_in_what_python_prints():
    guard = Guard()
    assert guard.token not in repr(guard) and guard.pass_word not in repr(guard)
    assert len({guard.token, guard.pass_word, Guard().token}) == 3


@pytest.mark.parametrize(
    "path",
    ["/static/../shelf.py", "/static/%2e%2e/shelf.py", "/static/..%2fshelf.py", "/static//etc/passwd", "/r/../etc/passwd",
     "/r/%2e%2e%2f%2e%2e/", "/r/small/..%2f..%2fsettings.json", "/static/explorer.js%00.css"],
)  # fmt: skip
def test_no_address_names_a_file(visitor, path):
    answer = visitor.client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text and "import" not in answer.text


def test_an_application_can_be_made_twice(visitor):
    assert create_application(visitor.shelf, Guard()).routes
