"""Reads the texts of a file. Whatever bytes it contains, the result is texts, or a `UserError` that names the place."""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from io import TextIOWrapper
from typing import TextIO

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import raw_file
from ffkv.corpus.chat import Render
from ffkv.corpus.raw_file import check_text, lines_of, unreadable
from ffkv.corpus.row_files import csv_texts, json_texts, parquet_texts
from ffkv.corpus.wiki_dump import wiki_texts


def texts(path: str, kind: str, corpus: Corpus, render: Render | None = None) -> Iterator[str | None]:
    """Reads the texts of a file, in their order; "" for a row without a text, None for one that is not wanted.

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
    try:
        with raw_file.open_unpacked(path) as file:
            if kind == "parquet":
                yield from parquet_texts(path, file, corpus, render)
            elif kind == "json":
                yield from json_texts(path, check_text(path, file), corpus, render)
            elif kind == "dump":
                yield from wiki_texts(path, check_text(path, file))
            else:
                plain = check_text(path, file)
                # The codec utf-8-sig would lose a file that consists of the first byte of the mark alone.
                if plain.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
                    plain.read(len(BOM_UTF8))
                newline = "" if kind == "csv" or corpus.white_space == "keep" else None
                stream = TextIOWrapper(plain, "utf-8", errors="replace", newline=newline)
                if kind == "csv":
                    yield from csv_texts(path, stream, corpus)
                else:
                    yield from _plain(path, stream, corpus.txt_document)
    except (OSError, EOFError, zlib.error) as error:  # from the disk, or from a damaged .gz, .bz2 or .zst
        raise unreadable(path, getattr(error, "strerror", None) or error) from error


def _plain(path: str, stream: TextIO, unit: str) -> Iterator[str]:
    if unit == "file":
        text = stream.read(raw_file.MAX_CHARACTERS + 1)
        if len(text) > raw_file.MAX_CHARACTERS:
            most = f"{raw_file.MAX_CHARACTERS:,} characters"
            raise unreadable(path, f"as one document it is longer than {most}: use another txt_document")
        yield text
        return
    lines = lines_of(path, stream)
    yield from map(_without_end, lines) if unit == "line" else _paragraphs(path, lines)


def _paragraphs(path: str, lines: Iterator[str]) -> Iterator[str]:
    paragraph, length = [], 0
    for number, line in enumerate(lines, 1):
        if _without_end(line):
            paragraph.append(line)
            length += len(line)
            if length > raw_file.MAX_CHARACTERS:
                raise unreadable(path, f"the paragraph is longer than {raw_file.MAX_CHARACTERS:,} characters", number)
        elif paragraph:
            yield _without_end("".join(paragraph))
            paragraph, length = [], 0
    if paragraph:
        yield _without_end("".join(paragraph))


def _without_end(line: str) -> str:
    """Removes the line break of a line: a line feed, a carriage return, or both, and no other character."""
    return line.removesuffix("\n").removesuffix("\r")
