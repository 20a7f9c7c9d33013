"""How the values and the states of a run can be read: as the head reads them, or through another lens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ffkv.branches.translation.maps import read_map

if TYPE_CHECKING:  # what reads needs torch
    import numpy as np

    from ffkv.model.head.head import Head
    from ffkv.model.head.lens import Lens
    from ffkv.run.results.run_files import RunFiles


class Reading(NamedTuple):
    """One way to read them."""

    branch: str  # what has read the values so: its folder has their projections and its table `by_memory`
    lens: "Callable[[RunFiles, Head], Lens]"  # makes what reads other vectors so


def _mapped(files: "RunFiles", head: "Head") -> "Lens":
    from ffkv.model.head.lens import MappedLens

    def map_of(layer: int) -> "tuple[np.ndarray, np.ndarray]":
        with files.open_maps(files.layer_group(layer)) as file:
            return read_map(file, layer)

    return MappedLens(head, map_of)


# A further lens (`ffkv.model.head.lens`) has a line here.
READINGS = {"head": Reading("values", lambda files, head: head), "translated": Reading("translation", _mapped)}


def lens_of(files: "RunFiles", head: "Head") -> "Lens":
    """Returns the lens in whose reading the files of a run are. `head`: that of the run."""
    return READINGS[files.reading].lens(files, head)
