"""How the values and the states of a run can be read: as the head reads them, or through another lens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ffkv.branches.translation.maps import read_map
from ffkv.branches.translation.tables import has_fitted, has_jacobian

if TYPE_CHECKING:  # what reads needs torch
    import numpy as np

    from ffkv.branches.settings import Settings
    from ffkv.model.head.head import Head
    from ffkv.model.head.lens import Lens
    from ffkv.run.results.run_files import RunFiles


class Reading(NamedTuple):
    """One way to read them."""

    files: str  # what the paths of its files begin with: of the projections of the values, of the table `by_memory`, of maps
    lens: "Callable[[RunFiles, Head], Lens]"  # makes what reads other vectors so
    applies: "Callable[[Settings], bool]" = lambda settings: True  # whether a run with such settings has it
    note: str = ""  # what precedes the head, as a sentence


def _mapped(files: "RunFiles", head: "Head") -> "Lens":
    from ffkv.model.head.lens import MappedLens

    def map_of(layer: int) -> "tuple[np.ndarray, np.ndarray]":
        with files.open_maps(files.layer_group(layer)) as file:
            return read_map(file, layer)

    return MappedLens(head, map_of)


# A further lens (`ffkv.model.head.lens`) has a line here.
READINGS = {
    "head": Reading("values/", lambda files, head: head),
    "translated": Reading("translation/", _mapped, has_fitted, "Each layer's map to the last layer precedes the head."),
    "jacobian": Reading(
        "translation/jacobian_", _mapped, has_jacobian, "Each layer's mean Jacobian precedes the head."
    ),
}


def lens_of(files: "RunFiles", head: "Head") -> "Lens":
    """Returns the lens in whose reading the files of a run are. `head`: that of the run."""
    return READINGS[files.reading].lens(files, head)
