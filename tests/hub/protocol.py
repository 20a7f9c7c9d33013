"""What the hub answers: each request of the clients, without the network."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from hub.repositories import Commit, File, Repository

if TYPE_CHECKING:
    from hub.emulator import Hub

REPOSITORY = r"(?P<name>[^/]+(?:/[^/]+)?)"
API = rf"/api/(?P<kind>model|dataset)s/{REPOSITORY}"


@dataclass(frozen=True)
class Question:
    """A request. path: still quoted, without the query. token: None if there is none."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def token(self) -> str | None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else None

    def asks_for(self, name: str) -> bool:
        return self.query.get(name, ["false"])[0].lower() in ("true", "1")


@dataclass(frozen=True)
class Answer:
    """A status, headers but Content-Length, and the whole body; the server leaves the body out if the method is HEAD."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """The hub refuses. code: the hub's name of the reason, by which the clients choose their exception; may be empty."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def respond(hub: "Hub", question: Question) -> Answer:
    """What the hub answers to a request."""
    try:
        for pattern, route in ROUTES:
            if match := re.fullmatch(pattern, question.path):
                return route(hub, question, **{name: unquote(part or "") for name, part in match.groupdict().items()})
        raise RefusedError(404, "", f"The emulated hub does not know {question.path}")
    except RefusedError as error:
        headers = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
        return _json({"error": error.message}, error.status, headers)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    return Answer(status, json.dumps(content).encode(), kind | (headers or {}))


def _repository(hub: "Hub", question: Question, kind: str, name: str, content: bool = False) -> Repository:
    """The repository, if the token may see it. content: whether its files are asked for, which a gate guards.

    The real hub gives no code with the status 401 of an unknown repository: its clients know it by a URL that begins with
    https. This one has no certificate, so it gives the code that the real one gives with the status 404.
    """
    token = question.token
    if token is not None and token not in hub.tokens:
        raise RefusedError(401, "", "Invalid credentials in Authorization header")
    allowed = name in hub.tokens.get(token, ()) if token else False
    repository = hub.repositories.get((kind, name))
    if repository is None or (repository.private and not allowed):
        if token is None:
            raise RefusedError(401, "RepoNotFound", "Invalid username or password.")
        raise RefusedError(404, "RepoNotFound", "Repository not found")
    if content and repository.gated and not allowed:
        start = f"Access to {kind} {name} is restricted"
        if token is None:
            must = "You must have access to it and be authenticated to access it. Please log in."
            raise RefusedError(401, "GatedRepo", f"{start}. {must}")
        page = f"{hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        raise RefusedError(
            403, "GatedRepo", f"{start} and you are not in the authorized list. Visit {page} to ask for access."
        )
    return repository


def _commit(repository: Repository, revision: str) -> Commit:
    commit = repository.find(revision or "main")
    if commit is None:
        raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return commit


def _file(commit: Commit, path: str) -> File:
    if path not in commit.files:
        raise RefusedError(404, "EntryNotFound", "Entry not found")
    return commit.files[path]


def _resolve(hub: "Hub", question: Question, name: str, revision: str, path: str, prefix: str = "") -> Answer:
    kind = "dataset" if prefix else "model"
    commit = _commit(_repository(hub, question, kind, name, content=True), revision)
    file = _file(commit, path)
    headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{file.etag}"'}
    if file.large:
        headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
    return _content(question, file, headers)


