"""`prefixes.h5`: r, x, y, o and all coefficients m of sampled validation prefixes, by layer."""

from dataclasses import dataclass

import h5py
import numpy as np

from ffkv.files import hdf5
from ffkv.model.anatomy import Anatomy

STATES = {
    "r": "residual: what the FF output is added to (o - y)",
    "x": "FF input, after the norm",
    "y": "FF output, as it is added to the residual",
    "o": "block output, r + y",
}
WHICH = {
    "sentence": ("sentence", "sentence of the prefix"),
    "position": ("token", "length of the prefix, BOS not counted"),
    "next_token": ("token", "id of the token that follows"),
}
FACTOR = "factor by which a norm after the layer scales the token, y = factor (sum m_i v_i + b); 1 where there is none"
END = "what the model reads out in the end, where that is not o of the last layer"
READ_AT_ONCE = 512  # prefixes in a chunk of coefficients


def allocate(file: h5py.File, anatomy: Anatomy, prefixes: int) -> None:
    """Room for `prefixes` prefixes of a model."""
    layers, width, memories = len(anatomy.layers), anatomy.width, anatomy.layer_offset[-1]
    hdf5.put(
        file,
        "layer_offset",
        np.asarray(anatomy.layer_offset),
        ["layer_boundary"],
        "memory",
        "first column of each layer in `m`; memory i of layer l is column layer_offset[l] + i",
    )
    for name, (unit, description) in WHICH.items():
        hdf5.allocate(file, name, (prefixes,), np.int32, ["prefix"], unit, description)
    for name, description in STATES.items():
        hdf5.allocate(
            file,
            name,
            (layers, prefixes, width),
            np.float32,
            ["layer", "prefix", "width"],
            "1",
            description,
            chunks=(1, max(1, min(prefixes, 4096)), width),
        )
    hdf5.allocate(
        file, "factor", (layers, prefixes), np.float32, ["layer", "prefix"], "1", FACTOR, chunks=(1, max(1, prefixes))
    )
    if anatomy.layers[-1].readout_block:
        hdf5.allocate(file, "end", (prefixes, width), np.float32, ["prefix", "width"], "1", END)
    largest = max(layer.memories for layer in anatomy.layers)
    hdf5.allocate(
        file,
        "m",
        (prefixes, memories),
        np.float32,
        ["prefix", "memory"],
        "1",
        "memory coefficients",
        chunks=(max(1, min(prefixes, READ_AT_ONCE)), largest),
    )


def copy(source: h5py.File, file: h5py.File, part: slice) -> None:
    """Copies all prefixes of one file into a part of another."""
    for name in [*WHICH, *(["end"] if "end" in source else [])]:
        file[name][part] = source[name][...]
    for begin in range(0, part.stop - part.start, READ_AT_ONCE):
        here = slice(begin, min(begin + READ_AT_ONCE, part.stop - part.start))
        file["m"][part.start + here.start : part.start + here.stop] = source["m"][here]
    for name in (*STATES, "factor"):
        for layer in range(len(source[name])):
            file[name][layer, part] = source[name][layer]


@dataclass(frozen=True)
class PrefixLayer:
    """One layer of the sampled prefixes: r, x, y, o [prefix, d] and m [prefix, memory], float32."""

    r: np.ndarray
    x: np.ndarray
    y: np.ndarray
    o: np.ndarray
    m: np.ndarray


def read_layer(file: h5py.File, layer: int, quantities: str = "rxyom") -> PrefixLayer:
    """Some quantities of one layer of an open `prefixes.h5`; those not asked for are empty."""
    offsets = file["layer_offset"][...]
    columns = slice(int(offsets[layer]), int(offsets[layer + 1]))
    nothing = np.zeros((0, 0), np.float32)
    read = {name: file[name][layer] if name in quantities else nothing for name in STATES}
    return PrefixLayer(**read, m=file["m"][:, columns] if "m" in quantities else nothing)
