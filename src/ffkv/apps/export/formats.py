"""The formats, by the name that a person gives. A format is imported when it is asked for."""

import importlib
from typing import TYPE_CHECKING

from ffkv.base.errors import UserError

if TYPE_CHECKING:  # the help needs the names alone
    from ffkv.apps.export.job import Format

# Name: a module whose FORMAT says how it is written.
FORMATS = {
    "neuron-record": "ffkv.apps.export.neuron_record",
    "neuronpedia": "ffkv.apps.export.neuronpedia",
    "saedashboard": "ffkv.apps.export.saedashboard",
    "delphi": "ffkv.apps.export.delphi",
    "transluce": "ffkv.apps.export.transluce",
    "circuit-tracer": "ffkv.apps.export.circuit_tracer",
    "parquet": "ffkv.apps.export.parquet",
}


def find_format(name: str) -> "Format":
    """Returns the format of that name.

    Raises:
        UserError: there is none.
    """
    if name not in FORMATS:
        raise UserError(f"There is no format {name!r}. There are {', '.join(FORMATS)}.")
    return importlib.import_module(FORMATS[name]).FORMAT