def _content(question: Question, file: File, headers: dict[str, str]) -> Answer:
    """The whole file, or the one range of it that is asked for."""
    headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"} | headers
    size = len(file.content)
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", question.headers.get("Range", ""))
    if asked is None or not any(asked.groups()):
        return Answer(200, file.content, headers)
    first, last = asked.groups()
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    else:
        start, stop = max(size - int(last), 0), size
    if start >= size or stop <= start:
        return Answer(416, headers=headers | {"Content-Range": f"bytes */{size}"})
    return Answer(206, file.content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def _information(hub: "Hub", question: Question, kind: str, name: str, revision: str = "") -> Answer:
    repository = _repository(hub, question, kind, name)
    commit = _commit(repository, revision)
    siblings = []
    for path, file in sorted(commit.files.items()):
        sibling: dict[str, Any] = {"rfilename": path}
        if question.asks_for("blobs"):
            sibling |= {"size": len(file.content), "blobId": file.blob}
            if file.large:
                sizes = {"size": len(file.content), "pointerSize": len(file.pointer)}
                sibling["lfs"] = {"sha256": file.sha256, **sizes}
        siblings.append(sibling)
    return _json(
        {
            "_id": hashlib.sha1(name.encode()).hexdigest()[:24],
            "id": name,
            "author": name.partition("/")[0],
            "sha": commit.sha,
            "createdAt": commit.history()[-1].date,
            "lastModified": commit.date,
            "private": repository.private,
            "gated": repository.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": siblings,
            "usedStorage": sum(len(file.content) for file in commit.files.values()),
        }
    )


def _entry(commit: Commit, path: str, expand: bool) -> dict[str, Any]:
    """What a listing says about a file or a folder."""
    if path in commit.files:
        file = commit.files[path]
        entry: dict[str, Any] = {"type": "file", "oid": file.blob, "size": len(file.content), "path": path}
        if file.large:
            entry["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": len(file.pointer)}
    else:
        below = [f"{name} {file.blob}" for name, file in sorted(commit.files.items()) if name.startswith(f"{path}/")]
        entry = {
            "type": "directory",
            "oid": hashlib.sha1("\n".join(below).encode()).hexdigest(),
            "size": 0,
            "path": path,
        }
    if expand:
        last = next(one for one in commit.history() if not _same(one.parent, commit, path))
        entry["lastCommit"] = {"id": last.sha, "title": last.message, "date": last.date}
    return entry


def _same(one: Commit | None, other: Commit, path: str) -> bool:
    """Whether a file or folder is the same in two commits."""

    def below(commit: Commit) -> dict[str, str]:
        return {name: file.blob for name, file in commit.files.items() if name == path or name.startswith(f"{path}/")}

    return one is not None and below(one) == below(other)


def _tree(hub: "Hub", question: Question, kind: str, name: str, revision: str, path: str) -> Answer:
    """The files and folders of a folder, `hub.page_size` at a time."""
    commit = _commit(_repository(hub, question, kind, name), revision)
    start = f"{path}/" if path else ""
    below = [file for file in commit.files if file.startswith(start)]
    if not below and path:
        raise RefusedError(404, "EntryNotFound", f"{path} does not exist on {revision!r}")
    names: set[str] = set()
    for parts in (file.removeprefix(start).split("/") for file in below):
        depths = range(1, len(parts) + 1) if question.asks_for("recursive") else [1]
        names |= {start + "/".join(parts[:depth]) for depth in depths}
    cursor = int(question.query.get("cursor", ["0"])[0])
    page = sorted(names)[cursor : cursor + hub.page_size]
    headers = {}
    if cursor + hub.page_size < len(names):
        kept = "&".join(f"{key}={values[0]}" for key, values in question.query.items() if key != "cursor")
        headers["Link"] = f'<{hub.url}{question.path}?{kept}&cursor={cursor + hub.page_size}>; rel="next"'
    return _json([_entry(commit, one, question.asks_for("expand")) for one in page], headers=headers)


def _paths(hub: "Hub", question: Question, kind: str, name: str, revision: str) -> Answer:
    """What is known of some files and folders. Those that do not exist are left out."""
    commit = _commit(_repository(hub, question, kind, name), revision)
    form = parse_qs(question.body.decode())
    expand = form.get("expand", ["false"])[0].lower() == "true"
    known = [path for path in form.get("paths", []) if any(f"{file}/".startswith(f"{path}/") for file in commit.files)]
    return _json([_entry(commit, path, expand) for path in known])


def _refs(hub: "Hub", question: Question, kind: str, name: str) -> Answer:
    repository = _repository(hub, question, kind, name)

    def listed(refs: dict[str, str], start: str) -> list[dict[str, str]]:
        return [{"name": ref, "ref": start + ref, "targetCommit": sha} for ref, sha in sorted(refs.items())]

    branches = {ref: sha for ref, sha in repository.branches.items() if not ref.startswith("refs/")}
    requests = {ref: sha for ref, sha in repository.branches.items() if ref.startswith("refs/pr/")}
    return _json(
        {
            "branches": listed(branches, "refs/heads/"),
            "converts": [],
            "tags": listed(repository.tags, "refs/tags/"),
            "pullRequests": listed(requests, ""),
        }
    )


# Paths are matched as they were sent: a revision or a folder with a slash in it is quoted.
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (rf"{API}/revision/(?P<revision>[^/]+)", _information),
    (rf"{API}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", _tree),
    (rf"{API}/paths-info/(?P<revision>[^/]+)", _paths),
    (rf"{API}/refs", _refs),
    (API, _information),
    (rf"/(?P<prefix>datasets/)?{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _resolve),
]
