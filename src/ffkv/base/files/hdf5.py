"""HDF5 files with named dimensions, units and provenance. The only code that opens HDF5.

Every dataset has its dimensions as dimension scales, a `description`, a `unit` and fletcher32 checksums. Every file
says what it is (`format`, `kind`), what made it (`settings`, `versions`) and what it belongs to (`model_hash`,
`tokenizer_hash`, `corpus_hash`, ...). A reader names what it expects, and any other file is refused.

A reader reads only what it needs, and still no damaged byte becomes a number: HDF5 keeps a checksum of each chunk and
of its own structures, and `checksum` is one over all attributes, because HDF5 keeps none of texts in attributes. Small
files are compared with their sums as a whole.
"""

import contextlib
import hashlib
import itertools
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.bounded import parse_json
from ffkv.base.files.checksums import target_of, verify_sum
from ffkv.base.files.fault import as_path, unreadable
from ffkv.base.files.provenance import Foreign, check_identities, versions
from ffkv.base.files.write_target import WriteTarget
from ffkv.base.lookup import exists, is_file
from ffkv.base.system.signals import end_if_told

FORMAT = 4  # raised whenever files of the number before cannot be read
SMALL = 2**22  # bytes; such a file is compared with its sum when it is opened, which takes milliseconds
# Every HDF5 has these filters. The bytes of a number are sorted by place first, which brings zeros together.
COMPRESSION: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
MOST_ATTRIBUTES, LONGEST_ATTRIBUTE = 100, 2**22  # bytes
OWN = ("format", "kind", "versions", "checksum")  # attributes that `create` adds itself


@contextlib.contextmanager
def create(path: Path | str, kind: str, attributes: Mapping[str, Any]) -> Iterator[h5py.File]:
    """Yields a new file under a temporary name. It is renamed to `path` if the `with` statement ends well.

    Args:
        path: name of the complete file.
        kind: what the file holds ("triggers", "values", ...); readers ask for it.
        attributes: provenance; dictionaries and lists are stored as JSON. Those named in `OWN` are replaced.
    Raises:
        UserError: the file cannot be written.
    """
    with atomic(path) as temporary, WriteTarget(temporary, "w+") as target:
        try:
            with h5py.File(target, "w", libver="v110") as file:
                own = {"format": FORMAT, "kind": kind, "versions": versions()}
                for name, value in sorted({**attributes, **own}.items()):  # the same bytes in whatever order they came
                    plain = not isinstance(value, dict | list | tuple)
                    file.attrs[name] = value if plain else json.dumps(value, sort_keys=True)
                file.attrs["checksum"] = _checksum(file.attrs)
                yield file
        except Exception as error:
            if target.failure:  # whatever was made of it: HDF5 may have read back what it could not write
                raise target.failure from error
            raise
        end_if_told()
        if target.failure:
            raise target.failure


def _checksum(attributes: Mapping[str, Any]) -> str:
    lines = sorted(f"{name}={attributes[name]}" for name in attributes if name != "checksum")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def put(file: h5py.File, name: str, values: np.ndarray, dimensions: Sequence[str], *about: Any, **options: Any) -> None:
    """Writes one dataset whole. Other arguments: see `allocate`."""
    values = np.asarray(values)
    allocate(file, name, values.shape, values.dtype, dimensions, *about, **options)[...] = values


def allocate(
    file: h5py.File,
    name: str,
    shape: Sequence[int],
    dtype: Any,
    dimensions: Sequence[str],
    unit: str,
    description: str,
    chunks: Sequence[int] | None = None,
    compressed: bool = False,
) -> h5py.Dataset:
    """Makes one dataset of a new file, to be filled piece by piece.

    Args:
        shape: length of each axis.
        dimensions: a name for each axis; axes of one name in one file have one length.
        unit, description: see `datasets.Dataset`.
        chunks: the shape of what is read at a time; None for about 1 MiB of leading rows.
        compressed: whether chunks are compressed without loss.
    """
    chunks = tuple(chunks) if chunks else leading_rows(shape, np.dtype(dtype).itemsize)
    whole = 0 not in shape
    packed = COMPRESSION if compressed and whole else {}
    dataset = file.create_dataset(name, shape, dtype, chunks=chunks if whole else None, fletcher32=whole, **packed)
    _describe(file, dataset, dimensions, unit, description)
    return dataset


