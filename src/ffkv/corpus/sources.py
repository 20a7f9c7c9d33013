"""Reads documents from a hub data set, from local files, or from a corpus that a package brings."""

import fnmatch
import glob
import hashlib
import os
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

from ffkv.base.doors import entries, inside, load, locate, rename
from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit, check_commit, is_local, may_be_on_hub, resolve_dataset
from ffkv.base.lookup import DENIED, is_dir, is_file
from ffkv.base.settings import BROUGHT, Corpus, corpus_sources
from ffkv.base.settings.messages import shown
from ffkv.corpus import raw_file, rows
from ffkv.corpus.chat import Render
from ffkv.corpus.document import Document
from ffkv.corpus.hub_rows import read_rows
from ffkv.corpus.raw_file import check_text, lines_of, unreadable
from ffkv.corpus.wiki_markup import wiki_documents

# Ending of a file's name: the kind of the file, see `documents_of`.
FORMATS = {"txt": "text", "text": "text", "tokens": "text", "json": "json", "jsonl": "json"}
FORMATS |= {"csv": "csv", "parquet": "parquet", "xml": "dump"}
ENDS = "\r\n"  # of a line: a carriage return, a line feed, or both, and no other character
LOOKED_AT = 1000  # rows of each file, before a run starts
# How an article of WikiText begins. Its other headings have more signs: " = = Career = = ".
HEADING = re.compile(r" = ([^=\s](?:.*[^=\s])?) = (?:\n|\Z)")
# In this order. Each rule takes back what the tokenizers of WikiText and of the Penn Treebank do to a text.
RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r" @([-,.])@ ", r"\1"),  # WikiText: state @-@ of @-@ the @-@ art, 1 @,@ 000, 3 @.@ 14
    (r"(?m)^([ ]*)((?:= )+=)(?= )", lambda match: match[1] + match[2].replace(" ", "")),  # a heading begins
    (r"(?m)(?<= )((?:= )+=)(?=[ ]*$)", lambda match: match[1].replace(" ", "")),  # a heading ends
    (r"s ' (?=\w)", "s' "),  # the students ' books
    (r'" ([^"\n]*?) "', r'"\1"'),
    (r"(?<!\S)' ([^'\n]*?) '(?!\S)", r"'\1'"),
    (r" (n't|'(?:s|m|d|re|ve|ll)|(?<=n )'t)(?!\w)", r"\1"),  # WikiText: don 't, the Penn Treebank: do n't
    (r"(?<=\d) ([:/–]) (?=\d)", r"\1"),  # 9 : 30, 1 / 2, 1939 – 45
    (r"([(\[{$£€]) ", r"\1"),
    (r" ([)\]}%])", r"\1"),
    (r" ([,.;:!?]+)(?= |$|[\"')\]])", r"\1"),
]


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
        counts: gets the number of `left_out_documents`: rows that `corpus.where` leaves out, and pages that are no articles.
    Raises:
        UserError: a data set, split, file or field does not exist; or a file cannot be read.
    """
    sources, _ = corpus_sources(corpus, split)
    counts = Counter() if counts is None else counts
    if corpus.dataset in BROUGHT:
        found = brought_documents(corpus.dataset)
    elif corpus.dataset == "files":
        each_file = ((rename(path, sources), path) for path in find_files(sources))
        of_files = (_named(name, documents_of(path, _format(path), corpus, render), counts) for name, path in each_file)
        found = chain.from_iterable(of_files)
    else:
        found = _read_hub(corpus, sources[0], render, commit, counts)
    selected = select_split(found, corpus, split)
    if not corpus.detokenize:
        return selected
    return (Document(name, detokenize(text), detokenize(title)) for name, text, title in selected)


def source_files(corpus: Corpus, split: str) -> list[str]:
    """Returns the local files of a split; of a data set in a local folder all of them; none if the text comes from elsewhere.

    Raises UserError as `find_files`, and if a data set is neither a folder nor a name that the hub can have.
    """
    name = corpus.dataset
    if not corpus.on_hub:
        return find_files(corpus_sources(corpus, split)[0]) if name == "files" else []
    if is_file(name):
        raise UserError(f"corpus.dataset is the file {shown(name)}: set it to files, and corpus.train to the file.")
    if is_local(name):
        return find_files([f"{glob.escape(name)}/**/*"])
    if may_be_on_hub(name):
        return []
    raise UserError(f"corpus.dataset is {shown(name)}. There is no such folder, and the hub has no such names.")


def check_files(corpus: Corpus, split: str) -> None:
    """Reads the beginning of each local file of a split, up to the first text at least. Raises UserError as `read_documents`.

    A data set is looked for, and not read. What brings the corpus of a package is imported.
    """
    if corpus.dataset in entries("corpora"):
        load("corpora", corpus.dataset)
    paths = source_files(corpus, split)
    for path in [] if corpus.on_hub else paths:
        chats = (lambda chat: "a chat") if corpus.chat_template else None
        found = (each and each.text for each in documents_of(path, _format(path), corpus, chats))
        if not any([*islice(found, LOOKED_AT)]):
            any(found)  # at its end a file without the field is refused


def brought_documents(name: str, every: int = 1) -> Iterator[Document]:
    """Yields the documents of the corpus that a package brings; or of `every` so many one. Raises TypeError if one is no `Document`."""
    with inside("corpora", name):
        for each in load("corpora", name)(every):
            if not isinstance(each, Document) or not all(isinstance(part, str) for part in each):
                raise TypeError(f"a document of the corpus {name!r} is no Document, or a part of it is no text")
            yield each


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


def _named(source: str, documents: Iterable[Document | None], counts: Counter[str]) -> Iterator[Document]:
    """Names the documents of a source by their numbers, and counts those that are None.

    A line of WikiText without a title of its own has that of its article.
    """
    article = ""
    for index, document in enumerate(documents):
        if document is None:
            counts["left_out_documents"] += 1
            continue
        if heading := HEADING.match(document.text):
            article = heading[1]
        yield Document(f"{source}:{index}", document.text, document.title or article)


def find_files(patterns: list[str]) -> list[str]:
    """Finds the files that paths, glob patterns and addresses of `ffkv.base.doors` name.

    Each file is listed once, even if it has several names. In a pattern `**` stands for any number of folders. Paths are in the
    order of the patterns, sorted within each pattern. Raises UserError if a pattern matches no file, or a package is missing.
    """
    path_of: dict[str, str] = {}  # real path: the first path that leads to it
    for pattern in map(locate, patterns):
        try:
            literal, folder, found = is_file(pattern), is_dir(pattern), sorted(filter(is_file, _matches(pattern)))
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
            real, folder = {}, False  # no file can have such a name
        if folder:
            raise UserError(
                f"{shown(pattern)} is a folder. Name its files, as in {shown(glob.escape(pattern.rstrip('/')) + '/*')}; if"
                " it holds a data set of the library `datasets`, set corpus.dataset to it."
            )
        if not real:
            raise UserError(
                f"No corpus file matches {shown(pattern)}: check corpus.train and corpus.validation "
                "(paths are relative to the working directory)."
            )
        for path in real:
            path_of.setdefault(real[path], path)
    return list(path_of.values())


def _matches(pattern: str) -> list[str]:
    """Matches as `glob.glob` with `**`, which passes over what it may not look up. Raises OSError for that.

    A name without magic need not be there. `**` enters no hidden folder, and each folder once: links can lead in circles.
    """
    parts = re.sub(r"(?<![^/])(\*\*/)+(?=\*\*(/|$))", "", pattern.rstrip("/")).split("/")
    found = ["/" if pattern.startswith("/") else ""]  # "" is the working directory
    for part in [*parts, *["*"] * (parts[-1] == "**")]:
        if part == "**":
            found = [folder for top in found if is_dir(Path(top)) for folder in _folders(top)]
        elif glob.has_magic(part):
            found = [path for top in found if is_dir(Path(top)) for path in _entries(top, part)]
        else:
            found = [os.path.join(top, part) for top in found]  # noqa: PTH118 (of "" it is the name alone)
    return found


def _folders(top: str) -> Iterator[str]:
    """Yields a folder and the folders below it."""
    todo, seen = [top], set()
    while todo:
        folder = todo.pop()
        if (real := os.path.realpath(folder, strict=True)) not in seen:
            seen.add(real)
            yield folder
            todo += filter(is_dir, reversed(_entries(folder, "*")))


def _entries(folder: str, pattern: str) -> list[str]:
    """Returns the paths of a folder whose names match, sorted: hidden ones only if the pattern begins with a dot."""
    names = sorted(fnmatch.filter([entry.name for entry in Path(folder).iterdir()], pattern))
    return [os.path.join(folder, name) for name in names if name[0] != "." or pattern[0] == "."]  # noqa: PTH118


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
    source = f"{corpus.dataset}:{split}"

    def documents() -> Iterator[Document | None]:
        for index, row in enumerate(read_rows(commit, corpus.config, split, corpus.limit)):
            if not index and rows.lacking_columns(row, [corpus.text_field]):
                raise rows.no_field(source, corpus.text_field, row)
            if lacking := rows.lacking_columns(row, corpus.where):
                raise rows.no_column(source, lacking, row)
            yield rows.row_document(row, corpus, f"{source}, row {index}", render)

    yield from _named(source, documents(), counts)


def documents_of(path: str, kind: str, corpus: Corpus, render: Render | None = None) -> Iterator[Document | None]:
    """Reads the documents of a file, in their order, without their names; None for a row or page that is not wanted.

    Args:
        path: the file. If its name ends in .gz, .bz2 or .zst, it is compressed.
        kind: "text", "json", "csv", "parquet" or "dump" (of a wiki).
        corpus: `text_field` and `where` count for rows; `txt_document` for the kind "text". In files of this kind each
            line break becomes a line feed, unless `white_space` is kept.
        render: turns a chat into text, see `ffkv.corpus.chat`; None if rows contain text.
    Raises:
        UserError: the file cannot be read, is damaged or is of another kind; or a field does not exist or does not
            contain text or, if asked for, chats that can be rendered.
    """
    if render is not None and kind not in ("json", "parquet"):
        raise UserError(
            f"{path}: corpus.chat_template is true, and only rows of jsonl and parquet files and of hub data sets contain"
            " chats."
        )
    if corpus.where and kind in ("text", "dump"):
        what = "a txt file" if kind == "text" else "a dump of a wiki"
        raise UserError(f"{path}: corpus.where chooses rows by their columns, and {what} has none.")
    with raw_file.open_unpacked(path) as file:
        if kind == "parquet":
            yield from rows.parquet_documents(path, file, corpus, render)
        elif kind == "json":
            yield from rows.json_documents(path, check_text(path, file), corpus, render)
        elif kind == "dump":
            yield from wiki_documents(path, check_text(path, file))
        else:
            plain = check_text(path, file)
            # The codec utf-8-sig would lose a file that consists of the first byte of the mark alone.
            if plain.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
                plain.read(len(BOM_UTF8))
            newline = "" if kind == "csv" or corpus.white_space == "keep" else None
            stream = TextIOWrapper(plain, "utf-8", errors="replace", newline=newline)
            if kind == "csv":
                yield from rows.csv_documents(path, stream, corpus)
            else:
                title = Path(path).name if corpus.txt_document == "file" else ""
                yield from (Document("", text, title) for text in _plain(path, stream, corpus.txt_document))


def _plain(path: str, stream: TextIO, unit: str) -> Iterator[str]:
    if unit == "file":
        text = stream.read(raw_file.MAX_CHARACTERS + 1)
        if len(text) > raw_file.MAX_CHARACTERS:
            most = f"{raw_file.MAX_CHARACTERS:,} characters"
            raise unreadable(path, f"as one document it is longer than {most}: use another txt_document")
        yield text
        return
    lines = lines_of(path, stream)
    yield from (line.rstrip(ENDS) for line in lines) if unit == "line" else _paragraphs(path, lines)


def _paragraphs(path: str, lines: Iterator[str]) -> Iterator[str]:
    paragraph, length = [], 0
    for number, line in enumerate(chain(lines, [""]), 1):
        if line.rstrip(ENDS):
            paragraph.append(line)
            length += len(line)
            if length > raw_file.MAX_CHARACTERS:
                raise unreadable(path, f"the paragraph is longer than {raw_file.MAX_CHARACTERS:,} characters", number)
        elif paragraph:
            yield "".join(paragraph).rstrip(ENDS)
            paragraph, length = [], 0


def detokenize(text: str) -> str:
    """Removes the blanks that a tokenizer put before and after signs, and the marks `@-@`, `@,@` and `@.@` of WikiText.

    It cannot know all that was lost. Quotation marks that have no partner keep their blanks.
    """
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return text
