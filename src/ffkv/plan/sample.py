"""A small part of a large corpus, read as the corpus itself will be read."""

import contextlib
import csv
import io
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from ffkv.corpus.read import Document, read
from ffkv.errors import UserError
from ffkv.settings import Corpus

BUDGET = 2**18  # bytes that are sampled; a corpus of no more is counted whole
FILES = 16  # of many files, how many are looked into
PIECES = 32  # of one text file, how many places are looked at


def thinned(documents: list[Document]) -> tuple[list[Document], float]:
    """Documents spread evenly over a list, of about `BUDGET` bytes, and how much more text the whole list has."""
    sizes = [len(found.text) for found in documents]
    step = max(1, -(-sum(sizes) // BUDGET))
    return documents[::step], sum(sizes) / max(sum(sizes[::step]), 1)


def sample_files(paths: list[Path], corpus: Corpus) -> tuple[list[Document], float]:
    """Documents from pieces of some files, read by the corpus' own reader.

    Text and JSON lines are looked at in many places, csv, parquet and compressed files at their beginning.

    Returns:
        The documents, and how much more there is in all.
    Raises:
        UserError: see `ffkv.corpus.read.read`; or a large file of JSON that is one list.
    """
    chosen = [paths[index * len(paths) // FILES] for index in range(FILES)] if len(paths) > FILES else paths
    total = sum(path.stat().st_size for path in paths)
    looked = sum(path.stat().st_size for path in chosen)
    documents, sampled = [], 0.0
    with tempfile.TemporaryDirectory() as folder, _own_cache(Path(folder)):
        for number, path in enumerate(chosen):
            size = path.stat().st_size
            if not size:
                continue
            ending = "".join(Path(path.name.removesuffix(".gz")).suffixes[-1:])
            piece = Path(folder) / f"{number}{ending}"
            sampled += _write_piece(path, piece, max(4096, BUDGET * size // max(looked, 1)))
            if piece.stat().st_size:
                alone = corpus.model_copy(update={"train": [str(piece)], "validation": [str(piece)], "limit": 0})
                documents += list(_named(alone, path, piece))
    return documents, max(1.0, total / max(sampled, 1))


def _named(corpus: Corpus, path: Path, piece: Path) -> Iterator[Document]:
    """The piece's documents; what is wrong with it is said of the file."""
    try:
        yield from read(corpus, "train")
    except UserError as error:
        raise UserError(str(error).replace(str(piece), str(path))) from error


def _write_piece(path: Path, piece: Path, budget: int) -> float:
    """Writes a readable part of a file; returns how many of the file's own bytes it stands for."""
    size = path.stat().st_size
    if piece.suffix == ".parquet":
        return size * _write_rows(path, piece, budget)
    if path.suffix == ".gz":
        with path.open("rb") as file:
            packed = file.read(budget // 3)  # text is packed to about a third
        try:
            unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            _write_text(_whole_lines(unpacker.decompress(packed, 16 * budget)), piece)
        except zlib.error as error:
            raise UserError(f"The corpus {path} cannot be read: {error}") from error
        return float(len(packed) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data))
    with path.open("rb") as file:
        if piece.suffix == ".json" and file.read(1) == b"[":
            raise UserError(
                f"{path} is one JSON list, of which no part can be read: pass --train-tokens and --validation-tokens."
            )
        places = 1 if piece.suffix == ".csv" or budget >= size else PIECES
        lines = b""
        for place in range(places):
            start = place * size // places
            file.seek(start)
            if start:
                file.readline()
            lines += _whole_lines(file.read(budget // places + 1)) if budget < size else file.read()
        _write_text(lines, piece)
    return float(len(lines))


def _whole_lines(data: bytes) -> bytes:
    """Up to the last line break, which there is but in a file of a single line."""
    return data[: data.rfind(b"\n") + 1] or data


def _write_text(lines: bytes, piece: Path) -> None:
    """A csv file's last record may be open inside a quoted field: it goes."""
    if piece.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(lines.decode("utf-8", "replace"), newline="")))
        with piece.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows[:-1] or rows)
    else:
        piece.write_bytes(lines)


def _write_rows(path: Path, piece: Path, budget: int) -> float:
    """The first rows of a parquet file; returns their share of all."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        total = file.metadata.num_rows
        size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
        wanted = max(1, min(total, budget * total // max(size, 1)))
        batch = next(file.iter_batches(wanted), None)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"The corpus {path} cannot be read: {error}") from error
    if batch is None:
        piece.touch()
        return 1.0
    parquet.write_table(pa.Table.from_batches([batch]), piece)
    return len(batch) / total


@contextlib.contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    """What `datasets` keeps of the pieces goes with them."""
    import datasets

    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = folder / "cache"
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before
