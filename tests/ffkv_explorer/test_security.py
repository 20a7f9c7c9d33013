"""Only whoever started the explorer may ask, and only from its own pages."""

import re
from html import unescape

import pytest
from starlette.testclient import TestClient

from ffkv_explorer.application import create_application
from ffkv_explorer.security import ENTER, ENTER_HASH, POLICY, QUESTIONS, Guard

ADDRESSES = ["/", "/r/small/", "/r/small/m/0/0", "/r/small/memories?format=json", "/static/explorer.js", "/nothing"]


@pytest.fixture
def stranger(visitor):
    """Another user of the machine: no token, no cookie."""
    return TestClient(visitor.client.app, base_url="http://127.0.0.1:8000", follow_redirects=False)


def test_without_the_token_nothing_is_answered(stranger):
    for address in (*ADDRESSES, "/compare"):
        answer = stranger.get(address)
        assert answer.status_code == 403, address
        assert "small" not in answer.text.replace(address, "") and "church" not in answer.text, address
        assert "Open the address that `ffkv explore` printed" in answer.text, address
    for token in ("", "x", "\u00e9\u0142", "%00", "%ff%fe"):
        answer = stranger.get(f"/?token={token}")
        assert answer.status_code == 403 and "set-cookie" not in answer.headers, token


def test_the_token_becomes_a_cookie_and_leaves_the_address(visitor, stranger):
    answer = stranger.get(f"/r/small/memories?promotes=%20the&token={visitor.guard.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/r/small/memories?promotes=+the"
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
    assert visitor.guard.token not in cookie
    assert stranger.get("/r/small/").status_code == 200
    # Behind a click on another site, a browser would not send the strict cookie along with a redirect.
    answer = stranger.get(f"/?token={visitor.guard.token}", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["refresh"] == "0; url=/"


def test_the_redirect_stays_here(visitor, stranger):
    for path in ("//evil.example/", "/%2Fevil.example/", "/\\evil.example"):
        answer = stranger.get(f"{path}?token={visitor.guard.token}")
        assert answer.status_code == 303 and re.match(r"/($|[^/\\])", answer.headers["location"]), path


def test_the_cookie_of_another_explorer_opens_nothing(visitor, small, visit):
    other = visit(small)
    assert other.guard.cookie != visitor.guard.cookie
    client = TestClient(visitor.client.app, base_url="http://127.0.0.1:8000", cookies=dict(other.client.cookies))
    assert client.get("/").status_code == 403


def test_another_host_is_refused_even_with_the_cookie(visitor):
    evil = ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1]:8000")
    for host in (*evil, "localhost:\xb2", "localhost:"):
        assert visitor.client.get("/", headers={"Host": host.encode("latin-1")}).status_code == 403, host
    for host in ("127.0.0.1", "localhost", "localhost:1234"):
        assert visitor.client.get("/", headers={"Host": host}).status_code == 200, host


def test_a_request_of_another_site_is_refused(subtests, visitor):
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]:
        for origin in [None, "http://evil.example", "null", "https://127.0.0.1:8000"]:
            with subtests.test(method=method, origin=origin):
                answer = visitor.client.request(method, "/r/small/trace", headers={"Origin": origin} if origin else {})
                assert answer.status_code == 403

    answer = visitor.client.post("/r/small/", headers={"Origin": "http://127.0.0.1:8000"}, content=b"x" * 10_000_000)
    assert answer.status_code == 405  # pages of ours only ask for it


def test_every_answer_forbids_the_page_everything_else(visitor, stranger):
    for client, address in ((client, address) for client in (visitor.client, stranger) for address in ADDRESSES):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert policy == POLICY or (client is stranger and policy.replace(f"'sha256-{ENTER_HASH}' ", "") == POLICY)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] in ("no-referrer", "same-origin")  # no other site learns the address
        assert "access-control-allow-origin" not in headers


