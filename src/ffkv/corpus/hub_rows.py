"""The rows of a data set of the hub, in the order of its files at one commit.

What is in the hub's cache is read from there. With a limit the rest is streamed, and no more of it than the limit needs. Without
a limit the files of the split are fetched into the cache first, so that a later start needs no hub. No copy is made.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.errors import UserError, one_line
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import cached_folder, cached_names, fetch, tell_damage
from ffkv.base.hub.messages import explain, is_offline
from ffkv.base.lookup import exists, find, is_file, make_folder
from ffkv.base.process.libraries import listening
from ffkv.base.terminal import say

# What says which files are which split of which configuration.
DESCRIPTIONS = ("README.md", "dataset_infos.json", ".huggingface.yaml")


def read_rows(commit: Commit, config: str, split: str, limit: int) -> Iterator[dict[str, Any]]:
    """Reads the rows of a split, each as a dictionary of its columns. Warnings of the library become remarks.

    `commit`: that of the data set; a local folder has none. `config`: "default" for the default configuration. `limit`:
    whether few rows are wanted, so that files are streamed; 0 for all rows. Raises UserError if there is no such
    configuration or split, or a file is missing, damaged or cannot be fetched.
    """
    with listening("datasets"), _place(commit, config, split, limit) as (source, revision):
        with _named(commit):
            builder = _builder(source, config, revision)
            if split in (files := builder.config.data_files or {}):
                # The library reads the types of the columns in the first split, whose files may not be there.
                builder.config.data_files = type(files)({split: files[split]})
            rows = iter(builder.as_streaming_dataset(split=split))
        while True:
            with _named(commit):
                row = next(rows, None)
            if row is None:
                return
            yield row


class HubSplit(NamedTuple):
    """What the hub says of a split."""

    rows: int | None  # number of rows; None if it does not say
    text_bytes: int | None  # bytes of all columns in memory; None if it does not say
    files: list[str]  # names of its files in the repository


def describe_split(commit: Commit, config: str, split: str) -> HubSplit:
    """Asks how large a split is. Nothing is fetched but what describes the data set.

    `config`: "default" for the default configuration. Raises UserError if there is no such data set, configuration or
    split, or it may not be read.
    """
    with listening("datasets"), _named(commit):
        builder = _builder(commit.repository, config, commit.commit or None)
        files, described = builder.config.data_files or {}, builder.info.splits or {}
    if split not in files and split not in described:
        raise UserError(
            f"The corpus {commit.repository} has no split {split}. It has {', '.join(sorted({*files, *described}))}."
        )
    known = described.get(split)
    inside = [str(file).partition(f"@{commit.commit}/")[2] for file in files.get(split, [])]
    return HubSplit(getattr(known, "num_examples", None), getattr(known, "num_bytes", None) or None, inside)


@contextlib.contextmanager
def _place(commit: Commit, config: str, split: str, limit: int) -> Iterator[tuple[str, str | None]]:
    """Yields where `datasets` reads a split: in a folder, or in the repository at a commit."""
    if not commit.commit:
        yield commit.repository, None
        return
    if limit and not is_offline():
        folder = cached_folder(commit) if cached_names(commit) is not None else None
    else:
        folder = fetch(commit, lambda names: [each for each in names if each in DESCRIPTIONS])
        with _mirror(commit, folder) as mirror:
            files = {*_files(commit, mirror, config, split), *DESCRIPTIONS}
        folder = fetch(commit, lambda names: [each for each in names if each in files])
    if folder:
        with _mirror(commit, folder) as mirror:
            if all((mirror / file).is_symlink() for file in _files(commit, mirror, config, split)):
                yield str(mirror), None
                return
    yield commit.repository, commit.commit


@contextlib.contextmanager
def _mirror(commit: Commit, folder: Path) -> Iterator[Path]:
    """Yields a folder with a link to each cached file of the commit, and an empty file for each other one."""
    # `datasets` finds the files of a split by their names, and refuses a folder in which those of another one are missing.
    if (names := cached_names(commit)) is None:
        say(
            f"The cache holds no list of the files of {commit.repository}, so that nobody can tell whether all files of"
            " the split are there. `hf download` stores the list, too.",
            error=True,
            name=False,
        )
        names = [path.relative_to(folder).as_posix() for path in find(folder, "**/*") if is_file(path)]
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            path = Path(temporary) / name
            make_folder(path.parent)
            if exists(folder / name):
                path.symlink_to(folder / name)
            else:
                path.touch()
        yield Path(temporary)


def _files(commit: Commit, mirror: Path, config: str, split: str) -> list[str]:
    """Returns the files of a split; none if there is no such split, of which `load_dataset` says more."""
    with _named(commit):
        builder = _builder(str(mirror), config)
    files = (builder.config.data_files or {}).get(split, [])
    return [Path(file).relative_to(mirror).as_posix() for file in files]


@contextlib.contextmanager
def _named(commit: Commit) -> Iterator[None]:
    """Names the data set where a library raises one of its dozens of classes. None comes from a defect of ffkv."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        known = explain(error, "dataset", commit.repository, commit.revision) if commit.commit else ""
        reason = known or tell_damage(commit) or one_line(error.__cause__ or error, 500)
        raise UserError(f"The corpus {commit.repository} cannot be read: {reason}") from error


def _builder(source: str, config: str, revision: str | None = None) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset_builder(source, None if config == "default" else config, revision=revision)
