"""Which commit of a repository a run reads, and `ffkv resolve-commit`, which writes it down.

A branch may move while a run is under way; a commit never changes.
"""

import dataclasses
import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from ffkv.base.errors import UserError, one_line
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import verify_sum
from ffkv.base.hub.messages import NAMES, explain, is_offline, refused
from ffkv.base.lookup import DENIED, exists, not_looked_up, read_json
from ffkv.base.options import output_option, setting
from ffkv.base.settings import BROUGHT, EMBEDDED, Corpus, Model, section
from ffkv.base.terminal import say

Kind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
LOOK_SECONDS = 5  # to look whether a branch has moved, which no number depends on


@dataclass(frozen=True)
class Commit:
    """The commit of a repository that a run reads."""

    kind: Kind  # "model" or "dataset"
    repository: str  # its id on the hub, or a local folder
    revision: str  # branch, tag or commit, as in the settings
    commit: str = ""  # 40 hexadecimal digits; "" for a local folder
    # other repositories whose Python code the model runs, and their commits
    code: dict[str, str] = field(default_factory=dict)
    adapter: str = ""  # id or folder of the adapter that is merged into the model; "" for none
    adapter_revision: str = "main"  # its branch, tag or commit, as in the settings
    adapter_commit: str = ""  # its commit; "" for a local folder

    @property
    def read_at(self) -> str:
        """What libraries take as `revision`."""
        return self.commit or self.revision

    @property
    def where(self) -> dict[str, Any]:
        """What `huggingface_hub` takes beside the repository."""
        return {"repo_type": self.kind, "revision": self.commit}

    @property
    def code_read_at(self) -> str:
        """What libraries take as `code_revision`."""
        return next(iter(self.code.values()), self.read_at)

    @property
    def of_adapter(self) -> "Commit":
        """The commit of the adapter."""
        return Commit("model", self.adapter, self.adapter_revision, self.adapter_commit)

    def __str__(self) -> str:
        """Returns the revision and the commit, for a person."""
        if not self.commit or self.commit == self.revision:
            return f"revision {self.revision}"
        return f"revision {self.revision}, commit {self.commit}"


def is_local(repository: str) -> bool:
    """Tells whether a name is that of a local folder or file. Raises UserError if the machine denies to look it up."""
    try:
        return exists(repository)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in DENIED:
            raise not_looked_up(error) from error
        return False  # no file can have such a name


def may_be_on_hub(name: str) -> bool:
    """Tells whether a name can be the id of a repository, rather than a path."""
    return not name.startswith((".", "/", "~")) and name.count("/") <= 1


@functools.cache
def prepare_client() -> None:
    """Gives every request a limit of time, because some functions of the library set none; and stills its log.

    A program that uses ffkv as a library and has set a time limit of its own keeps it.
    """
    import httpx2
    from huggingface_hub import constants, get_session, set_client_factory
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # each try that failed would be a line
    usual = get_session()
    if usual.timeout != httpx2.Timeout(None):
        return

    class Client(httpx2.Client):
        def build_request(self, *arguments: Any, **options: Any) -> httpx2.Request:
            if options.get("timeout") is None:
                options["timeout"] = constants.HF_HUB_DOWNLOAD_TIMEOUT
            return super().build_request(*arguments, **options)

    limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
    hooks = usual.event_hooks
    set_client_factory(lambda: Client(event_hooks=hooks, follow_redirects=True, timeout=limit))


def resolve_dataset(settings: Corpus) -> Commit:
    """Asks the hub which commit a data set is at now. See `resolve_model`."""
    return _resolve_repository("dataset", settings.dataset, settings.revision)


def resolve_model(settings: Model) -> Commit:
    """Asks the hub which commits a model is at now, with its adapter and its code in other repositories.

    A local folder has no commits. Without the hub, they are those that were fetched last.

    Raises UserError if there is no such repository or revision, it may not be read, nothing was fetched before and the hub
    cannot be reached, or what is named is not on the hub.
    """
    settings = settings.located()
    commit = _resolve_repository("model", settings.checkpoint, settings.revision)
    if commit.commit and settings.trust_remote_code:
        commit = dataclasses.replace(commit, code=_code_elsewhere(commit))
    if not settings.adapter:
        return commit
    own = _resolve_repository("model", settings.adapter, settings.adapter_revision)
    about = dict[str, Any](adapter=own.repository, adapter_revision=own.revision, adapter_commit=own.commit)
    return dataclasses.replace(commit, **about)


