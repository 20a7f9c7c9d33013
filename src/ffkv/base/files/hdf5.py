"""HDF5 files with named dimensions, units and provenance. The only code that opens HDF5.

Every dataset has its dimensions as dimension scales, a `description`, a `unit` and fletcher32 checksums. Every file
says what it is (`format`, `kind`), what made it (`settings`, `versions`) and what it belongs to (`model_hash`,
`tokenizer_hash`, `corpus_hash`, ...). A reader names what it expects, and any other file is refused.

A reader reads only what it needs, and still no damaged byte becomes a number: HDF5 keeps a checksum of each chunk and
of its own structures, and `checksum` is one over all attributes, because HDF5 keeps none of texts in attributes. Small
files are compared with their sums as a whole. `Pieces` stay in their file, so that a corpus of any size takes little memory.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import stored
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import as_path, exists, is_dir, is_file, open_file, parse_json
from ffkv.base.signals import end_if_told, uninterrupted

FORMAT = 4  # raised whenever files of the number before cannot be read
SMALL = 2**22  # bytes; such a file is compared with its sum when it is opened, which takes milliseconds
# Every HDF5 has these filters. The bytes of a number are sorted by place first, which brings zeros together.
COMPRESSION: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
CACHED_PIECES = 32  # per dataset, each about 1 MiB
OTHERS = "files of the run do not belong together, or one is not as ffkv writes it. `ffkv check` reads them all."
MOST_ATTRIBUTES, LONGEST_ATTRIBUTE = 100, 2**22  # bytes
OWN = ("format", "kind", "versions", "checksum")  # attributes that `create` adds itself


class WriteTarget(io.FileIO):
    """A file that remembers the first write error, for example a full disk. `hdf5.create` raises it.

    HDF5 writes much of its data when it closes a dataset or a file. h5py cannot raise an error, or a signal's
    exception, that occurs there: the file would look complete, and the library would crash when the process ends.
    """

    failure: OSError | None = None

    @uninterrupted
    def write(self, data: Any) -> int:
        """Writes all of `data`; nothing more once a write has failed."""
        rest = memoryview(data).cast("B")
        try:
            while rest and not self.failure:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return len(data)

    @uninterrupted
    def readinto(self, data: Any) -> int:
        """Fills `data`, as far as the file goes. The system may give less at a time, which HDF5 takes for an error."""
        rest = whole = memoryview(data).cast("B")
        while rest and (read := super().readinto(rest)):
            rest = rest[read:]
        return len(whole) - len(rest)

    @uninterrupted
    def truncate(self, size: int | None = None) -> int:
        """Truncates the file; does nothing more once a write has failed."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


@contextlib.contextmanager
def create(path: Path | str, kind: str, attributes: Mapping[str, Any]) -> Iterator[h5py.File]:
    """Yields a new file under a temporary name. It is renamed to `path` if the `with` statement ends well.

    `kind`: what the file holds ("triggers", "values", ...); readers ask for it. `attributes`: provenance; dictionaries and lists
    are stored as JSON. Those named in `OWN` are replaced. Raises UserError if the file cannot be written.
    """
    with atomic(path) as temporary, WriteTarget(temporary, "w+") as target:
        try:
            with h5py.File(target, "w", libver="v110") as file:
                own = {"format": FORMAT, "kind": kind, "versions": stored.versions()}
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


def put(file: h5py.File, name: str, values: np.ndarray, dimensions: Sequence[str], *about: str, **options: Any) -> None:
    """Writes one dataset whole. Other arguments: see `allocate`."""
    values = np.asarray(values)
    allocate(file, name, values.shape, values.dtype, dimensions, *about, **options)[...] = values


