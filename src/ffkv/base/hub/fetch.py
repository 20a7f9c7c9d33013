"""Fetches files of a commit into the hub's cache, and makes sure that they arrived whole."""

import glob
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError, one_line
from ffkv.base.hub.commit import Commit, prepare_client
from ffkv.base.hub.messages import NAMES, advise_download, endpoint, explain, is_offline, refused
from ffkv.base.lookup import exists, find, is_file, looks_told
from ffkv.base.process.progress import Bar, progress
from ffkv.base.terminal import in_bytes, say

# What says how weights are cut into files, or holds them whole: the first one that there is is what transformers reads.
WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.safetensors", "adapter_model.bin"),
)
SMALL = re.compile(r"[^/]+\.(json|txt|model|jinja|py|tiktoken|bpe)")
Choose = Callable[[list[str]], list[str]]


def fetch(commit: Commit, choose: Choose) -> Path:
    """Fetches files of a commit that are not in the cache yet. Says first how much it is and where it goes.

    `choose` chooses from the names of all files in the repository. Returns the folder of the commit in the cache. All chosen
    files are there, unless the cache has no list of the files and the hub is not to be asked or does not answer: then the
    reader has to do with what is there. Raises UserError if the hub refuses, a file arrived damaged, or a file is missing and
    the hub is not to be asked.
    """
    from huggingface_hub import snapshot_download

    prepare_client()
    with looks_told(hub_cache()):
        try:
            sizes = _sizes(commit)
            if sizes is None:
                if folder := cached_folder(commit):
                    return folder
                raise _missing(commit, [])
            chosen = choose(sorted(sizes))
            missing = [name for name in chosen if not _is_cached(commit, name)]
            if missing and is_offline():
                raise _missing(commit, missing)
            if missing:
                size = sum(sizes[name] for name in missing)
                say(
                    f"Fetching {len(missing)} {'file' if len(missing) == 1 else 'files'}, {in_bytes(size)}, of the"
                    f" {NAMES[commit.kind]} {commit.repository}, {commit}, from {endpoint()} into {hub_cache()}.",
                    error=True,
                    name=False,
                )
                _download(commit, missing, size)
            # Notes the list of all files in the cache, so that later jobs ask nothing.
            patterns, bar = [glob.escape(name) for name in chosen], _counting(lambda _: None)
            return Path(snapshot_download(commit.repository, **commit.where, allow_patterns=patterns, tqdm_class=bar))
        except UserError:
            raise
        except Exception as error:  # as in `resolve_commit`
            raise UserError(_refusal(commit, error)) from error


def hub_cache() -> str:
    """Returns the folder of the hub's cache."""
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE


def measure_missing(commit: Commit, choose: Choose) -> dict[str, int]:
    """Name to bytes of the chosen files of a commit that are not in the cache yet. A local folder misses none.

    Nothing is fetched. Raises UserError if the hub refuses, or cannot be reached.
    """
    if not commit.commit:
        return {}
    prepare_client()
    try:
        sizes = _sizes(commit) or {}
    except Exception as error:  # as in `resolve_commit`
        raise UserError(_refusal(commit, error)) from error
    return {name: sizes[name] for name in choose(sorted(sizes)) if not _is_cached(commit, name)}


def _sizes(commit: Commit) -> dict[str, int] | None:
    """Name to bytes of every file of a commit, from the cache if it has the list; None if it has files, but no list,
    and the hub is out of reach."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    tree = _cached_tree(commit)
    try:
        if tree is None:
            if is_offline():
                return None
            tree = list(HfApi().list_repo_tree(commit.repository, recursive=True, **commit.where))
    except Exception as error:
        if not refused(error) and cached_folder(commit):
            return None
        raise
    return {file.path: file.size for file in tree if isinstance(file, RepoFile)}


def _missing(commit: Commit, names: list[str]) -> UserError:
    some = f"{len(names)} of its files were not fetched before, {names[0]} for one" if names else "it was never fetched"
    return UserError(
        f"The {NAMES[commit.kind]} {commit.repository} cannot be read: HF_HUB_OFFLINE is set, and {some}."
        f" {advise_download(commit.kind, commit.repository, commit.commit)}"
    )


def _is_cached(commit: Commit, name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(commit.repository, name, **commit.where)
    return isinstance(found, str) and exists(found)


def _download(commit: Commit, names: list[str], size: int) -> None:
    """Downloads files into the cache, with one bar over all of them."""
    from huggingface_hub import hf_hub_download

    with progress(size, "B", f"fetching {commit.repository}") as bar:
        for name in names:
            path = Path(hf_hub_download(commit.repository, name, **commit.where, tqdm_class=_counting(bar.update)))
            if not _is_whole(blob := path.resolve()):
                blob.unlink()
                path.unlink(missing_ok=True)
                raise UserError(
                    f"{name} of {commit.repository} arrived with another content than the hub's checksum says, so it was not"
                    " kept. The network or the server changed it. Start again to fetch it anew."
                )


def _counting(count: Callable[[float], object]) -> Any:
    """Returns a progress bar that the library accepts. It shows nothing, and tells `count` how many bytes arrived."""

    class Counting(Bar):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})
            count(options.get("initial", 0))

        def update(self, n: float | None = 1) -> bool | None:
            count(n or 0)
            return None

    return Counting


def cached_folder(commit: Commit) -> Path | None:
    """Returns the folder of a commit in the cache, with the files of it that were fetched; None if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(commit.repository, **commit.where, local_files_only=True))
    except IncompleteSnapshotError as error:
        return Path(error.snapshot_path)
    except LocalEntryNotFoundError:
        return None


