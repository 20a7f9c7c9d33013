"""`sampled_prefixes.h5`: y, o and all coefficients m of sampled validation prefixes, by layer.

States are written once, into blocks (`sampled_prefixes/<shard>.blocks/<first prefix>.h5`). The file of a shard links to
its blocks and the file of the whole sample to its shards (HDF5 virtual datasets), so both are small. Every link is a
relative path: a run's folder can be moved or copied as a whole.

How states are stored follows from the model and the settings alone, never from the numbers, so that the same inputs
give the same bytes.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.datasets import LAYER_OFFSET, Checked, dataset, datasets_of
from ffkv.model.anatomy import Anatomy

KIND = "sampled prefixes"
IN_MEMORY = 2**30  # bytes of states; a larger block of prefixes is written while the model runs
CHUNK_BYTES = 2**20  # of one chunk, about; readers read whole layers
MOST_PER_CHUNK = 4096  # prefixes
HALF = ("bfloat16", "float16")  # half of the bytes of a state are then zeros, or almost always the same
STATES: dict[str, Any] = {"unit": "1", "chunks": {"layer": 1, "prefix": "states_per_chunk"}}
IF_HALF = "compressed if the weights are of 16 bits"


@dataclass(frozen=True)
class SampledPrefixes:
    """What `sampled_prefixes.h5` holds. The residual r is o - y."""

    layer_offset: np.ndarray = dataset(
        "layer_boundary", "int64", unit="memory", about=LAYER_OFFSET.replace("row", "column"), of="memory"
    )
    sentence: np.ndarray = dataset("prefix", "int32", unit="sentence", about="sentence of the prefix", of="sentence")
    position: np.ndarray = dataset("prefix", "int32", unit="token", about="length of the prefix, BOS not counted")
    next_token: np.ndarray = dataset(
        "prefix", "int32", unit="token", about="id of the token that follows", of="token_id"
    )
    y: np.ndarray | None = dataset(
        "layer prefix width",
        "float32",
        about=f"FF output, as it is added to the residual; {IF_HALF}",
        optional=True,
        **STATES,
    )
    o: np.ndarray = dataset("layer prefix width", "float32", about=f"block output, r + y; {IF_HALF}", **STATES)
    m: np.ndarray | None = dataset(
        "prefix memory",
        "float32",
        unit="1",
        about="memory coefficients; compressed if a layer has experts, because most are then 0, or if the weights are of 16 bits",
        chunks={"prefix": "coefficients_per_chunk", "memory": "largest_layer"},
        optional=True,
    )
    x: np.ndarray | None = dataset(
        "layer prefix width",
        "float32",
        about=f"FF input, after the norm; if `prefixes.extra_states` asks for it; {IF_HALF}",
        optional=True,
        **STATES,
    )
    factor: np.ndarray | None = dataset(
        "layer prefix",
        "float32",
        unit="1",
        about="factor by which a norm after the layer scales the token, y = factor (sum m_i v_i + b); 1 if there is none;"
        " if `prefixes.extra_states` asks for it",
        chunks={"layer": 1},
        optional=True,
    )
    end: np.ndarray | None = dataset(
        "prefix width",
        "float32",
        unit="1",
        about=f"what the head reads, if that is not o of the last layer; {IF_HALF}",
        chunks={"prefix": "states_per_chunk"},
        optional=True,
    )


class Storage(NamedTuple):
    """How the states of a sample are stored."""

    # the length of each dimension of `SampledPrefixes` but "prefix", and the sizes that its chunks name
    sizes: dict[str, int]
    without: list[str]  # the optional datasets that the file lacks
    compressed: tuple[str, ...]  # the datasets whose chunks are compressed
    # whether the states of a block are kept in memory until it is complete. If not, a chunk holds one prefix, so that
    # prefixes can be written in the order in which the model reads them.
    in_memory: bool


def storage_of(anatomy: Anatomy, keep: Sequence[str], block_prefixes: int) -> Storage:
    """Decides how the states of a sample are stored, from the model and the settings alone.

    `keep`: the datasets that are stored beside o. `block_prefixes`: prefixes per block, `batches.block_sentences`.
    """
    present = [*keep, *(["end"] if anatomy.layers[-1].readout_block else [])]
    without = [name for name in ("y", "m", "x", "factor", "end") if name not in present]
    memories = [layer.memories for layer in anatomy.layers]
    sizes = {"layer": len(memories), "width": anatomy.width, "memory": sum(memories), "largest_layer": max(memories)}
    states = datasets_of(SampledPrefixes, without)
    per_prefix = sum(math.prod(part.shape({**sizes, "prefix": 1, "layer_boundary": 0})) for (part,) in states.values())
    in_memory = 4 * per_prefix * block_prefixes <= IN_MEMORY
    for name, row in (("states_per_chunk", anatomy.width), ("coefficients_per_chunk", max(memories))):
        sizes[name] = min(max(1, CHUNK_BYTES // (4 * row)), MOST_PER_CHUNK) if in_memory else 1
    if anatomy.dtype in HALF:
        return Storage(sizes, without, ("y", "o", "m", "x", "end"), in_memory)
    experts = any(matrix.experts for layer in anatomy.layers for matrix in layer.second_matrices)
    return Storage(sizes, without, ("m",) if experts else (), in_memory)


def write_linked(path: Path | str, parts: Sequence[Path], attributes: Mapping[str, Any]) -> None:
    """Writes a file that reads the prefixes of other files, `parts`, one behind the other. There is at least one.

    Raises UserError if a part is damaged, is not of the same model and sample, or lies neither beside the file nor below its folder.
    """
    names = [os.path.relpath(part, Path(path).parent) for part in parts]
    if outside := [name for name in names if name.startswith("..")]:
        raise UserError(
            f"{path} cannot read {outside[0]}: write it into a folder that the file lies in, or one above that."
        )
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for part in parts:  # one at a time: there may be more than a process can open
        with hdf5.open(part, KIND, attributes) as file:
            layer_offset = file["layer_offset"][...]
            for field in {*datasets_of(SampledPrefixes)} & {*file}:
                shapes.setdefault(field, []).append(file[field].shape)
    with hdf5.create(path, KIND, attributes) as file:
        for field, (described,) in datasets_of(SampledPrefixes).items():
            dimensions, unit, about = described.dimensions, described.unit, described.about
            if field == "layer_offset":
                hdf5.put(file, field, layer_offset, dimensions, unit, about)
            elif field in shapes:
                axis = dimensions.index("prefix")
                hdf5.link(file, field, shapes[field], described.dtype, names, dimensions, axis, unit, about)


@dataclass(frozen=True)
class PrefixLayer:
    """One layer of the sampled prefixes, float32. What was not asked for is empty."""

    r: np.ndarray  # residual, what the FF output is added to: o - y [prefix, d]
    y: np.ndarray  # FF output, as it is added to the residual [prefix, d]
    o: np.ndarray  # block output [prefix, d]
    m: np.ndarray  # memory coefficients [prefix, memory]


def read_end(file: h5py.File | Checked) -> np.ndarray:
    """Reads what the head reads on the prefixes of an open file [prefix, d]: `end`, or o of the last layer."""
    return file["end"][...] if "end" in file else read_layer(file, len(file["layer_offset"]) - 2, "o").o


def read_layer(file: h5py.File | Checked, layer: int, quantities: str = "yrom") -> PrefixLayer:
    """Reads one layer of an open `sampled_prefixes.h5`. `quantities`: some of "yrom".

    Raises UserError if a state is not a number, because a file that the file reads from is not what it was.
    """
    offsets = file["layer_offset"][...]
    nothing = np.zeros((0, 0), np.float32)
    y = file["y"][layer] if {"y", "r"} & {*quantities} else nothing
    o = file["o"][layer] if {"o", "r"} & {*quantities} else nothing
    m = file["m"][:, int(offsets[layer]) : int(offsets[layer + 1])] if "m" in quantities else nothing
    # HDF5 gives NaN for what it does not find; the states that were written are finite.
    if not all(np.isfinite(values).all() for values in (y, o, m)):
        raise UserError(
            f"{file.filename} reads files that are incomplete. Make it again: `snakemake --force {file.filename}`."
        )
    found = {"r": o - y if "r" in quantities else nothing, "y": y, "o": o, "m": m}
    return PrefixLayer(**{name: values if name in quantities else nothing for name, values in found.items()})
