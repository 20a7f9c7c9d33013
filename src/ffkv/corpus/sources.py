"""Reads documents from a hub data set, from local files, or from the embedded corpus."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.files.fault import DENIED
from ffkv.base.hub.commit import Commit, check_commit, resolve_dataset
from ffkv.base.lookup import is_dir, is_file
from ffkv.base.packages import locate, rename
from ffkv.base.settings import EMBEDDED, Corpus, corpus_sources
from ffkv.base.settings.messages import shown
from ffkv.corpus.chat import Render, row_text
from ffkv.corpus.detokenize import detokenize
from ffkv.corpus.document import Document
from ffkv.corpus.hub_rows import read_rows
from ffkv.corpus.text_files import texts
from ffkv.corpus.where import MISSING, find_column, is_wanted, lacking_columns, no_column, no_field

# Ending of a file's name: the kind of the file, see `texts`.
FORMATS = {"txt": "text", "text": "text", "tokens": "text", "json": "json", "jsonl": "json"}
FORMATS |= {"csv": "csv", "parquet": "parquet", "xml": "dump"}


def read_documents(
    corpus: Corpus,
    split: str,
    render: Render | None = None,
    commit: Commit | None = None,
    counts: Counter[str] | None = None,
) -> Iterator[Document]:
    """Reads the documents of a split, "train" or "validation", in the order of their source.

    Args:
        render: turns a chat into text, see `ffkv.corpus.chat`; None if rows contain text.
        commit: the commit of a data set of the hub to read; None for the one that the hub names now.
        counts: gets the number of `left_out_documents`: rows that `corpus.where` leaves out, and pages of a
            dump that are no articles.
    Raises:
        UserError: a data set, split, file or field does not exist; or a file cannot be read.
    """
    sources, _ = corpus_sources(corpus, split)
    counts = Counter() if counts is None else counts
    if corpus.dataset == EMBEDDED:
        from ffkv.corpus.python_docs import documents

        found = documents()
    elif corpus.dataset == "files":
        found = _read_files(corpus, sources, render, counts)
    else:
        found = _read_hub(corpus, sources[0], render, commit, counts)
    selected = select_split(found, corpus, split)
    if not corpus.detokenize:
        return selected
    return (document._replace(text=detokenize(document.text)) for document in selected)


def source_files(corpus: Corpus, split: str) -> list[str]:
    """Returns the local files of a split; none if the text comes from elsewhere. Raises: see `find_files`."""
    return find_files(corpus_sources(corpus, split)[0]) if corpus.dataset == "files" else []


def select_split(documents: Iterable[Document], corpus: Corpus, split: str) -> Iterator[Document]:
    """Selects the documents of a split, at most `corpus.limit`, from its sources, which both splits may share."""
    _, shared = corpus_sources(corpus, split)
    selected = (
        document
        for document in documents
        if not shared or is_held_out(document.text, corpus.validation_share) == (split == "validation")
    )
    return islice(selected, corpus.limit or None)


def is_held_out(text: str, share: float) -> bool:
    """Tells whether a document belongs to the validation split. A hash of its text decides.

    So neither other documents nor the spelling of a path matter, and copies of a document are in the same split.
    """
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return number < share * 2**64


def _read_files(corpus: Corpus, patterns: list[str], render: Render | None, counts: Counter[str]) -> Iterator[Document]:
    for path in find_files(patterns):
        name = rename(path, patterns)
        for index, text in enumerate(texts(path, _format(path), corpus, render)):
            if text is None:
                counts["left_out_documents"] += 1
            else:
                yield Document(f"{name}:{index}", text)


def find_files(patterns: list[str]) -> list[str]:
    """Finds the files that paths, glob patterns and addresses of `ffkv.base.packages` name.

    Each file is listed once, even if it has several names. In a pattern `**` stands for any number of folders. Paths are
    in the order of the patterns, sorted within each pattern. Raises UserError if a pattern matches no file, or a
    package is missing.
    """
    path_of: dict[str, str] = {}  # real path: the first path that leads to it
    for pattern in map(locate, patterns):
        try:
            literal, found = is_file(pattern), sorted(filter(is_file, _matches(pattern)))
            if literal and (others := [path for path in found if path != pattern]):
                raise UserError(
                    f"{shown(pattern)} is the name of a file, and a pattern that matches {len(others)} other files, such as"
                    f" {shown(others[0])}. Write {shown(glob.escape(pattern))} for the file alone, or rename it."
                )
            real = {path: os.path.realpath(path, strict=True) for path in ([pattern] if literal else found)}
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in DENIED:
                raise UserError(
                    f"{error.filename} cannot be read ({error.strerror}), and corpus files below it may match"
                    f" {shown(pattern)}. Check its rights and the disk."
                ) from error
            real = {}  # no file can have such a name
        if not real:
            raise UserError(
                f"No corpus file matches {shown(pattern)}: check corpus.train and corpus.validation "
                "(paths are relative to the working directory)."
            )
        for path in real:
            path_of.setdefault(real[path], path)
    return list(path_of.values())


def _matches(pattern: str) -> list[str]:
    """Matches as `glob.glob` with `**`, which passes over what it may not look up. Raises OSError for that."""
    above, stars, below = re.sub(r"(?<![^/])(\*\*/)+(?=\*\*(/|$))", "", pattern).partition("**")
    if not stars or not re.fullmatch(r"(.*/)?", above) or not re.fullmatch(r"(/.*)?", below):
        return _match_names(pattern)
    folders = [folder for top in _match_names(above) for folder in _folders(top)]
    return [path for folder in folders for path in _matches(glob.escape(folder) + (below.lstrip("/") or "*"))]


def _match_names(pattern: str) -> list[str]:
    """Matches one folder after the other. A name without magic need not be there."""
    above, name = os.path.split(pattern)
    folders = _match_names(above) if glob.has_magic(above) else [above]
    if not glob.has_magic(name):
        return [os.path.join(folder, name) for folder in folders]  # noqa: PTH118 (of "" it is the name alone)
    return [
        os.path.join(folder, entry)  # noqa: PTH118
        for folder in folders
        if is_dir(Path(folder))
        for entry in fnmatch.filter([entry.name for entry in Path(folder).iterdir()], name)
        if name.startswith(".") or not entry.startswith(".")
    ]


def _folders(top: str) -> Iterator[str]:
    """Yields a folder ("" is the working directory) and the folders below it that are not hidden, as "<path>/".

    Each is visited once, because links can lead in circles.
    """
    todo, seen = [top] if is_dir(Path(top)) else [], set()
    while todo:
        folder = todo.pop()
        if (real := os.path.realpath(folder, strict=True)) in seen:
            continue
        seen.add(real)
        yield os.path.join(folder, "")  # noqa: PTH118
        entries = [entry for entry in Path(folder).iterdir() if not entry.name.startswith(".")]
        todo += [os.path.join(folder, entry.name) for entry in sorted(entries, reverse=True) if is_dir(entry)]  # noqa: PTH118


def _format(path: str) -> str:
    unpacked = re.sub(r"\.(gz|bz2|zst)$", "", path.lower())
    ending = Path(re.sub(r"(?<=\.xml)-p[\w-]+$", "", unpacked)).suffix  # Wikimedia appends the numbers of the pages
    if ending.removeprefix(".") not in FORMATS:
        raise UserError(
            f"{path}: ffkv cannot read files whose name ends in {ending!r}. It reads "
            f"{', '.join(sorted(FORMATS))}, each also with .gz, .bz2 or .zst behind it."
        )
    return FORMATS[ending.removeprefix(".")]


def _read_hub(
    corpus: Corpus, split: str, render: Render | None, commit: Commit | None, counts: Counter[str]
) -> Iterator[Document]:
    commit = check_commit(commit, corpus) if commit else resolve_dataset(corpus)
    source, field = f"{corpus.dataset}:{split}", corpus.text_field
    for index, row in enumerate(read_rows(commit, corpus.config, split, corpus.limit)):
        value = find_column(row, field)
        if value is MISSING and not index:
            raise no_field(source, field, row)
        if lacking := lacking_columns(row, corpus.where):
            raise no_column(source, lacking, row)
        place = f"{source}, row {index}"
        if is_wanted(row, corpus.where, place):
            yield Document(f"{source}:{index}", row_text(value, field, place, render))
        else:
            counts["left_out_documents"] += 1
