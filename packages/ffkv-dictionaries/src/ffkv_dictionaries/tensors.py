"""Tensors of files that strangers wrote. Names, types, shapes and places are checked before memory is taken for numbers."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ffkv.base.errors import UserError, one_line
from ffkv.base.fault import free_memory
from ffkv.base.lookup import open_file, parse_json
from ffkv_dictionaries.files import AGAIN, SEVERAL_LAYERS

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of a number, of each type that is read
WHOLE = ("I64", "I32")  # types of a single number that counts
LARGEST_HEADER = 10**8  # bytes, as safetensors has it
LARGEST_NPY_HEADER = 10_000  # bytes, as numpy has it
DEFLATED = 1032  # bytes at most that one byte of a zip becomes
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# What a damaged file, or one that somebody made to harm, makes Python, numpy and safetensors raise.
BROKEN: tuple[type[Exception], ...] = (OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, SyntaxError)
BROKEN += (tokenize.TokenError, SafetensorError, zipfile.BadZipFile, zlib.error)
MEANING = {"n": "units", "d": "dimensions"}


class Stored(NamedTuple):
    """What a file says of a tensor."""

    shape: tuple[int, ...]
    kind: str  # a name of `WIDTHS`, or another that the file has


def stored_in(path: Path) -> dict[str, Stored]:
    """Returns what a file of safetensors, or an .npz of numpy, says of its tensors, by name. No numbers are read.

    Raises UserError if the file cannot be read, is damaged, or a tensor claims more than the file holds.
    """
    try:
        with open_file(path) as file:
            return _in_npz(path, file) if path.suffix == ".npz" else _in_safetensors(path, file)
    except BROKEN as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read, it is damaged or of another form: {one_line(error, 200)}. {AGAIN}")


def _in_safetensors(path: Path, file: Any) -> dict[str, Stored]:
    size, found = path.stat().st_size, dict[str, Stored]()
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size - 8, LARGEST_HEADER):
        raise ValueError(f"its header claims {length:,} bytes, and the file has {size:,}")
    for name, said in parse_json(file.read(length)).items():
        if name == "__metadata__":
            continue
        shape, kind, (start, end) = tuple(said["shape"]), said["dtype"], said["data_offsets"]
        if not all(isinstance(each, int) and each >= 0 for each in (*shape, start, end)) or not isinstance(kind, str):
            raise ValueError(f"the header of the tensor {name[:80]!r} has no shape and place")
        needed = math.prod(shape) * WIDTHS.get(kind, 0)
        if kind in WIDTHS and (needed != end - start or end > size - 8 - length):
            raise ValueError(
                f"the tensor {name[:80]} claims {_shown(shape)} numbers of {kind}, {needed:,} bytes, in the bytes {start:,} to"
                f" {end:,} of {size - 8 - length:,}"
            )
        found[name] = Stored(shape, kind)
    return found


def _in_npz(path: Path, file: Any) -> dict[str, Stored]:
    size, found = path.stat().st_size, dict[str, Stored]()
    with zipfile.ZipFile(file) as archive:
        for member in sorted({*archive.namelist()}):
            info = archive.getinfo(member)
            limit = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else DEFLATED)
            if info.compress_size > size or info.file_size > limit:
                raise ValueError(
                    f"{member[:80]} claims {info.file_size:,} bytes, packed in {info.compress_size:,}; the file has {size:,}"
                )
            with archive.open(info) as opened:
                version = npy.read_magic(opened)
                if version not in HEADERS:
                    raise ValueError(f"{member[:80]} is of the version {version} of numpy's files")
                shape, _, dtype = HEADERS[version](opened, max_header_size=LARGEST_NPY_HEADER)
                held = info.file_size - opened.tell()
            kind = f"F{8 * dtype.itemsize}" if dtype.kind == "f" else str(dtype)
            if (needed := math.prod(shape) * dtype.itemsize) > held:
                raise ValueError(
                    f"the tensor {member[:80]} claims {_shown(shape)} numbers of {dtype}, {needed:,} bytes, and has {held:,}"
                )
            found[member.removesuffix(".npy")] = Stored(shape, kind)
    return found


def read(path: Path, roles: Mapping[str, str], known: Mapping[str, tuple[int, str]] | None = None) -> dict[str, Tensor]:
    """Reads the tensors of a dictionary, after all of them fit each other. The file must hold these and no others.

    Args:
        path: a file of safetensors, or an .npz.
        roles: the name of each tensor in the file and its dimensions there, by what it is called here: "W_enc dn", where n
            are units and d are the dimensions of a state; a name alone is that of a single number.
        known: sizes "n" and "d" that another file says, each with who says it.
    Returns:
        The tensors by what they are called here: finite float32 on the CPU. Those of "dn" are transposed: a row is a unit's.
        A "threshold" that is a single number is that of each unit.
    Raises:
        UserError: a tensor is missing, unknown, transposed, has another shape, integers, or numbers that are not finite;
            they need more memory than is free.
    """
    stored, names = stored_in(path), {key: role.partition(" ")[0] for key, role in roles.items()}
    if missing := next((name for name in names.values() if name not in stored), None):
        raise UserError(f"{path} lacks the tensor {missing}; it has {_named(stored)}. {AGAIN}")
    if strange := stored.keys() - names.values():
        raise UserError(
            f"{path} has tensors that a dictionary of this form and its config does not have: {_named(strange)}. What they"
            " change is unknown. Look whether the config beside it is that of this file."
        )
    sizes = dict(known or {})
    # Vectors tell sizes without doubt.
    for name, _, wanted in sorted((role.partition(" ") for role in roles.values()), key=lambda each: len(each[2])):
        shape, kind = stored[name]
        if kind not in WIDTHS and (wanted or kind not in WHOLE):
            raise UserError(f"{path}: the tensor {name} is of type {kind[:80]}. {', '.join(WIDTHS)} are read. {AGAIN}")
        if name == names.get("threshold") and shape in ((), (1,)):
            continue
        if len(shape) > 2 and len(wanted) == 2:
            raise UserError(f"{path}: the tensor {name} has the shape {_shown(shape)}: it {SEVERAL_LAYERS}")
        if len(shape) == len(wanted):
            for letter, size in zip(wanted, shape):
                sizes.setdefault(letter, (size, f"the tensor {name}"))
        if len(shape) != len(wanted) or shape != tuple(sizes[letter][0] for letter in wanted) or 0 in shape:
            raise _misshapen(path, name, shape, wanted, sizes)
    if (needed := 4 * sum(math.prod(stored[name].shape) for name in names.values())) > (free := free_memory()):
        raise UserError(
            f"{path} holds {needed / 2**30:,.1f} GiB of float32, and {free / 2**30:,.1f} GiB of memory are free. Take a machine"
            " with more, or a dictionary of fewer units."
        )
    found = {key: _numbers(path, name) for key, name in names.items()}
    if "threshold" in found:
        found["threshold"] = found["threshold"].expand(sizes["n"][0]).contiguous()
    return {key: each.T.contiguous() if roles[key].endswith(" dn") else each for key, each in found.items()}


def _misshapen(
    path: Path, name: str, shape: tuple[int, ...], wanted: str, sizes: dict[str, tuple[int, str]]
) -> UserError:
    expected = tuple(sizes[letter][0] if letter in sizes else None for letter in wanted)
    if len(wanted) == 2 and shape == expected[::-1] and 0 not in shape:
        meaning = " × ".join(MEANING[letter] for letter in wanted)
        remedy = f"It is transposed: {meaning} is expected. Save it transposed, or look which code wrote it."
    else:
        said = {letter: f" ({size:,}, says {who})" for letter, (size, who) in sizes.items()}
        parts = (f"{MEANING[letter]}{said.get(letter, '')}" for letter in wanted)
        remedy = f"Expected is {' × '.join(parts) or 'a single number'}. {AGAIN}"
    return UserError(f"{path}: the tensor {name} has the shape {_shown(shape)}. {remedy}")


def _numbers(path: Path, name: str) -> Tensor:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as opened, np.errstate(over="ignore"):  # told below
                tensor = torch.from_numpy(np.ascontiguousarray(opened[name], dtype=np.float32))
        else:
            with safe_open(path, "pt") as opened:
                tensor = opened.get_tensor(name).to(torch.float32, copy=True)
    except BROKEN as error:
        raise _damaged(path, error) from error
    if not torch.isfinite(tensor).all():
        raise UserError(f"{path}: the tensor {name} has numbers that are not finite in float32. {AGAIN}")
    return tensor


def _shown(shape: tuple[int, ...]) -> str:
    return " × ".join([*(f"{size:,}" for size in shape[:6]), *(["…"] if shape[6:] else [])]) or "no dimension"


def _named(names: Any) -> str:
    return ", ".join(name[:80] for name in sorted(names)[:12]) or "none"
