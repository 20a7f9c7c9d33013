"""Opens a text file, compressed or not, and refuses one that is not UTF-8 text; reads lines of a limited length."""

import bz2
import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError, one_line

MAX_CHARACTERS = 2**26  # per document or line; nobody writes longer ones, and they would fill the memory
PARQUET = b"PAR1"  # how a parquet file begins
SAMPLE_BYTES = 4096  # bytes at the beginning that show whether a file is text
STEP = 8192  # bytes that are read at once
# How files begin that are not UTF-8 text, whatever their names say. Longer beginnings come first.
FOREIGN = {
    b"\xff\xfe\0\0": "UTF-32 text: convert it to UTF-8",
    b"\0\0\xfe\xff": "UTF-32 text: convert it to UTF-8",
    b"\xff\xfe": "UTF-16 text: convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text: convert it to UTF-8",
    b"\x1f\x8b": "compressed by gzip: its name must end in .gz, once for each time",
    b"BZh": "compressed by bzip2: its name must end in .bz2, once for each time",
    b"\xfd7zXZ\0": "compressed by xz: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: its name must end in .zst, once for each time",
    b"PK\x03\x04": "a zip archive: unpack it",
    PARQUET: "a parquet file: its name must end in .parquet",
    b"%PDF-": "a PDF file: extract its text",
}


def unreadable(path: str, reason: object, line: int | None = None) -> UserError:
    """Returns the error that says of which file, in which line (from 1) and why a text cannot be read."""
    place = f" (line {line:,})" if line else ""
    return UserError(f"{path} cannot be read{place}: {one_line(reason, 500)}.".replace("..", "."))


class Stepwise(FileIO):
    """A file of which little is read at once: `ffkv plan` asks the system how far it is read. Python's own readers of packed
    files ask for 128 KiB since 3.12."""

    def read(self, size: int | None = -1) -> Any:
        """Returns the next bytes, at most `STEP`."""
        return super().read(STEP if size is None or size < 0 else min(size, STEP))


@contextlib.contextmanager
def open_unpacked(path: str) -> Iterator[Any]:
    """Opens the file, or what it unpacks to, as a stream of bytes. Raises UserError if it cannot be read then or while it is open."""
    unpack = UNPACK.get(Path(path).suffix.lower())
    try:
        if unpack:
            with Stepwise(path) as packed, unpack(packed) as file:
                yield file
        else:
            with Path(path).open("rb", buffering=STEP) as file:
                yield file
    except (OSError, EOFError, zlib.error) as error:  # from the disk, or from a damaged .gz, .bz2 or .zst
        raise unreadable(path, getattr(error, "strerror", None) or error) from error


def _open_zstd(packed: FileIO) -> Any:
    """Opens what a zst file unpacks to. The reader of the package zstandard takes a file that is cut off for a whole one."""
    import pyarrow as pa

    return pa.CompressedInputStream(packed, "zstd")


UNPACK: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".zst": _open_zstd}


def check_text(path: str, file: Any) -> "BufferedReader[Any]":
    """Returns the file, still at its beginning; refuses it if its beginning is not UTF-8 text."""
    buffered: BufferedReader[Any] = file if isinstance(file, BufferedReader) else BufferedReader(file, SAMPLE_BYTES)
    sample = buffered.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
    for beginning, what in FOREIGN.items():
        if sample.startswith(beginning):
            raise unreadable(path, f"it is {what}")
    if sample.count(0) > len(sample) // 4:
        raise unreadable(path, "it begins with NUL bytes: it is damaged, or it is UTF-16 text; convert it to UTF-8")
    return buffered


def lines_of(path: str, stream: Any) -> Iterator[Any]:
    """Yields the lines of a text or byte stream, with their line ends."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_CHARACTERS + 1), stream.read(0)), 1):
        if len(line) > MAX_CHARACTERS:
            raise unreadable(path, f"the line is longer than {MAX_CHARACTERS:,} characters", number)
        yield line
