"""Which commit of a repository a run reads. A branch may move while a run is under way; a commit never changes."""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ffkv.errors import UserError
from ffkv.files.checksums import verify_sum
from ffkv.hub.messages import NAMES, explain, is_offline, words
from ffkv.terminal import say

Kind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
LOOK_SECONDS = 5  # to look whether a branch has moved, which no number depends on


@dataclass(frozen=True)
class Commit:
    """The commit of a repository that a run reads.

    Attributes:
        kind: "model" or "dataset".
        repository: its id on the hub, or a local folder.
        revision: branch, tag or commit, as in the settings.
        commit: 40 hexadecimal digits; "" for a local folder.
        code: other repositories whose Python code the model runs, and their commits.
    """

    kind: Kind
    repository: str
    revision: str
    commit: str = ""
    code: dict[str, str] = field(default_factory=dict)

    @property
    def read_at(self) -> str:
        """What libraries take as `revision`."""
        return self.commit or self.revision

    @property
    def code_read_at(self) -> str:
        """What libraries take as `code_revision`."""
        return next(iter(self.code.values()), self.read_at)

    def __str__(self) -> str:
        """The revision and the commit, for a person."""
        if not self.commit or self.commit == self.revision:
            return f"revision {self.revision}"
        return f"revision {self.revision}, commit {self.commit}"


def is_local(repository: str) -> bool:
    """Whether a name is that of a local folder or file."""
    try:
        return Path(repository).exists()
    except (OSError, ValueError):  # no file can have such a name
        return False


def may_be_on_hub(name: str) -> bool:
    """Whether a name can be the id of a repository, rather than a path."""
    return not name.startswith((".", "/", "~")) and name.count("/") <= 1


def resolve_commit(kind: Kind, repository: str, revision: str, trust_remote_code: bool = False) -> Commit:
    """Asks the hub which commit a branch or tag is at now. Without the hub, it is the one that was fetched last.

    Args:
        kind: "model" or "dataset".
        repository: id on the hub, or a local folder, which has no commits.
        revision: branch, tag or commit.
        trust_remote_code: the model may run Python code, whose commit is needed too if it is in another repository.
    Raises:
        UserError: there is no such repository or revision, it may not be read, or the hub cannot be reached and nothing
            was fetched before.
    """
    if is_local(repository):
        _say_what_is_hidden(kind, repository)
        return Commit(kind, repository, revision)
    commit = Commit(kind, repository, revision, _resolve(kind, repository, revision))
    return dataclasses.replace(commit, code=_code_elsewhere(commit)) if trust_remote_code else commit


def write_commit(path: Path, commit: Commit) -> None:
    """Writes a commit as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(commit), sort_keys=True) + "\n")


def read_commit(path: Path | str) -> Commit:
    """Reads what `write_commit` wrote.

    Raises:
        UserError: the file is missing or damaged.
    """
    verify_sum(Path(path))
    try:
        return Commit(**json.loads(Path(path).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}). Make it again: `ffkv resolve-commit`.") from error


def given_commit(commit: Commit | None, kind: Kind, repository: str, revision: str, trusted: bool = False) -> Commit:
    """The commit that a step was given, or else the one that the hub names now.

    Raises:
        UserError: the commit is of another repository or revision; or see `resolve_commit`.
    """
    if commit is None:
        return resolve_commit(kind, repository, revision, trusted)
    if (commit.kind, commit.repository, commit.revision) != (kind, repository, revision):
        raise UserError(
            f"The given commit is of the {NAMES[commit.kind]} {commit.repository}, revision {commit.revision}, but the"
            f" settings name the {NAMES[kind]} {repository}, revision {revision}. Resolve the commit again."
        )
    return commit


def find_move(commit: Commit) -> str:
    """The commit that the branch is at now, if it has moved since; "" if not, or if the hub does not answer soon."""
    if not commit.commit or COMMIT.fullmatch(commit.revision) or is_offline():
        return ""
    from huggingface_hub import HfApi

    try:
        ask = HfApi().repo_info
        now = ask(commit.repository, repo_type=commit.kind, revision=commit.revision, timeout=LOOK_SECONDS).sha
    except Exception:  # nothing is read from the hub here: without an answer there is nothing to say
        return ""
    return now if now and now != commit.commit else ""


def _resolve(kind: Kind, repository: str, revision: str) -> str:
    import huggingface_hub
    from huggingface_hub import HfApi

    if COMMIT.fullmatch(revision):
        return revision
    try:
        HfApi().repo_info(repository, repo_type=kind, revision=revision)  # raises where the next line would go on
        # Notes the commit in the cache, for a later start without the hub.
        return str(huggingface_hub.resolve_revision(repository, repo_type=kind, revision=revision).resolved)
    except Exception as error:  # the library and those below it raise dozens of classes
        if _answered(error):
            raise UserError(_refusal(kind, repository, revision, error)) from error
        try:
            cached = huggingface_hub.resolve_revision(
                repository, repo_type=kind, revision=revision, local_files_only=True
            )
        except Exception:
            raise UserError(_refusal(kind, repository, revision, error)) from error
    if not is_offline():
        say(
            f"The hub does not answer. {repository} is read at commit {cached.resolved}, which {revision} was at when it"
            " was fetched.",
            error=True,
            name=False,
        )
    return str(cached.resolved)


def _answered(error: Exception) -> bool:
    """Whether the hub refused, rather than being out of reach or out of order."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is not None and status < 500


def _refusal(kind: Kind, repository: str, revision: str, error: Exception) -> str:
    reason = explain(error, kind, repository, revision) or words(error)
    above = Path(repository).parts[0]
    beside = f" The folder {above} in the working directory holds nothing of this name." if is_local(above) else ""
    return f"The {NAMES[kind]} {repository} cannot be read: {reason}{beside}"


def _code_elsewhere(commit: Commit) -> dict[str, str]:
    """The other repositories that `auto_map` in the model's configs names, each at its commit now."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    named = set()
    for name in ("config.json", "tokenizer_config.json"):
        try:
            path = hf_hub_download(commit.repository, name, revision=commit.commit)
            config = json.loads(Path(path).read_text(encoding="utf-8"))
        except (EntryNotFoundError, ValueError, OSError):  # whoever reads the config says what is wrong with it
            continue
        named |= set(_repositories(config.get("auto_map") if isinstance(config, dict) else None))
    if len(named) > 1:
        raise UserError(
            f"The code of {commit.repository} lies in several repositories ({', '.join(sorted(named))}), and only one"
            " can be read at a fixed commit. Download them, and name the local folder as model.checkpoint."
        )
    return {name: _resolve("model", name, "main") for name in named if name != commit.repository}


def _repositories(auto_map: Any) -> list[str]:
    """The repositories before `--` in the classes of `auto_map`, whose values are names or lists of names."""
    values = auto_map.values() if isinstance(auto_map, dict) else []
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [name.split("--")[0] for name in names if isinstance(name, str) and "--" in name]


def _say_what_is_hidden(kind: Kind, repository: str) -> None:
    if re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", repository):
        say(
            f"{repository} is read from the folder of this name in the working directory. A {NAMES[kind]} of this name on"
            " the hub is not looked at.",
            error=True,
            name=False,
        )
