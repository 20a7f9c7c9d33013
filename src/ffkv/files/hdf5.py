"""HDF5 files with named dimensions, units and provenance. The only code that opens HDF5.

Every dataset has its dimensions as dimension scales, a `description` and a `unit`, and fletcher32 checksums. Every file
says what it is (`format`, `kind`), what made it (`settings`, `versions`) and what it belongs to (`model_hash`,
`tokenizer_hash`, `corpus_hash`, ...). Readers name what they expect and are refused by name where it differs.
"""

import contextlib
import io
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import ffkv
from ffkv.errors import UserError
from ffkv.files.atomic import atomic
from ffkv.files.checksums import verify_sum
from ffkv.files.lazy import Pieces, Texts
from ffkv.process.signals import end_if_told, uninterrupted

FORMAT = 2  # 1 had no gates, no bottoms of values, no factors
IDENTITIES = ("model_hash", "tokenizer_hash", "corpus_hash", "sample_hash")


@contextlib.contextmanager
def create(path: Path | str, kind: str, attributes: Mapping[str, Any]) -> Iterator[h5py.File]:
    """A new file under a temporary name, renamed to `path` when the block ends well.

    Args:
        path: where the complete file will stand.
        kind: what the file is ("triggers", "prefixes", ...); readers ask for it.
        attributes: provenance; dictionaries and lists are stored as JSON.
    """
    with atomic(path) as temporary, _Target(temporary, "w+") as target:
        with h5py.File(target, "w", libver="v110") as file:
            own = {"format": FORMAT, "kind": kind, "versions": versions()}
            for name, value in {**attributes, **own}.items():
                plain = not isinstance(value, dict | list | tuple)
                file.attrs[name] = value if plain else json.dumps(value, sort_keys=True)
            yield file
        end_if_told()
        if target.failure:
            raise target.failure


