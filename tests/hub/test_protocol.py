"""The emulated hub without its clients: hashes, revisions, ranges, and the network itself."""

import hashlib
import threading
import time
import urllib.error
import urllib.request

import pytest
from hub.emulator import Hub
from hub.protocol import Question, respond
from hub.repositories import File, Repository

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(hub: Hub, path: str, method: str = "GET", **headers: str):
    return respond(hub, Question(method, path, {}, headers))


def test_hashes_are_those_of_git_and_of_the_large_file_storage():
    assert File(b"hello\n", large=False).etag == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
    large = File(b"hello\n", large=True)
    assert large.etag == hashlib.sha256(b"hello\n").hexdigest()
    assert large.pointer.decode().splitlines()[1:] == [f"oid sha256:{large.etag}", "size 6"]


def test_commits_follow_from_content_message_and_history():
    one, other = Repository("a/b", "model"), Repository("c/d", "dataset")
    first, second = (repository.push({"x": b"1", "folder/y": b"2"}) for repository in (one, other))
    assert first == second and len(first) == 40
    assert one.push({"x": None, "z": b"3"}) != other.push({"x": None, "z": b"4"})
    assert set(one.find("main").files) == {"folder/y", "z"}
    assert set(one.find(first).files) == {"x", "folder/y"}
    one.push({"alone": b"5"}, replace=True)
    assert set(one.find("main").files) == {"alone"}


def test_a_revision_is_a_branch_a_tag_a_hash_or_its_beginning():
    repository = Repository("a/b", "model")
    first = repository.push({"x": b"1"})
    repository.tags["v1"] = first
    repository.push({"x": b"2"})
    repository.push({"x": b"3"}, branch="refs/pr/1")
    contents = {
        name: repository.find(name).files["x"].content for name in ("main", "v1", first, first[:7], "refs/pr/1")
    }
    assert contents == {"main": b"2", "v1": b"1", first: b"1", first[:7]: b"1", "refs/pr/1": b"3"}
    assert [repository.find(name) for name in ("v2", first[:6], "0" * 40, "0" * 7)] == [None] * 4


@pytest.mark.parametrize(
    ("asked", "status", "body", "told"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
    ],
)
def test_ranges(asked, status, body, told):
    hub = Hub()
    hub.model("a/b").push({"x.bin": b"0123456789"})
    answer = ask(hub, "/a/b/resolve/main/x.bin", Range=asked)
    assert (answer.status, answer.body, answer.headers["Content-Range"]) == (status, body, told)


def test_headers_of_a_file_name_the_commit_and_the_hash():
    hub = Hub()
    sha = hub.dataset("a/b").push({"x.parquet": b"12", "folder/y z.txt": b"3"})
    large = ask(hub, "/datasets/a/b/resolve/main/x.parquet").headers
    assert large["X-Repo-Commit"] == sha
    assert large["X-Linked-Size"] == "2"
    assert large["X-Linked-Etag"] == large["ETag"] == f'"{hashlib.sha256(b"12").hexdigest()}"'
    small = ask(hub, "/datasets/a/b/resolve/main/folder/y%20z.txt")
    assert small.body == b"3"
    assert "X-Linked-Etag" not in small.headers
    assert ask(hub, "/a/b/resolve/main/x.parquet").headers["X-Error-Code"] == "RepoNotFound"  # it is no model


def test_the_log_says_what_was_sent(hub):
    hub.model("a/b").push({"x.bin": bytes(300_000), "y": b"12345"})
    OPENER.open(f"{hub.url}/a/b/resolve/main/x.bin").read()
    OPENER.open(urllib.request.Request(f"{hub.url}/a/b/resolve/main/y", method="HEAD")).read()
    OPENER.open(urllib.request.Request(f"{hub.url}/a/b/resolve/main/y", headers={"Range": "bytes=1-2"})).read()
    with pytest.raises(urllib.error.HTTPError):
        OPENER.open(f"{hub.url}/a/b/resolve/main/z")
    said = [(request.method, request.status, request.range) for request in hub.requests]
    assert said == [("GET", 200, ""), ("HEAD", 200, ""), ("GET", 206, "bytes=1-2"), ("GET", 404, "")]
    assert (hub.sent("x.bin"), hub.sent("/y$"), len(hub.asked("/y$", "HEAD"))) == (300_000, 2, 1)


def test_a_fault_begins_and_ends_when_it_is_told_to(hub):
    hub.model("a/b").push({"x": b"1", "y": b"2"})
    hub.fail("/x$", 503, times=2, method="GET", after=1)

    def status(name: str, method: str = "GET") -> int:
        try:
            return OPENER.open(urllib.request.Request(f"{hub.url}/a/b/resolve/main/{name}", method=method)).status
        except urllib.error.HTTPError as error:
            return error.code

    assert [status("x"), status("x"), status("y"), status("x", "HEAD"), status("x"), status("x")] == [
        *(200, 503, 200, 200, 503, 200)
    ]
    with pytest.raises(ValueError, match="no such fault: flood"):
        hub.fail("/x$", "flood")


def test_a_stopped_hub_closes_what_stalls_and_comes_back_under_its_address(hub):
    hub.model("a/b").push({"x": b"1"})
    stall = hub.fail("/x$", "stall")
    ended = []

    def read() -> None:
        try:
            OPENER.open(f"{hub.url}/a/b/resolve/main/x", timeout=30)
        except OSError as error:
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while not hub.requests:
        time.sleep(0.01)
    url = hub.url
    hub.stop()
    reader.join(10)
    assert len(ended) == 1
    with pytest.raises(urllib.error.URLError, match="refused"):
        OPENER.open(f"{url}/a/b/resolve/main/x", timeout=30)
    hub.start()
    stall.times = 0
    assert hub.url == url
    assert OPENER.open(f"{url}/a/b/resolve/main/x").read() == b"1"


def test_the_environment_knows_this_hub_alone(hub, tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_CACHE", "https_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "mine")
    found = hub.environment(tmp_path)
    assert "mine" not in found.values()
    assert (found["HF_ENDPOINT"], found["HF_HOME"], found["HF_HUB_DISABLE_XET"]) == (hub.url, str(tmp_path), "1")
    assert "HF_TOKEN" not in found
    assert hub.environment(tmp_path, token="hf_a", HF_HUB_OFFLINE="1") == found | {
        "HF_TOKEN": "hf_a",
        "HF_HUB_OFFLINE": "1",
    }