def write_rows(dataset: h5py.Dataset, starts: Sequence[tuple[int, ...]], rows: np.ndarray) -> None:
    """Writes rows into a dataset that `allocate` made, each at a place of its own. h5py's own way takes twice as long.

    `starts`: where each row begins, a number per axis [row]. `rows` are contiguous and of the dataset's type; each goes
    along the last axis [row, entry].
    """
    memory, place = h5py.h5s.create_simple(rows.shape[1:]), dataset.id.get_space()
    box = (*[1] * (dataset.ndim - 1), rows.shape[1])
    for start, row in zip(starts, rows, strict=True):
        place.select_hyperslab(start, box)
        dataset.id.write(memory, place, row)


def _describe(file: h5py.File, dataset: h5py.Dataset, dimensions: Sequence[str], unit: str, description: str) -> None:
    dataset.attrs["unit"], dataset.attrs["description"] = unit, description
    for axis, dimension in enumerate(dimensions):
        scale = file.require_dataset(f"dimension/{dimension}", (dataset.shape[axis],), "u1")
        if not scale.is_scale:
            scale.make_scale(dimension)
        dataset.dims[axis].attach_scale(scale)


def leading_rows(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Returns the shape of a chunk of about 1 MiB of leading rows."""
    row = max(1, int(np.prod(shape[1:], dtype=np.int64))) * itemsize
    return (max(1, min(shape[0], 2**20 // row)), *shape[1:])


def link(
    file: h5py.File,
    name: str,
    sources: Sequence[tuple[int, ...]],
    dtype: Any,
    names: Sequence[str],
    dimensions: Sequence[str],
    axis: int,
    unit: str,
    description: str,
) -> None:
    """Makes an HDF5 virtual dataset: it reads those of other files, one behind the other, and stores nothing itself.

    HDF5 gives -1 or NaN for what it does not find; `open` makes sure that every source is there.

    Args:
        name: name of the dataset, here and in the sources.
        sources: the shapes of the datasets, in order.
        names: the files that they are in, as paths from the folder of `file`.
        axis: the axis along which they are put together.
    """
    ends = [0, *itertools.accumulate(source[axis] for source in sources)]
    before, after = sources[0][:axis], sources[0][axis + 1 :]
    layout = h5py.VirtualLayout((*before, ends[-1], *after), dtype)
    layout.dcpl.set_obj_track_times(False)  # the same inputs give the same bytes, at whatever time
    for source, source_file, start, stop in zip(sources, names, ends, ends[1:]):
        if stop > start:
            layout[(*axis * [slice(None)], slice(start, stop))] = h5py.VirtualSource(source_file, name, source, dtype)
    nothing = np.nan if np.dtype(dtype).kind == "f" else -1
    _describe(file, file.create_virtual_dataset(name, layout, nothing), dimensions, unit, description)


@contextlib.contextmanager
def open(path: Path | str, kind: str | None, belongs_to: Mapping[str, Any] | None = None) -> Iterator[h5py.File]:
    """Opens a file for reading. Of a large file only the attributes are read at once; data are checked when read.

    Args:
        path: the file.
        kind: what the file must hold; None for anything.
        belongs_to: attributes of another file; the identities (hashes of model, tokenizer, corpus) that both have must
            agree.
    Raises:
        UserError: the file does not exist, is not whole, is of another kind or format, or belongs to another model,
            tokenizer or corpus; a file that it reads from does; or a read inside the `with` statement meets damaged
            data.
    """
    path = as_path(path)
    if not exists(path):
        raise UserError(f"{path} does not exist: run the step that makes it first.")
    if is_file(path) and path.stat().st_size <= SMALL:
        verify_sum(path)
    try:
        file = h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        raise unreadable(path, error) from error
    with file, reading(path):
        kinds = [file.attrs.get_id(name) for name in file.attrs]
        # ffkv writes some numbers and texts, one value each. Others could fill the memory.
        large = any(kind.shape or kind.get_storage_size() > LONGEST_ATTRIBUTE for kind in kinds)
        if large or len(kinds) > MOST_ATTRIBUTES:
            raise OSError("its attributes are not those of a file of ffkv")
        _check(path, file.attrs, kind, belongs_to or {})
        for part in linked_files(file):
            if not exists(part):
                again = f"Make {target_of(path)} again: `snakemake --force {target_of(path)}`, with the options of your run."
                raise UserError(f"{path} reads {part}, which does not exist: it was deleted or moved. {again}")
            with open(part, file.attrs["kind"], file.attrs) as source:
                for item in source.values():  # HDF5 gives no error for a linked dataset whose description is damaged
                    if isinstance(item, h5py.Dataset):
                        item.shape  # noqa: B018
        yield file


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Inside the `with` statement, what is read of an open file is whole, or a `UserError` says that it is not."""
    try:
        yield
    except (OSError, KeyError, RuntimeError) as error:  # h5py raises these for bytes that were changed or are not given
        if isinstance(error, RuntimeError) and not _is_of_h5py(error):
            raise
        raise unreadable(path, error, _all_linked_files(path)) from error


def _is_of_h5py(error: BaseException) -> bool:
    """Tells whether h5py raised an error: other libraries raise RuntimeError too."""
    return "h5py" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts


def linked_files(file: h5py.File) -> list[Path]:
    """Returns the files that the virtual datasets of a file read, without those that these read in turn."""
    virtual = [item for item in file.values() if isinstance(item, h5py.Dataset) and item.is_virtual]
    names = {source.file_name: None for item in virtual for source in item.virtual_sources()}
    return [Path(file.filename).parent / name for name in names]


def _all_linked_files(path: Path) -> list[Path]:
    """Returns the files that a file reads, and those that these read in turn, as far as they can be opened."""
    parts: list[Path] = []
    with contextlib.suppress(OSError, KeyError, RuntimeError), h5py.File(path, "r") as file:
        parts = linked_files(file)
    return [*parts, *(deeper for part in parts for deeper in _all_linked_files(part))]


def verify(path: Path | str, belongs_to: Mapping[str, Any] | None = None) -> None:
    """Compares a file with its sum, and reads every dataset, chunk by chunk, so that each checksum is compared.

    Files that its datasets only link to are opened, not read. Arguments and errors: see `open`.
    """
    verify_sum(Path(path))
    with open(path, None, belongs_to) as file:

        def read(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.chunks:
                for piece in item.iter_chunks():
                    item[piece]

        try:
            file.visititems(read)
        except RuntimeError as error:  # names that HDF5 cannot follow
            raise OSError(error) from error


def parsed(file: h5py.File, name: str) -> Any:
    """Returns what an attribute says as JSON. Raises OSError, as HDF5 does, if it says nothing."""
    try:
        return parse_json(file.attrs[name])
    except (TypeError, ValueError) as error:
        raise OSError(f"its attribute {name} cannot be read: {error}") from error


def _check(path: Path, attributes: Mapping[str, Any], kind: str | None, belongs_to: Mapping[str, Any]) -> None:
    if attributes.get("format") != FORMAT or "kind" not in attributes:
        writer = "another version of ffkv wrote it" if "format" in attributes else "ffkv did not write it"
        raise Foreign(
            f"{path} is not of this ffkv's file format {FORMAT}: {writer}. Make it again: `snakemake --force"
            f" {target_of(path)}`, with the options of your run."
        )
    if attributes.get("checksum") != _checksum(attributes):
        raise OSError("its attributes do not fit their checksum")
    if kind is not None and attributes["kind"] != kind:
        raise UserError(f"{path} holds {attributes['kind']}, not {kind}: check the order of the arguments.")
    check_identities(path, attributes, belongs_to)