def allocate(
    file: h5py.File,
    name: str,
    shape: Sequence[int],
    dtype: Any,
    dimensions: Sequence[str],
    *about: str,
    chunks: Sequence[int] | None = None,
    compressed: bool = False,
) -> h5py.Dataset:
    """Makes one dataset of a new file, to be filled piece by piece.

    `shape`: length of each axis. `dimensions`: a name for each; axes of one name in one file have one length. `about`: unit and
    description, see `datasets.Dataset`. `chunks`: the shape of what is read at a time; None for about 1 MiB of leading rows.
    `compressed`: whether chunks are compressed without loss.
    """
    chunks = tuple(chunks) if chunks else leading_rows(shape, np.dtype(dtype).itemsize)
    whole = 0 not in shape
    packed = COMPRESSION if compressed and whole else {}
    dataset = file.create_dataset(name, shape, dtype, chunks=chunks if whole else None, fletcher32=whole, **packed)
    _describe(file, dataset, dimensions, *about)
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
    *about: str,
) -> None:
    """Makes an HDF5 virtual dataset: it reads those of other files, one behind the other, and stores nothing itself.

    `name`: that of the dataset, here and in the sources. `sources`: the shapes of the datasets, in order. `names`: the files that
    they are in, as paths from the folder of `file`. `axis`: along which they are put together. `about`: unit and description,
    see `datasets.Dataset`. HDF5 gives -1 or NaN for what it does not find; `open` makes sure that every source is there.
    """
    ends = [0, *itertools.accumulate(source[axis] for source in sources)]
    before, after = sources[0][:axis], sources[0][axis + 1 :]
    layout = h5py.VirtualLayout((*before, ends[-1], *after), dtype)
    layout.dcpl.set_obj_track_times(False)  # the same inputs give the same bytes, at whatever time
    for source, source_file, start, stop in zip(sources, names, ends, ends[1:]):
        if stop > start:
            layout[(*axis * [slice(None)], slice(start, stop))] = h5py.VirtualSource(source_file, name, source, dtype)
    nothing = np.nan if np.dtype(dtype).kind == "f" else -1
    _describe(file, file.create_virtual_dataset(name, layout, nothing), dimensions, *about)