def test_secrets_are_not_in_what_python_prints():
    guard = Guard()
    assert not any(secret in repr(guard) for secret in (guard.token, guard.pass_word, guard.base))
    assert len({guard.token, guard.pass_word, guard.base, Guard().token, Guard().base}) == 5


FILES = ["/static/../shelf.py", "/static/%2e%2e/shelf.py", "/static/..%2fshelf.py", "/static//etc/passwd", "/r/../etc/passwd",
     "/r/%2e%2e%2f%2e%2e/", "/r/small/..%2f..%2fsettings.json", "/static/explorer.js%00.css"]  # fmt: skip


def test_no_address_names_a_file(visitor):
    for path in FILES:
        answer = visitor.client.get(path)
        assert answer.status_code == 404 and "root:" not in answer.text and "import" not in answer.text, path


@pytest.fixture(scope="module")
def guarded(visitor):
    """The secrets of an explorer as `ffkv explore` starts it, and clients of it by their first request."""
    guard = Guard()
    application = create_application(visitor.shelf, guard)

    def client(first: str = "/static/explorer.css") -> TestClient:
        made = TestClient(application, base_url="http://127.0.0.1:8000")
        made.get(first)
        return made

    return guard, client


def test_a_stolen_cookie_alone_is_no_key(guarded):
    """A browser sends the cookies of 127.0.0.1 to every port, and so to the server of another user."""
    guard, client = guarded
    cookie = {"Cookie": f"{guard.cookie}={guard.pass_word}"}
    thief, owner = client(), client(f"/?token={guard.token}")
    for base in ("", "/~", guard.base[:-1], guard.base.lower() + "x", Guard().base):
        assert thief.get(f"{base}/r/small/", headers=cookie).status_code == 403
    assert thief.get(f"{guard.base}/r/small/").status_code == 403  # nor is the address
    assert thief.get(f"{guard.base}/r/small/", headers=cookie).status_code == 200
    assert owner.get(f"{guard.base}/r/small/").status_code == 200
    # The browser sends the cookie nowhere else.
    assert "cookie" not in owner.get("http://127.0.0.1:9000/r/small/").request.headers
    assert "cookie" not in owner.get("/r/small/").request.headers


def test_an_answer_to_a_stranger_holds_no_secret(guarded):
    guard, client = guarded
    answer = client().get("/r/small/m/0/0")
    assert not any(secret in answer.text + str(answer.headers) for secret in (guard.token, guard.pass_word, guard.base))
    assert f"<script>{ENTER}</script>" in answer.text


def test_every_link_stays_below_the_base(guarded):
    guard, client = guarded
    inside, seen, waiting = client(f"/?token={guard.token}"), set(), [f"{guard.base}/"]
    while waiting and len(seen) < 60:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        answer = inside.get(address)
        assert answer.status_code == 200, address
        found = re.findall(r'(?:href|src|action)="(/[^"]*)"', answer.text)
        assert all(link.startswith(f"{guard.base}/") for link in found), address
        # A trace needs the model, and a drawing the tables of its figures.
        waiting += [link for link in map(unescape, found) if not re.search(r"prompt=|claims\.svg", link)]
    assert {f"{guard.base}/r/small/m/0/0", f"{guard.base}/static/explorer.js"} <= seen


def test_an_address_of_an_explorer_before_leads_to_this_one(guarded):
    guard, client = guarded
    answer = client().get(f"{Guard().base}/r/small/?token={guard.token}", follow_redirects=False)
    assert answer.headers["location"] == f"{guard.base}/r/small/"
    inside = client(f"/?token={guard.token}")
    assert inside.get(f"{guard.base}/r/small").url.path == f"{guard.base}/r/small/"  # with the stroke at its end


def test_an_address_that_asks_too_much_is_refused(visitor, stranger, capsys):
    for client in (visitor.client, stranger):
        answer = client.get("/r/small/memories?" + "&a=" * (QUESTIONS + 1))
        assert answer.status_code == 400 and "asks too much" in answer.text
    assert "".join(capsys.readouterr()) == ""
