"""`sampled_prefixes.h5`: y, o and all coefficients m of sampled validation prefixes, by layer.

States are written once, into blocks (`sampled_prefixes/<shard>.blocks/<first prefix>.h5`). The file of a shard links to
its blocks and the file of the whole sample to its shards (HDF5 virtual datasets), so both are small. Every link is a
relative path: a run's folder can be moved or copied as a whole.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ffkv.errors import UserError
from ffkv.files import datasets, hdf5
from ffkv.files.datasets import LAYER_OFFSET, dataset
from ffkv.model.anatomy import Anatomy

KIND = "sampled prefixes"
STATES_PER_CHUNK = 4096
COEFFICIENTS_PER_CHUNK = 512
STATES: dict[str, Any] = {"unit": "1", "chunks": {"layer": 1, "prefix": STATES_PER_CHUNK}}


@dataclass(frozen=True)
class SampledPrefixes:
    """What `sampled_prefixes.h5` holds. The residual r is o - y."""

    layer_offset: np.ndarray = dataset(
        "layer_boundary", "int64", unit="memory", about=LAYER_OFFSET.replace("row", "column")
    )
    sentence: np.ndarray = dataset("prefix", "int32", unit="sentence", about="sentence of the prefix")
    position: np.ndarray = dataset("prefix", "int32", unit="token", about="length of the prefix, BOS not counted")
    next_token: np.ndarray = dataset("prefix", "int32", unit="token", about="id of the token that follows")
    y: np.ndarray = dataset(
        "layer prefix width", "float32", about="FF output, as it is added to the residual", **STATES
    )
    o: np.ndarray = dataset("layer prefix width", "float32", about="block output, r + y", **STATES)
    m: np.ndarray = dataset(
        "prefix memory",
        "float32",
        unit="1",
        about="memory coefficients",
        chunks={"prefix": COEFFICIENTS_PER_CHUNK, "memory": "largest_layer"},
    )
    x: np.ndarray | None = dataset(
        "layer prefix width",
        "float32",
        about="FF input, after the norm; if `prefixes.keep` asks for it",
        optional=True,
        **STATES,
    )
    factor: np.ndarray | None = dataset(
        "layer prefix",
        "float32",
        unit="1",
        about="factor by which a norm after the layer scales the token, y = factor (sum m_i v_i + b); 1 if there is none;"
        " if `prefixes.keep` asks for it",
        chunks={"layer": 1},
        optional=True,
    )
    end: np.ndarray | None = dataset(
        "prefix width",
        "float32",
        unit="1",
        about="what the head reads, if that is not o of the last layer",
        optional=True,
    )


def sizes(anatomy: Anatomy, prefixes: int) -> dict[str, int]:
    """The length of each dimension of `SampledPrefixes`, and the sizes that its chunks name."""
    return {
        "layer": len(anatomy.layers),
        "prefix": prefixes,
        "width": anatomy.width,
        "memory": anatomy.layer_offset[-1],
        "largest_layer": max(layer.memories for layer in anatomy.layers),
    }


def absent(anatomy: Anatomy, keep: Sequence[str]) -> list[str]:
    """The optional datasets that a file of this model lacks.

    Args:
        anatomy: the model.
        keep: the setting `prefixes.keep`.
    """
    present = [*keep, *(["end"] if anatomy.layers[-1].readout_block else [])]
    return [name for name in ("x", "factor", "end") if name not in present]


def write_linked(path: Path | str, parts: Sequence[Path], attributes: Mapping[str, Any]) -> None:
    """Writes a file that reads the prefixes of other files, one behind the other.

    Args:
        path: the file.
        parts: the other files, in order; at least one.
        attributes: what the file says of itself.
    Raises:
        UserError: a part is damaged, or is not of the same model and sample.
    """
    names = [os.path.relpath(part, Path(path).parent) for part in parts]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(hdf5.open(part, KIND, attributes)) for part in parts]
        with hdf5.create(path, KIND, attributes) as file:
            for field, (described,) in datasets.datasets_of(SampledPrefixes).items():
                if field not in files[0]:
                    continue
                dimensions, unit, about = described.dimensions, described.unit, described.about
                if "prefix" in dimensions:
                    sources, axis = [source[field] for source in files], dimensions.index("prefix")
                    hdf5.link(file, field, sources, names, dimensions, axis, unit, about)
                else:
                    hdf5.put(file, field, files[0][field][...], dimensions, unit, about)


@dataclass(frozen=True)
class PrefixLayer:
    """One layer of the sampled prefixes, float32. What was not asked for is empty.

    Attributes:
        r: residual, what the FF output is added to: o - y [prefix, d].
        y: FF output, as it is added to the residual [prefix, d].
        o: block output [prefix, d].
        m: memory coefficients [prefix, memory].
    """

    r: np.ndarray
    y: np.ndarray
    o: np.ndarray
    m: np.ndarray


def read_layer(file: h5py.File, layer: int, quantities: str = "yrom") -> PrefixLayer:
    """Reads one layer of an open `sampled_prefixes.h5`.

    Args:
        file: the file, as `hdf5.open` gives it.
        layer: number of the layer, from 0.
        quantities: some of "yrom".
    Raises:
        UserError: a state is not a number, because a file that the file reads from is not what it was.
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
    return PrefixLayer(
        r=o - y if "r" in quantities else nothing,
        y=y if "y" in quantities else nothing,
        o=o if "o" in quantities else nothing,
        m=m,
    )