class _Target(io.FileIO):
    """The file that HDF5 writes into. It keeps the first failure (a full disk) to itself, to be raised at the end.

    HDF5 writes much of its data when it closes a dataset or a file. A failure there, or a signal's exception, is lost: h5py cannot raise it, the
    file looks complete, and the library crashes when the process ends.
    """

    failure: OSError | None = None

    @uninterrupted
    def write(self, data: memoryview) -> int:
        """Writes all of `data`; nothing more once a write has failed."""
        rest = memoryview(data).cast("B")
        try:
            while rest and not self.failure:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return len(data)

    @uninterrupted
    def truncate(self, size: int | None = None) -> int:
        """As `write`."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


def put(
    file: h5py.File,
    name: str,
    values: np.ndarray,
    dimensions: Sequence[str],
    unit: str,
    description: str,
    chunks: Sequence[int] | None = None,
) -> None:
    """Writes one quantity whole. See `allocate`."""
    values = np.asarray(values)
    allocate(file, name, values.shape, values.dtype, dimensions, unit, description, chunks)[...] = values


def allocate(
    file: h5py.File,
    name: str,
    shape: Sequence[int],
    dtype: Any,
    dimensions: Sequence[str],
    unit: str,
    description: str,
    chunks: Sequence[int] | None = None,
) -> h5py.Dataset:
    """Room for one quantity, to be filled piece by piece.

    Args:
        dimensions: a name for each axis; axes of one name in one file have one length.
        unit: "1" for a plain number, "token", "nat", ...
        chunks: the piece that is read at a time; by default about 1 MiB of leading rows.
    """
    chunks = tuple(chunks) if chunks else leading_rows(shape, np.dtype(dtype).itemsize)
    whole = 0 not in shape
    dataset = file.create_dataset(name, shape, dtype, chunks=chunks if whole else None, fletcher32=whole)
    dataset.attrs["unit"], dataset.attrs["description"] = unit, description
    for axis, dimension in enumerate(dimensions):
        scale = file.require_dataset(f"dimension/{dimension}", (shape[axis],), "u1")
        if not scale.is_scale:
            scale.make_scale(dimension)
        dataset.dims[axis].attach_scale(scale)
    return dataset


def leading_rows(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The shape of a chunk of about 1 MiB of leading rows."""
    row = max(1, int(np.prod(shape[1:], dtype=np.int64))) * itemsize
    return (max(1, min(shape[0], 2**20 // row)), *shape[1:])


@contextlib.contextmanager
def open(path: Path | str, kind: str | None, belongs_to: Mapping[str, Any] | None = None) -> Iterator[h5py.File]:
    """Opens a file for reading.

    Args:
        kind: what the file must be; None for any.
        belongs_to: attributes of another file; the identities (model, tokenizer, corpus hash) that both have must agree.
    Raises:
        UserError: no such file, not whole, of another kind or format, or of another model, tokenizer or corpus; or a
            read inside the block meets damaged data.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: run the step that makes it first.")
    verify_sum(path)
    try:
        file = h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} is not a whole HDF5 file ({error}). Delete it and run the workflow again.") from error
    with file:
        try:
            _check(path, file.attrs, kind, belongs_to or {})
            yield file
        except (OSError, KeyError) as error:  # what h5py raises where bytes were changed
            raise UserError(f"{path} is damaged ({error}). Delete it and run the workflow again.") from error


def verify(path: Path | str, belongs_to: Mapping[str, Any] | None = None) -> None:
    """Reads every dataset of a file, a chunk at a time, so that each checksum is compared.

    Raises:
        UserError: as `open`, of whatever kind the file is.
    """
    with open(path, None, belongs_to) as file:

        def read(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.chunks:
                for piece in item.iter_chunks():
                    item[piece]

        try:
            file.visititems(read)
        except RuntimeError as error:  # names that HDF5 cannot follow
            raise OSError(error) from error


def _check(path: Path, attributes: Mapping[str, Any], kind: str | None, belongs_to: Mapping[str, Any]) -> None:
    if attributes.get("format") != FORMAT or "kind" not in attributes:
        raise UserError(f"{path} is not of this ffkv's file format {FORMAT}. Delete it and run the workflow again.")
    if kind is not None and attributes["kind"] != kind:
        raise UserError(f"{path} holds {attributes['kind']}, not {kind}: check the order of the arguments.")
    check_identities(path, attributes, belongs_to)


def check_identities(path: Path | str, attributes: Mapping[str, Any], belongs_to: Mapping[str, Any]) -> None:
    """Refuses a file that belongs to another model, tokenizer, corpus or sample.

    Args:
        path: the file, for the message.
        attributes: attributes of the file.
        belongs_to: attributes of another file. The identities that both files have must agree.
    Raises:
        UserError: an identity differs.
    """
    for name in IDENTITIES:
        if name in attributes and name in belongs_to and attributes[name] != belongs_to[name]:
            what = name.removesuffix("_hash")
            raise UserError(
                f"{path} belongs to another {what} ({attributes[name]}, expected {belongs_to[name]}). Make it again with this {what}."
            )


def put_texts(file: h5py.File, name: str, texts: Sequence[str], dimension: str, description: str) -> None:
    """Writes texts as one run of UTF-8 bytes and the offsets between them (datasets `name` and `name_offset`)."""
    encoded = [text.encode("utf-8") for text in texts]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    put(file, name, np.frombuffer(b"".join(encoded), np.uint8), [f"{name}_byte"], "byte", f"{description}, as UTF-8")
    put(
        file,
        f"{name}_offset",
        offsets,
        [f"{dimension}_boundary"],
        "byte",
        f"where each {dimension}'s part of `{name}` starts",
    )


def texts(file: h5py.File, name: str) -> Texts:
    """The texts that `put_texts` wrote, in memory."""
    return Texts(file[name][...], file[f"{name}_offset"][...])


def pieces(path: Path | str, *names: str) -> list[Pieces]:
    """Datasets of one axis, left in a file that `open` has found right. The file stays open as long as one of them lives."""
    file = h5py.File(path, "r")
    return [Pieces(file, name) for name in names]


def versions() -> dict[str, str]:
    """What a file was made with."""
    return {
        "ffkv": ffkv.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
    }
