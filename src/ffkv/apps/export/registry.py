"""The formats, by the name that a person gives."""

from ffkv.apps.export import circuit_tracer, delphi, neuron_record, neuronpedia, parquet, saedashboard, transluce
from ffkv.apps.export.job import Format

FORMATS: dict[str, Format] = {
    "neuron-record": neuron_record.FORMAT,
    "neuronpedia": neuronpedia.FORMAT,
    "saedashboard": saedashboard.FORMAT,
    "delphi": delphi.FORMAT,
    "transluce": transluce.FORMAT,
    "circuit-tracer": circuit_tracer.FORMAT,
    "parquet": parquet.FORMAT,
}
