"""Repositories of the emulated hub: commits, branches, tags, and what the hub says about their files."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal

# The hub keeps files of these kinds, and large ones, in its large file storage.
LARGE_KINDS = (".safetensors", ".bin", ".parquet", ".gz", ".zst", ".gguf", ".model")
LARGE_SIZE = 1_000_000
FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class File:
    """The content of a file in a repository.

    large: whether the hub keeps it in its large file storage (LFS). Its ETag is then the SHA-256 of its content, else the
    hash that git gives it.
    """

    content: bytes
    large: bool

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        """What git keeps in place of a large file."""
        lines = ["version https://git-lfs.github.com/spec/v1", f"oid sha256:{self.sha256}", f"size {len(self.content)}"]
        return "".join(f"{line}\n" for line in lines).encode()

    @cached_property
    def blob(self) -> str:
        """Git's hash of what git keeps."""
        kept = self.pointer if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(kept) + kept).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.blob


@dataclass(frozen=True)
class Commit:
    """One state of a repository: all its files by path, and the commit before it."""

    files: Mapping[str, File]
    message: str
    number: int
    parent: "Commit | None" = None

    @cached_property
    def sha(self) -> str:
        """40 hexadecimal digits, from content, message and history alone, so that each run of a test finds the same."""
        lines = [self.parent.sha if self.parent else "", self.message]
        lines += [f"{path} {file.blob}" for path, file in sorted(self.files.items())]
        return hashlib.sha1("\n".join(lines).encode()).hexdigest()

    @property
    def date(self) -> str:
        return (FIRST_DAY + timedelta(hours=self.number)).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def history(self) -> list["Commit"]:
        """The commit and those before it, the latest first."""
        return [self, *(self.parent.history() if self.parent else [])]


@dataclass
class Repository:
    """A repository of a model or a data set.

    branches, tags: commit hash by name. A branch may be any ref, as "refs/pr/1". private: unknown to all without a token
    that may access it. gated: known to all, and its files are only for tokens that may access it.
    """

    name: str
    kind: Literal["model", "dataset"]
    private: bool = False
    gated: Literal["auto", "manual", False] = False
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    @property
    def refs(self) -> dict[str, str]:
        """Commit hashes by the name of a branch or tag."""
        return self.tags | self.branches

    def push(
        self,
        changes: Mapping[str, bytes | None],
        message: str = "Update",
        branch: str = "main",
        replace: bool = False,
    ) -> str:
        """Adds a commit to a branch and returns its hash. A path with None is deleted.

        Other files stay as they were, but with `replace` they are deleted. A new branch begins at the end of main.
        """
        before = self.branches.get(branch, self.branches.get("main"))
        parent = self.commits[before] if before else None
        files = dict(parent.files) if parent and not replace else {}
        for path, content in changes.items():
            if content is None:
                del files[path]
            else:
                files[path] = File(content, path.endswith(LARGE_KINDS) or len(content) > LARGE_SIZE)
        commit = Commit(files, message, len(self.commits), parent)
        self.commits[commit.sha] = commit
        self.branches[branch] = commit.sha
        return commit.sha

    def push_folder(self, folder: Path, message: str = "Update", branch: str = "main", replace: bool = False) -> str:
        """Adds a commit with all files below a folder, as `push` does."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        changes = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        return self.push(changes, message, branch, replace)

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag, a hash or the first seven or more digits of one; None if there is none."""
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        if name in self.refs:
            return self.commits[self.refs[name]]
        if not re.fullmatch(r"[0-9a-f]{7,40}", revision):
            return None
        found = [commit for sha, commit in self.commits.items() if sha.startswith(revision)]
        return found[0] if len(found) == 1 else None