def write_commit(path: Path, commit: Commit) -> None:
    """Writes a commit as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(commit), sort_keys=True) + "\n")


def read_commit(path: Path | str) -> Commit:
    """Reads what `write_commit` wrote. Raises UserError if the file is missing or damaged."""
    verify_sum(Path(path))
    try:
        return Commit(**read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}). Make it again: `ffkv resolve-commit`.") from error


def check_commit(commit: Commit, settings: Model | Corpus) -> Commit:
    """Returns a commit, if it is of the repository that the settings name. Raises UserError if it is of another one."""
    if isinstance(settings, Model):
        named = ("model", settings.checkpoint, settings.revision, settings.adapter, settings.adapter_revision)
    else:
        named = ("dataset", settings.dataset, settings.revision, "", "main")
    found = (commit.kind, commit.repository, commit.revision, commit.adapter, commit.adapter_revision)
    if found != named:
        raise UserError(
            f"The given commit is of {' '.join(found)}, but the settings name {' '.join(named)}. Resolve it again:"
            " `ffkv resolve-commit`."
        )
    return commit


def find_move(commit: Commit) -> str:
    """Finds the commit of a branch that has moved since; "" if it has not, or if the hub does not answer soon."""
    if not commit.commit or COMMIT.fullmatch(commit.revision) or is_offline():
        return ""
    from huggingface_hub import HfApi

    try:
        ask = HfApi().repo_info
        now = ask(commit.repository, repo_type=commit.kind, revision=commit.revision, timeout=LOOK_SECONDS).sha
    except Exception:  # nothing is read from the hub here: without an answer there is nothing to say
        return ""
    return now if now and now != commit.commit else ""


def _resolve_repository(kind: Kind, repository: str, revision: str) -> Commit:
    if is_local(repository):
        if re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", repository):
            told = f"{repository} is read from the folder of this name in the working directory."
            say(f"{told} A {NAMES[kind]} of this name on the hub is not looked at.", error=True, name=False)
        return Commit(kind, repository, revision)
    if repository == EMBEDDED or (kind == "dataset" and repository in BROUGHT):
        raise UserError(f"The {NAMES[kind]} {repository!r} has no commit: it is not on the hub. Name another one.")
    return Commit(kind, repository, revision, _resolve(kind, repository, revision))


def _resolve(kind: Kind, repository: str, revision: str) -> str:
    import huggingface_hub
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionResolutionError

    if COMMIT.fullmatch(revision):
        return revision
    prepare_client()
    try:
        HfApi().repo_info(repository, repo_type=kind, revision=revision)  # raises where the next line would go on
        # Notes the commit in the cache, for a later start without the hub.
        return str(huggingface_hub.resolve_revision(repository, repo_type=kind, revision=revision).resolved)
    except Exception as error:  # the library and those below it raise dozens of classes
        if refused(error):
            raise UserError(_refusal(kind, repository, revision, error)) from error
        try:
            where: Any = {"repo_type": kind, "revision": revision}
            cached = huggingface_hub.resolve_revision(repository, **where, local_files_only=True)
        except (RevisionResolutionError, OSError, ValueError):  # not in the cache, or no id of a repository
            raise UserError(_refusal(kind, repository, revision, error)) from error
    if not is_offline():
        told = f"The hub does not answer. {repository} is read at commit {cached.resolved}, which {revision} was at"
        say(f"{told} when it was fetched.", error=True, name=False)
    return str(cached.resolved)


def _refusal(kind: Kind, repository: str, revision: str, error: Exception) -> str:
    reason = explain(error, kind, repository, revision) or one_line(error)
    above = Path(repository).parts[0]
    beside = f"The folder {above} in the working directory holds nothing of this name."
    nowhere = f"The working directory has no folder {repository}, either."
    return f"The {NAMES[kind]} {repository} cannot be read: {reason} {beside if is_local(above) else nowhere}"


def _code_elsewhere(commit: Commit) -> dict[str, str]:
    """Returns the other repositories that `auto_map` in the model's configs names, each at its commit now."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    named = set()
    for name in ("config.json", "tokenizer_config.json"):
        try:
            path = hf_hub_download(commit.repository, name, revision=commit.commit)
            config = read_json(path, object_pairs_hook=dict)
        except (EntryNotFoundError, ValueError, OSError):  # whoever reads the config says what is wrong with it
            continue
        classes = config.get("auto_map") if isinstance(config, dict) else None
        # Its values are names of classes, or lists of names; a repository stands in front of a name and `--`.
        for value in classes.values() if isinstance(classes, dict) else []:
            each = value if isinstance(value, list) else [value]
            named |= {name.split("--")[0] for name in each if isinstance(name, str) and "--" in name}
    if len(named) > 1:
        raise UserError(
            f"The code of {commit.repository} lies in several repositories ({', '.join(sorted(named))}), and only one"
            " can be read at a fixed commit. Download them, and name the local folder as model.checkpoint."
        )
    return {name: _resolve("model", name, "main") for name in named if name != commit.repository}


@click.command()
@click.option("--kind", type=click.Choice(["model", "dataset"]), required=True, help="What to ask for.")
@setting(Model, "checkpoint", "adapter", "adapter_revision", "trust_remote_code")
@setting(Corpus, "dataset")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of the model or data set.")
@output_option("File to write, commits/<kind>.json.")
def resolve_commit(kind: str, dataset: str, revision: str, output: Path, **options: Any) -> None:
    """Ask the hub at which commit a model or a data set is, and write it down.

    `--commit` of other commands reads it.
    """
    if kind == "model":
        commit = resolve_model(section(Model, revision=revision, **options))
    else:
        commit = resolve_dataset(section(Corpus, dataset=dataset, revision=revision))
    with atomic(output) as temporary:
        write_commit(temporary, commit)
    say(f"{commit.repository}: {commit}")