def cached_names(commit: Commit) -> list[str] | None:
    """Returns the names of all files of a commit, fetched or not; None if the cache does not know them."""
    tree = _cached_tree(commit) if commit.commit else None
    return None if tree is None else sorted(file.path for file in tree)


def _cached_tree(commit: Commit) -> list[Any] | None:
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return get_cached_repo_tree(commit.repository, **commit.where)
    except CachedRepoTreeNotFoundError:
        return None


def local_model(commit: Commit, choose: Choose | None = None) -> str:
    """Returns the folder with the files of a model, which are fetched if they are not there; a local folder as it is.

    Libraries that read a folder ask the hub nothing. `choose`: None for all files that a model is made of. Raises: see `fetch`.
    """
    return str(fetch(commit, choose or choose_model_files)) if commit.commit else commit.repository


def choose_config_files(names: list[str]) -> list[str]:
    """Chooses the files that tell how a model is built, without its weights."""
    return [name for name in names if re.fullmatch(r"config\.json|adapter_config\.json|[^/]+\.py", name)]


def choose_tokenizer_files(names: list[str]) -> list[str]:
    """Chooses the files of a tokenizer, with the configs and the code of its model."""
    return [name for name in names if SMALL.fullmatch(name)]


def choose_files_of(gguf: str, with_weights: bool = True) -> Choose:
    """Chooses what is read of a model's repository: a file in the GGUF form alone; if "", see `choose_model_files`."""
    if gguf:
        return lambda names: [name for name in names if name == gguf]
    return choose_model_files if with_weights else choose_tokenizer_files


def choose_model_files(names: list[str]) -> list[str]:
    """Chooses the files that transformers reads of a model: configs, tokenizer, code, and one form of the weights."""
    small = choose_tokenizer_files(names)
    form = next((name for name in WEIGHTS if name in names), "")
    if form.endswith(".index.json"):
        stem, ending = form.removesuffix(".index.json").split(".")
        return small + [name for name in names if re.fullmatch(rf"{stem}-\d+-of-\d+\.{ending}", name)]
    return small + ([form] if form else [])


def tell_damage(commit: Commit) -> str:
    """Says which file of a commit in the cache is damaged, and what to do; "" if all are whole."""
    folder = cached_folder(commit) if commit.commit else None
    blobs = sorted(path.resolve() for path in find(folder, "**/*") if is_file(path)) if folder else []
    for blob in blobs:
        if not _is_whole(blob):
            return (
                f"{blob} in the hub's cache is damaged: its content does not have the hash that is its name. Delete this"
                " file, and the next start fetches it again."
            )
    return ""


def _is_whole(blob: Path) -> bool:
    """Tells whether a file in the cache has the hash that is its name, the server's ETag.

    The hub gives the SHA-256 of a large file and git's hash of a small one. Mirrors also give the SHA-1 of the content.
    Any other name says nothing of the content.
    """
    method = {40: "sha1", 64: "sha256"}.get(len(blob.name)) if re.fullmatch("[0-9a-fA-F]+", blob.name) else None
    of_git = b"blob %d\0" % blob.stat().st_size
    return method is None or any(_digest(blob, method, start) == blob.name.lower() for start in (b"", of_git))


def _digest(path: Path, method: str, start: bytes) -> str:
    """Returns the hash of `start` and the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(method, start)).hexdigest()


def _refusal(commit: Commit, error: Exception) -> str:
    reason = explain(error, commit.kind, commit.repository, commit.revision) or one_line(error)
    return f"The {NAMES[commit.kind]} {commit.repository} cannot be fetched: {reason}"