@contextlib.contextmanager
def open(
    path: Path | str, kind: str | None, belongs_to: Mapping[str, Any] | None = None, deeper: bool = False
) -> Iterator[h5py.File]:
    """Opens a file for reading. Of a large file only the attributes are read at once; data are checked when read.

    `kind`: what the file must hold; None for anything. `belongs_to`: attributes of another file; the identities (hashes of model,
    tokenizer, corpus) that both have must agree. `deeper`: whether it may read from folders beside it alone, because a file
    beside it reads it.

    Raises UserError if the file does not exist, is not whole, is of another kind or format, or belongs to another model, tokenizer
    or corpus; if a file that it reads from does; or if a read inside the `with` statement meets damaged data.
    """
    path = as_path(path)
    if not exists(path):
        raise UserError(f"{path} does not exist: run the step that makes it first.")
    if is_dir(path):
        raise UserError(f"{path} cannot be read: it is a folder. Name a file.")
    if is_file(path) and path.stat().st_size <= SMALL:
        stored.verify_sum(path)
    try:
        open_file(path).close()
        file = h5py.File(path, "r")
    except (OSError, RuntimeError, ValueError) as error:
        raise stored.unreadable(path, error) from error
    with file, reading(path):
        kinds = [file.attrs.get_id(name) for name in file.attrs]
        # ffkv writes some numbers and texts, one value each. Others could fill the memory.
        large = any(kind.shape or kind.get_storage_size() > LONGEST_ATTRIBUTE for kind in kinds)
        if large or len(kinds) > MOST_ATTRIBUTES:
            raise OSError("its attributes are not those of a file of ffkv")
        _check(path, file.attrs, kind, belongs_to or {})
        for part in linked_files(file, deeper):
            if not exists(part):
                again = f"Make {stored.target_of(path)} again: {stored.made_again(path)}."
                raise UserError(f"{path} reads {part}, which does not exist: it was deleted or moved. {again}")
            # Its datasets are opened, too: HDF5 gives no error for linked ones.
            with open(part, file.attrs["kind"], file.attrs, part.parent == path.parent):
                pass
        yield file


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Inside the `with` statement, what is read of an open file is whole, or a `UserError` says that it is not."""
    try:
        yield
    except (OSError, KeyError, RuntimeError) as error:  # h5py raises these for bytes that were changed or are not given
        # Other libraries raise RuntimeError, too.
        last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if isinstance(error, RuntimeError) and "h5py" not in last.parts:
            raise
        raise stored.unreadable(path, error, _all_linked_files(path)) from error


def linked_files(file: h5py.File, deeper: bool = False) -> list[Path]:
    """Returns the files that the virtual datasets of a file read, without those that these read in turn.

    They lie beside the file or in folders beside it, those of a file that another one beside it reads (`deeper`) in folders, so that no
    file leads to itself or out of a run. Raises `Foreign` if one lies elsewhere, or the file has what ffkv never writes: a link by
    name, or data that are stored in a file of no format.
    """
    names: list[bytes] = []

    def note(name: bytes, link: Any) -> bytes | None:
        if link.type != h5py.h5l.TYPE_HARD:
            return name  # which ends the visit
        names.append(name)
        return None

    outside = file.id.links.visit(note, info=True)
    sources: dict[str, None] = {}
    for thing in (h5py.h5o.open(file.id, name) for name in names):
        if isinstance(thing, h5py.h5d.DatasetID):
            made = thing.get_create_plist()
            outside = outside or (made.get_external_count() and made.get_external(0)[0])
            if made.get_layout() == h5py.h5d.VIRTUAL:
                sources |= dict.fromkeys(map(made.get_virtual_filename, range(made.get_virtual_count())))
    for name in sources:
        parts = Path(name).parts
        if len(parts) < (2 if deeper else 1) or parts[0] == "/" or ".." in parts:
            where = "in a folder beside it" if deeper else "beside it"
            raise stored.not_of_ffkv(Path(file.filename), f"it reads {name}, which does not lie {where}")
    if outside:
        raise stored.not_of_ffkv(Path(file.filename), f"it has a link, {outside!r}")
    return [Path(file.filename).parent / name for name in sources]


def _all_linked_files(path: Path, deeper: bool = False) -> list[Path]:
    """Returns the files that a file reads, and those that these read in turn, as far as they can be opened."""
    parts: list[Path] = []
    with contextlib.suppress(OSError, KeyError, RuntimeError), h5py.File(path, "r") as file:
        parts = linked_files(file, deeper)
    return [*parts, *(each for part in parts for each in _all_linked_files(part, part.parent == path.parent))]


def verify(path: Path | str, belongs_to: Mapping[str, Any] | None = None) -> None:
    """Compares a file with its sum, and reads every dataset, chunk by chunk, so that each checksum is compared.

    Files that its datasets only link to are opened, not read. Arguments and errors: see `open`.
    """
    stored.verify_sum(Path(path))
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
        raise stored.Foreign(
            f"{path} is not of this ffkv's file format {FORMAT}: {writer}. Make it again: {stored.made_again(path)}."
        )
    if attributes.get("checksum") != _checksum(attributes):
        raise OSError("its attributes do not fit their checksum")
    if kind is not None and attributes["kind"] != kind:
        raise UserError(f"{path} holds {attributes['kind']}, not {kind}: check the order of the arguments.")
    stored.check_identities(path, attributes, belongs_to)


class NotThere(UserError, IndexError):
    """A file names an entry that another one, or another dataset of its own, does not have."""


class Pieces:
    """A dataset of one axis that is read piece by piece; it may be larger than the memory."""

    def __init__(self, dataset: h5py.Dataset, check: Callable[[np.ndarray], object] = lambda values: None):
        """`check`: raises an error if what was read cannot be."""
        self._dataset, self._path, self._check = dataset, dataset.file.filename, check
        self._size = self._dataset.chunks[0] if self._dataset.chunks else max(1, len(self._dataset))
        self._piece = functools.lru_cache(CACHED_PIECES)(self._read)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, at: int | slice | np.ndarray) -> Any:
        """Returns an entry by its number from 0, a range of entries, or any entries by their numbers (of any shape).

        Raises UserError if the file is damaged, or has no such entry.
        """
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            first, last = start // self._size, max(start, stop - 1) // self._size
            pieces = [self._piece(number) for number in range(first, last + 1)]
            together = pieces[0] if first == last else np.concatenate(pieces)
            return together[start - first * self._size : max(start, stop) - first * self._size]
        if isinstance(at, np.ndarray):
            if at.size and not 0 <= at.min() <= at.max() < len(self):
                raise self._lacks(at.min() if at.min() < 0 else at.max())
            entries, piece_of = np.empty(at.shape, self._dataset.dtype), at // self._size
            for number in np.flatnonzero(np.bincount(piece_of.ravel())).tolist():
                inside = piece_of == number
                entries[inside] = self._piece(number)[at[inside] - number * self._size]
            return entries
        if not 0 <= at < len(self):
            raise self._lacks(at)
        return self._piece(at // self._size)[at % self._size]

    def _lacks(self, at: int) -> NotThere:
        return NotThere(f"{self._path} has no entry {at} of {self._dataset.name}, which has {len(self):,}: {OTHERS}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the whole dataset."""
        return np.asarray(self._dataset[...], dtype)

    def _read(self, number: int) -> np.ndarray:
        with reading(Path(self._path)):
            values = self._dataset[number * self._size : (number + 1) * self._size]
        self._check(values)
        return values
