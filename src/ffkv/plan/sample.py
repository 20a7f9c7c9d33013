"""A small part of a large corpus, read as the corpus itself will be read."""

import contextlib
import csv
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from ffkv.corpus.document import Document
from ffkv.corpus.sources import read_documents
from ffkv.corpus.text_files import MAX_CHARACTERS as LONGEST
from ffkv.errors import UserError
from ffkv.settings import Corpus

BUDGET = 2**18  # bytes that are sampled; a corpus of no more is counted whole
FILES = 16  # of many files, how many are looked into
PIECES = 32  # of one text file, how many places are looked at
SPREAD_OUT = sorted(range(PIECES), key=lambda place: f"{place:05b}"[::-1])  # any first few are all over the file
JSON = (".json", ".jsonl")


def thinned(documents: list[Document]) -> tuple[list[Document], float]:
    """Documents spread evenly over a list, of about `BUDGET` bytes, and how much more text the whole list has."""
    sizes = [len(found.text) for found in documents]
    step = max(1, -(-sum(sizes) // BUDGET))
    return documents[::step], sum(sizes) / max(sum(sizes[::step]), 1)


def sample_files(paths: list[Path], corpus: Corpus) -> tuple[list[Document], float]:
    """Documents from pieces of some files, read by the corpus' own reader.

    Text and JSON lines are looked at in many places, csv, parquet and compressed files at their beginning. Compressed
    parquet is unpacked whole, as a run does: it is read from its end.

    Returns:
        The documents, and how much more there is in all.
    Raises:
        UserError: see `ffkv.corpus.sources.read_documents`; or a large file of JSON that is one list.
    """
    chosen = [paths[index * len(paths) // FILES] for index in range(FILES)] if len(paths) > FILES else paths
    total = sum(path.stat().st_size for path in paths)
    looked = sum(path.stat().st_size for path in chosen)
    documents, sampled = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(chosen):
            size = path.stat().st_size
            if not size:
                continue
            ending = "".join(Path(path.name.lower().removesuffix(".gz")).suffixes[-1:])
            piece = Path(folder) / f"{number}{ending}"
            sampled += _write_piece(path, piece, max(4096, BUDGET * size // max(looked, 1)))
            if piece.stat().st_size:
                alone = corpus.model_copy(update={"train": [str(piece)], "validation": [str(piece)], "limit": 0})
                documents += list(_named(alone, path, piece))
    return documents, max(1.0, total / max(sampled, 1))


def _named(corpus: Corpus, path: Path, piece: Path) -> Iterator[Document]:
    """The piece's documents; what is wrong with it is said of the file."""
    try:
        yield from read_documents(corpus, "train")
    except UserError as error:
        raise UserError(str(error).replace(str(piece), str(path))) from error


def _write_piece(path: Path, piece: Path, budget: int) -> float:
    """Writes a readable part of a file; returns how many of the file's own bytes it stands for."""
    size = path.stat().st_size
    if piece.suffix == ".parquet":
        return size * _write_rows(path, piece, budget)
    with path.open("rb") as file:
        if path.suffix.lower() == ".gz":
            return _write_unpacked(path, file, piece, budget)
        if budget >= size or piece.suffix == ".csv":
            return float(_write_beginning(path, file, piece, budget))
        if piece.suffix in JSON:
            _refuse_list(path, file.read(4096))
        return float(_write_places(path, file, piece, budget))


def _write_unpacked(path: Path, file: BinaryIO, piece: Path, budget: int) -> float:
    """The beginning of a compressed file; returns how many of its packed bytes that is, from what they unpacked to."""
    few = SimpleNamespace(read=lambda size: file.read(min(size, 512)))  # little that is not used
    try:
        with gzip.GzipFile(path.name, "rb", fileobj=few) as unpacked:
            spent = _write_beginning(path, unpacked, piece, budget)
            ahead = len(unpacked.peek(1))
            if ahead and piece.suffix in JSON:
                with piece.open("rb") as beginning:
                    _refuse_list(path, beginning.read(4096))
            return file.tell() * spent / max(unpacked.tell() + ahead, 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"The corpus {path} cannot be read: {error}") from error


def _refuse_list(path: Path, beginning: bytes) -> None:
    if beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise UserError(
            f"{path} is one JSON list, of which no part can be read: pass --train-tokens and --validation-tokens."
        )


def _write_places(path: Path, file: BinaryIO, piece: Path, budget: int) -> int:
    """Whole lines from places all over a file, fewer places the longer its lines are; returns their bytes.

    No line is taken twice: what is read from a place ends before what is read from the next, or both begin with the
    same line.
    """
    size = path.stat().st_size
    found: dict[int, bytes] = {}
    spent = 0
    for place in SPREAD_OUT:
        start = place * size // PIECES
        file.seek(start)
        if start:
            _line(path, file)
        begin = file.tell()
        if begin in found:
            continue
        lines = []
        while (not lines or file.tell() < start + budget // PIECES) and (line := _line(path, file)):
            lines.append(line)
        found[begin] = b"".join(lines)
        spent += len(found[begin])
        if spent >= budget:
            break
    piece.write_bytes(b"".join(found[begin] for begin in sorted(found)))
    return spent


def _write_beginning(path: Path, file: BinaryIO, piece: Path, budget: int) -> int:
    """Whole lines or csv records up to a number of bytes, the last of them past it; returns their bytes."""
    if piece.suffix == ".csv":
        return _write_records(path, file, piece, budget)
    spent = 0
    with piece.open("wb") as target:
        while spent < budget and (line := _line(path, file)):
            spent += target.write(line)
    return spent


def _write_records(path: Path, file: BinaryIO, piece: Path, budget: int) -> int:
    stream = io.TextIOWrapper(file, "utf-8-sig", "replace", newline="")
    spent, records = 0, 0

    def lines() -> Iterator[str]:
        nonlocal spent
        while line := _line(path, stream):
            spent += len(line.encode())
            yield line

    csv.field_size_limit(LONGEST)
    try:
        with piece.open("w", encoding="utf-8", newline="") as target:
            writer = csv.writer(target)
            for row in csv.reader(lines(), strict=True):
                writer.writerow(row)
                records += bool(row)
                if records > 1 and spent >= budget:  # the header is no text
                    break
    except csv.Error as error:
        raise UserError(f"The corpus {path} cannot be read: {error} in the row after {records:,} others.") from error
    stream.detach()
    return spent


def _line(path: Path, file: Any) -> Any:
    """The next line of a text or byte stream; one that a run would refuse is refused here, before it fills the memory."""
    line = file.readline(LONGEST + 1)
    if len(line) > LONGEST:
        raise UserError(f"The corpus {path} cannot be read: it has a line that is longer than {LONGEST:,} characters.")
    return line


def _write_rows(path: Path, piece: Path, budget: int) -> float:
    """The first rows of a parquet file, packed or not; returns their share of all."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with _seekable(path) as whole:
            file = parquet.ParquetFile(whole)
            total = file.metadata.num_rows
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
            wanted = max(1, min(total, budget * total // max(size, 1)))
            batch = next(file.iter_batches(wanted), None)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise UserError(f"The corpus {path} cannot be read: {error}") from error
    if batch is None:
        piece.touch()
        return 1.0
    parquet.write_table(pa.Table.from_batches([batch]), piece)
    return len(batch) / total


@contextlib.contextmanager
def _seekable(path: Path) -> Iterator[BinaryIO]:
    """A file that is read from its end; of a packed one, all that it holds."""
    with path.open("rb") as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as packed, tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(packed, unpacked)
            yield unpacked
