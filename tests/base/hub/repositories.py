"""Repositories of the emulated hub: commits, branches, tags, and what the hub says about their files."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

# The hub keeps files of these kinds, and large ones, in its large file storage.
LARGE_KINDS = (".safetensors", ".bin", ".parquet", ".gz", ".zst", ".gguf", ".model")
LARGE_SIZE = 1_000_000


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
        size = len(self.content)
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {size}\n".encode()

    @cached_property
    def blob(self) -> str:
        """Git's hash of what git keeps."""
        kept = self.pointer if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(kept) + kept).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.blob

    def entry(self, path: str) -> dict[str, Any]:
        """What a listing says about it."""
        size = len(self.content)
        lfs = {"lfs": {"oid": self.sha256, "size": size, "pointerSize": len(self.pointer)}} if self.large else {}
        return {"type": "file", "oid": self.blob, "size": size, "path": path} | lfs


@dataclass(frozen=True)
class Commit:
    """One state of a repository: all its files by path, and the hash of the commit before it."""

    files: Mapping[str, File]
    before: str

    @cached_property
    def sha(self) -> str:
        """40 hexadecimal digits, from content and history alone, so that each run of a test finds the same."""
        lines = [self.before, *(f"{path} {file.blob}" for path, file in sorted(self.files.items()))]
        return hashlib.sha1("\n".join(lines).encode()).hexdigest()

    def listed(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        """What a listing says about the files and folders of a folder, sorted by their paths."""
        start, found = f"{folder}/" if folder else "", dict[str, dict[str, Any]]()
        for path, file in self.files.items():
            if path.startswith(start):
                parts = path.removeprefix(start).split("/")
                for depth in range(1, len(parts) + 1 if recursive else 2):
                    name = start + "/".join(parts[:depth])
                    below = {
                        "type": "directory",
                        "oid": hashlib.sha1(name.encode()).hexdigest(),
                        "size": 0,
                        "path": name,
                    }
                    found[name] = file.entry(path) if name == path else below
        return [found[name] for name in sorted(found)]


@dataclass
class Repository:
    """A repository.

    branches, tags: commit hash by name. private: unknown to all without a token that may access it. gated: known to all, and
    its files are only for tokens that may access it.
    """

    private: bool = False
    gated: Literal["auto", "manual", False] = False
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def push(self, changes: Mapping[str, bytes], branch: str = "main") -> str:
        """Adds a commit to a branch and returns its hash. Other files stay. A new branch begins at the end of main."""
        before = self.branches.get(branch, self.branches.get("main", ""))
        files = dict(self.commits[before].files) if before else {}
        for path, content in changes.items():
            files[path] = File(content, path.endswith(LARGE_KINDS) or len(content) > LARGE_SIZE)
        commit = Commit(files, before)
        self.commits[commit.sha] = commit
        self.branches[branch] = commit.sha
        return commit.sha

    def push_folder(self, folder: Path, branch: str = "main") -> str:
        """Adds a commit with all files below a folder, as `push` does."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return self.push({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}, branch)

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag, a hash or the first seven or more digits of one; None if there is none."""
        named = self.tags | self.branches
        if revision in named:
            return self.commits[named[revision]]
        if not re.fullmatch(r"[0-9a-f]{7,40}", revision):
            return None
        found = [commit for sha, commit in self.commits.items() if sha.startswith(revision)]
        return found[0] if len(found) == 1 else None
