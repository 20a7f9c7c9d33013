"""What the hub answers: each request of the clients, without the network."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.base.hub.repositories import Commit, File, Repository

if TYPE_CHECKING:
    from tests.base.hub.emulator import Hub

REPOSITORY = r"(?P<name>[^/]+(?:/[^/]+)?)"
API = rf"/api/(?P<kind>model|dataset)s/{REPOSITORY}"


@dataclass(frozen=True)
class Question:
    """A request. path: still quoted, without the query."""

    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """A status, headers but Content-Length, and the whole body; the server leaves the body out if the method is HEAD."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """The hub refuses: a status, the hub's name of the reason, by which the clients choose their exception, and words."""


def respond(hub: "Hub", question: Question) -> Answer:
    """What the hub answers to a request."""
    try:
        for pattern, route in ROUTES:
            if match := re.fullmatch(pattern, question.path):
                return route(hub, question, **{name: unquote(part or "") for name, part in match.groupdict().items()})
        raise RefusedError(404, "", f"The emulated hub does not know {question.path}")
    except RefusedError as error:
        status, code, message = error.args
        return _json(
            {"error": message}, status, **{"X-Error-Message": message}, **({"X-Error-Code": code} if code else {})
        )


def _json(content: Any, status: int = 200, **headers: str) -> Answer:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    return Answer(status, json.dumps(content).encode(), kind | headers)


def _repository(hub: "Hub", question: Question, kind: str, name: str, content: bool = False) -> Repository:
    """The repository, if the token may see it. content: whether its files are asked for, which a gate guards.

    The real hub gives no code with the status 401 of an unknown repository: its clients know it by a URL that begins with
    https. This one has no certificate, so it gives the code that the real one gives with the status 404.
    """
    token = question.headers.get("Authorization", "").removeprefix("Bearer ")
    if token and token not in hub.tokens:
        raise RefusedError(401, "", "Invalid credentials in Authorization header")
    allowed, repository = name in hub.tokens.get(token, ()), hub.repositories.get((kind, name))
    if repository is None or (repository.private and not allowed):
        raise RefusedError(404 if token else 401, "RepoNotFound", "Repository not found")
    if content and repository.gated and not allowed:
        raise RefusedError(403 if token else 401, "GatedRepo", f"Access to {kind} {name} is restricted")
    return repository


def _commit(repository: Repository, revision: str) -> Commit:
    if (commit := repository.find(revision)) is None:
        raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


def _resolve(hub: "Hub", question: Question, name: str, revision: str, path: str, prefix: str) -> Answer:
    """The whole file, or the one range of it that is asked for."""
    commit = _commit(_repository(hub, question, "dataset" if prefix else "model", name, content=True), revision)
    if path not in commit.files:
        raise RefusedError(404, "EntryNotFound", "Entry not found")
    file = commit.files[path]
    headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{file.etag}"', "Content-Type": "application/octet-stream"}
    if file.large:
        headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
    return _content(file, headers | {"Accept-Ranges": "bytes"}, question.headers.get("Range", ""))


def _content(file: File, headers: dict[str, str], asked: str) -> Answer:
    size = len(file.content)
    if not (found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked)):
        return Answer(200, file.content, headers)
    start, stop = int(found[1]), min(int(found[2] or size) + 1, size)
    if start >= stop:
        return Answer(416, headers=headers | {"Content-Range": f"bytes */{size}"})
    return Answer(206, file.content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def _information(hub: "Hub", question: Question, kind: str, name: str, revision: str) -> Answer:
    repository = _repository(hub, question, kind, name)
    commit = _commit(repository, revision)
    about = {"private": repository.private, "gated": repository.gated, "tags": [], "downloads": 0, "likes": 0}
    return _json({"id": name, "sha": commit.sha, "siblings": [{"rfilename": path} for path in commit.files]} | about)


def _tree(hub: "Hub", question: Question, kind: str, name: str, revision: str, path: str) -> Answer:
    """The files and folders of a folder, `hub.page_size` at a time."""
    entries = _commit(_repository(hub, question, kind, name), revision).listed(
        path, question.query["recursive"] == ["true"]
    )
    if not entries and path:
        raise RefusedError(404, "EntryNotFound", f"{path} does not exist on {revision!r}")
    start = int(question.query.get("cursor", ["0"])[0])
    if (stop := start + hub.page_size) >= len(entries):
        return _json(entries[start:])
    kept = "&".join(f"{key}={values[0]}" for key, values in question.query.items() if key != "cursor")
    return _json(entries[start:stop], Link=f'<{hub.url}{question.path}?{kept}&cursor={stop}>; rel="next"')


def _refs(hub: "Hub", question: Question, kind: str, name: str) -> Answer:
    repository = _repository(hub, question, kind, name)

    def listed(refs: dict[str, str], start: str) -> list[dict[str, str]]:
        return [{"name": ref, "ref": start + ref, "targetCommit": sha} for ref, sha in sorted(refs.items())]

    branches, tags = listed(repository.branches, "refs/heads/"), listed(repository.tags, "refs/tags/")
    return _json({"branches": branches, "tags": tags, "converts": []})


# Paths are matched as they were sent: a revision or a folder with a slash in it is quoted.
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (rf"{API}/revision/(?P<revision>[^/]+)", _information),
    (rf"{API}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", _tree),
    (rf"{API}/refs", _refs),
    (rf"/(?P<prefix>datasets/)?{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _resolve),
]
