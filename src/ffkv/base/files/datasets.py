"""One description per dataset: a dataclass says which datasets a file has; writer, reader, sizes and docs follow.

@dataclass(frozen=True)
class Lengths:
    layer_offset: np.ndarray = dataset("layer_boundary", "int64", unit="memory", about="first row of each layer")
    norm: np.ndarray = dataset("memory", "float32", unit="1", about="length of the value")

with hdf5.create(path, "lengths", attributes) as file:
    write(file, Lengths(offsets, norms))
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.hdf5 import OTHERS, NotThere, Pieces
from ffkv.base.files.stored import not_of_ffkv

KEY = "dataset"  # where a field's metadata holds its description
BOUNDARY = "_boundary"  # a dimension x_boundary has one entry more than the dimension x
LAYER_OFFSET = "first row of each layer; memory i of layer l is row layer_offset[l] + i"
CHECKSUM_BYTES = 4  # of fletcher32, per chunk
PIECE = 2**22  # numbers that are read at once where all are compared


@dataclass(frozen=True)
class Dataset:
    """What a dataset holds."""

    dimensions: tuple[str, ...]  # a name for each axis
    dtype: str  # NumPy's name of the element type
    unit: str  # "1" for a plain number, "token", "nat", ...
    about: str  # one phrase that says what a value means
    name: str = ""  # name in the file; "" for that of the field
    # the longest chunk along some dimensions: a number, or the name of a size. Other dimensions are not cut. Empty:
    # about 1 MiB of leading rows per chunk.
    chunks: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    optional: bool = False  # whether a file may lack it
    lazy: bool = False  # whether readers leave it in the file and read it piece by piece
    # the dimension whose entries it numbers from 0, -1 for none; with a boundary: where the parts of it start
    of: str = ""
    odd: bool = False  # whether numbers may be NaN or infinite

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the length of each axis, from the length of each dimension."""
        known = {name + BOUNDARY: size + 1 for name, size in sizes.items()} | dict(sizes)
        return tuple(known[dimension] for dimension in self.dimensions)

    def chunk(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of a chunk, from the length of each dimension."""
        shape = self.shape(sizes)
        if not self.chunks:
            return hdf5.leading_rows(shape, np.dtype(self.dtype).itemsize)
        limits = [self.chunks.get(dimension, length) for dimension, length in zip(self.dimensions, shape, strict=True)]
        numbers = [sizes[limit] if isinstance(limit, str) else limit for limit in limits]
        return tuple(max(1, min(length, number)) for length, number in zip(shape, numbers, strict=True))

    def stored_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes on disk: whole chunks, each with its checksum."""
        shape, chunk = self.shape(sizes), self.chunk(sizes)
        if 0 in shape:
            return 0
        chunks = int(np.prod([-(-length // part) for length, part in zip(shape, chunk, strict=True)], dtype=np.int64))
        return chunks * (int(np.prod(chunk, dtype=np.int64)) * np.dtype(self.dtype).itemsize + CHECKSUM_BYTES)


def _differs(dataset: Any, how: str) -> Exception:
    return not_of_ffkv(dataset.file.filename, f"its {dataset.name.strip('/')} is {how}")


class Checked:
    """An open file. Each dataset is compared with its description when it is asked for, and so are its numbers when they are read."""

    def __init__(self, file: h5py.Group, record: type, sizes: Mapping[str, int] = {}):
        """`sizes`: lengths of dimensions that are known from elsewhere."""
        self.attrs, self.filename, self._file, self.sizes = file.attrs, file.file.filename, file, dict(sizes)
        self._parts = {part.name: part for parts in datasets_of(record).values() for part in parts}

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def __getitem__(self, name: str) -> "CheckedDataset":
        """The dataset of a name, as h5py has it."""
        return CheckedDataset(self._file[name], self._parts[name], self.sizes)

    def check(self) -> None:
        """Raises `Foreign` if a dataset is not as described, one is missing, or its numbers cannot be.

        Forms come first: what a stranger wrote may be larger than any memory. What other files hold is checked there.
        """
        for name, part in self._parts.items():
            if name in self._file:
                self[name]
            elif not part.optional and (name.rpartition("/")[0] or "/") in self._file:  # a group may be missing
                raise not_of_ffkv(self.filename, f"it has no {name}")
        for name in self._parts:
            if name in self._file and not self._file[name].is_virtual:
                dataset = self[name]
                rows = max(1, PIECE // max(1, int(np.prod(dataset.shape[1:], dtype=np.int64))))
                for start in range(0, len(dataset), rows):
                    dataset[start : start + rows + 1]  # with the next one, for the order of boundaries


class CheckedDataset:
    """A dataset of an open file, as h5py has it, with its description."""

    def __init__(self, dataset: Any, part: Dataset, sizes: dict[str, int]):
        """Compares its type and shape with its description, and notes in `sizes` the lengths of its axes.

        Raises `Foreign` if it is another one, or no dataset.
        """
        shape = getattr(dataset, "shape", None)
        if shape is None or dataset.dtype != np.dtype(part.dtype) or len(shape) != len(part.dimensions):
            form = f"{getattr(dataset, 'dtype', 'no numbers')} {shape or ''}".strip()
            raise _differs(dataset, f"{form}, not {part.dtype} by {', '.join(part.dimensions)}")
        for dimension, length in zip(part.dimensions, shape):
            name, more = dimension.removesuffix(BOUNDARY), int(dimension.endswith(BOUNDARY))
            if sizes.setdefault(name, length - more) != length - more:
                raise _differs(dataset, f"{length:,} long, and there are {sizes[name]:,} of its {name}")
        self.shape, self._dataset, self._part, self._sizes = shape, dataset, part, sizes

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, place: Any) -> Any:
        """Reads a part. Raises `Foreign` if its numbers cannot be."""
        values = self._dataset[place]
        self._check(values)
        return values

    def pieces(self) -> Pieces:
        """The dataset, to be read piece by piece."""
        return Pieces(self._dataset, self._check)

    def _check(self, values: np.ndarray) -> None:
        """Raises `Foreign` if numbers that were read cannot be: they number what is not there, or are not finite."""
        part, sizes, finite = self._part, self._sizes, np.dtype(self._part.dtype).kind == "f" and not self._part.odd
        if not np.size(values) or not (finite or part.of):
            return
        low, high, starts = np.min(values), np.max(values), part.dimensions[-1].endswith(BOUNDARY)
        if finite and not np.isfinite([low, high]).all():
            raise _differs(self._dataset, "not finite everywhere")
        if part.of and not (0 if starts else -1) <= low <= high < sizes.get(part.of, int(high) + 1) + starts:
            raise _differs(self._dataset, f"from {low} to {high}, and there are {sizes.get(part.of, 0):,} of {part.of}")
        if part.of and starts and (np.diff(np.atleast_1d(values)) < 0).any():
            raise _differs(self._dataset, "not in order")


class Texts(Sequence[str]):
    """Texts that are kept as bytes and decoded one at a time."""

    def __init__(self, data: np.ndarray | Pieces, offsets: np.ndarray | Pieces, file: str = "the file"):
        """`file`: whose texts they are, for messages."""
        self._data, self._offsets, self._file = data, offsets, file

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __repr__(self) -> str:
        return f"<{len(self):,} texts>"

    def __getitem__(self, index: Any) -> Any:
        """Text number `index`, from 0; of a slice a list of texts."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        if not 0 <= index < len(self):
            raise NotThere(f"{self._file} has {len(self):,} texts, and no text {index}: {OTHERS}")
        try:
            return self._data[int(self._offsets[index]) : int(self._offsets[index + 1])].tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"Text {index} of {self._file} is no text in UTF-8. Make the file again.") from error


@dataclass(frozen=True)
class TextList:
    """What a list of texts holds: the texts as one run of UTF-8 bytes, and where each starts, in `<name>_offset`."""

    dimension: str
    about: str  # one phrase that says what a text is
    name: str  # of the dataset of the bytes; "" for that of the field
    lazy: bool  # as of `Dataset`
    optional: bool  # as of `Dataset`


@dataclass(frozen=True)
class Group:
    """Datasets in a group of their own, which has the name of the field."""

    record: type  # the dataclass that describes them
    about: str  # what precedes each description in the file


def dataset(dimensions: str, dtype: str, **description: Any) -> Any:
    """Returns a field of a dataclass that is stored as a dataset. Arguments: see `Dataset`.

    An optional field is None if a file lacks it. `read` leaves a lazy field in the file (`Pieces`).
    """
    described = Dataset(tuple(dimensions.split()), dtype, **description)
    return _field(described, described.optional)


def constant(values: np.ndarray, dimensions: str, *, unit: str, about: str) -> Any:
    """Returns a field of a dataclass that is stored as a dataset and has the same values in each file of a kind."""
    description = Dataset(tuple(dimensions.split()), str(values.dtype), unit, about, odd=True)
    return dataclasses.field(default_factory=lambda: values, metadata={KEY: description}, kw_only=True)


def texts(dimension: str, *, about: str, name: str = "", lazy: bool = False, optional: bool = False) -> Any:
    """Returns a field of a dataclass with the texts of a dimension: `Texts`, or any sequence of str for writing.

    An optional field is None if a file lacks it.
    """
    return _field(TextList(dimension, about, name, lazy, optional), optional)


def group(record: type, *, about: str) -> Any:
    """Returns a field of a dataclass that holds another described dataclass; None if the file lacks the group."""
    return _field(Group(record, about), optional=True)


def _field(description: Dataset | TextList | Group, optional: bool = False) -> Any:
    missing: Any = {"default": None, "kw_only": True} if optional else {}
    return dataclasses.field(metadata={KEY: description}, **missing)


def _described(record: Any) -> dict[str, Dataset | TextList | Group]:
    """Returns the description of each stored field of a dataclass (or of an object of it), by the field's name."""
    return {field.name: field.metadata[KEY] for field in dataclasses.fields(record) if KEY in field.metadata}


def datasets_of(record: Any, without: Sequence[str] = ()) -> dict[str, list[Dataset]]:
    """Returns the datasets behind each stored field of a dataclass or of an object. Those of a group: `group/name`."""
    return {field: _datasets(field, own) for field, own in _described(record).items() if field not in without}


def _datasets(field: str, description: Dataset | TextList | Group) -> list[Dataset]:
    if isinstance(description, Group):
        own = [part for parts in datasets_of(description.record).values() for part in parts]
        return [replace(part, name=f"{field}/{part.name}", about=f"{description.about}: {part.about}") for part in own]
    name = description.name or field
    if isinstance(description, Dataset):
        return [replace(description, name=name)]
    dimension, kept = description.dimension, dict[str, Any](lazy=description.lazy, optional=description.optional)
    data = Dataset((f"{name}_byte",), "uint8", "byte", f"{description.about}, as UTF-8", name, **kept)
    start = f"where each {dimension}'s part of `{name}` starts"
    places = Dataset((dimension + BOUNDARY,), "int64", "byte", start, f"{name}_offset", **kept, of=f"{name}_byte")
    return [data, places]


def stored_bytes(record: type, sizes: Mapping[str, int], without: Sequence[str] = ()) -> int:
    """Bytes that the datasets of a file take on disk: whole chunks and their checksums, without the file's metadata.

    `sizes`: the length of each dimension, and the sizes that chunks name. x_boundary is x + 1 where it is not named.
    `without`: fields that the file lacks.
    """
    return sum(part.stored_bytes(sizes) for parts in datasets_of(record, without).values() for part in parts)


def allocate(
    file: h5py.File, record: type, sizes: Mapping[str, int], without: Sequence[str] = (), compressed: Sequence[str] = ()
) -> None:
    """Makes the datasets of a new file (`hdf5.create`), to be filled piece by piece.

    `sizes` and `without` are as for `stored_bytes`. `compressed`: datasets whose chunks are compressed.
    """
    for parts in datasets_of(record, without).values():
        for part in parts:
            _allocate(file, part, sizes, compressed)


def _allocate(file: h5py.File, part: Dataset, sizes: Mapping[str, int], compressed: Sequence[str]) -> h5py.Dataset:
    about, chunks = (part.dimensions, part.unit, part.about), part.chunk(sizes)
    packed = part.name in compressed
    return hdf5.allocate(file, part.name, part.shape(sizes), part.dtype, *about, chunks=chunks, compressed=packed)


def write(file: h5py.File, record: Any, sizes: Mapping[str, int] = {}, compressed: Sequence[str] = ()) -> None:
    """Writes every stored field of a record that is not None into a new file (`hdf5.create`).

    `sizes`: those that chunks name. `compressed`: datasets whose chunks are compressed. Raises TypeError if a value
    would lose digits in the described type, or axes of one name differ in length.
    """
    for part, array in _arrays_of(record):
        lengths = dict(zip(part.dimensions, array.shape, strict=True))
        _allocate(file, part, {**sizes, **lengths}, compressed)[...] = array


def fill(file: h5py.File, record: Any, dimension: str, place: slice) -> None:
    """Writes a part of a record into datasets that `allocate` made: its `place` along a dimension.

    Along it the record has only what belongs there; datasets without this dimension are written whole. Raises TypeError
    if a value would lose digits in the described type.
    """
    for part, array in _arrays_of(record):
        file[part.name][_selection(part, dimension, place)] = array


def _selection(part: Dataset, dimension: str, place: slice) -> tuple[slice, ...]:
    return tuple(place if name == dimension else slice(None) for name in part.dimensions)


def _arrays_of(record: Any) -> Iterator[tuple[Dataset, np.ndarray]]:
    """Yields each dataset behind the fields that are not None, and its values."""
    there = ((field, own) for field, own in _described(record).items() if getattr(record, field) is not None)
    for field, description in there:
        values: Any = [getattr(record, field)]
        if isinstance(description, Group):
            values = [array for _, array in _arrays_of(*values)]
        elif isinstance(description, TextList):
            joined, offsets = bytearray(), np.zeros(len(values[0]) + 1, np.int64)
            for number, text in enumerate(values[0], 1):
                joined += text.encode("utf-8")
                offsets[number] = len(joined)
            values = [np.frombuffer(joined, np.uint8), offsets]
        for part, array in zip(_datasets(field, description), values, strict=True):
            yield part, np.asarray(array).astype(part.dtype, casting="same_kind", copy=False)


def read(
    file: h5py.File,
    record: type,
    dimension: str = "",
    place: slice = slice(None),
    sizes: Mapping[str, int] = {},
    **others: Any,
) -> Any:
    """Reads what `write` wrote. The lazy fields of the record keep the file open as long as one of them lives.

    `file`: a file (`hdf5.open`), or a group of it. `place`: a part of a dimension, if only this part is read; lazy fields are
    left whole. `sizes`: lengths of dimensions that are known from elsewhere. `others`: the fields that are not stored. Raises
    UserError if a dataset has another type or shape than the record describes, or numbers that cannot be.
    """
    lazy = any(part.lazy for parts in datasets_of(record).values() for part in parts)
    checked = Checked(h5py.File(file.file.filename, "r")[file.name] if lazy else file, record, sizes)

    def read_dataset(part: Dataset) -> Any:
        if part.optional and part.name not in checked:
            return None
        dataset = checked[part.name]
        return dataset.pieces() if part.lazy else dataset[_selection(part, dimension, place)]

    def read_field(field: str, description: Dataset | TextList | Group) -> Any:
        if isinstance(description, Group):
            return read(file[field], description.record, dimension, place, checked.sizes) if field in file else None
        found = [read_dataset(part) for part in _datasets(field, description)]
        if isinstance(description, Dataset) or found[0] is None:
            return found[0]
        return Texts(found[0], found[1], checked.filename)

    return record(**{field: read_field(field, own) for field, own in _described(record).items()}, **others)
