"""The feature files of circuit-tracer: a JSON file per memory, which the page of its attribution graphs reads.

Fields: `circuit_tracer/frontend/feature_models.py`; names of files: `_cantor_pairing` in `graph_models.py` of
decoderesearch/circuit-tracer.
"""

from typing import Any

import numpy as np

from ffkv.run.export.job import Format, Job, Unit, definitions, folder_unit
from ffkv.run.export.records import Example, Record, number, numbers
from ffkv_formats.circuit_tracer_graphs import feature_number
from ffkv_formats.shared import by_interval

LOGITS = 10


def feature_file(record: Record, transcoder_id: str, generator: np.random.Generator) -> dict[str, Any]:
    """Makes a feature file. `transcoder_id`: name of the set of memories; `generator`: draws sentences of intervals."""
    intervals = by_interval(record.sample, generator)
    groups = [("Top activations", [_example(example, _trigger_token(example)) for example in record.positive])]
    groups += [
        (f"Subsample Interval {at}", [_example(*example) for example in interval.examples])
        for at, interval in enumerate(intervals)
    ]
    bottom = [_example(example, _trigger_token(example)) for example in record.negative]
    groups += [("Bottom activations", bottom)] if bottom else []
    return {
        "transcoder_id": transcoder_id,
        "index": record.memory,
        "examples_quantiles": [{"quantile_name": name, "examples": examples} for name, examples in groups],
        "top_logits": record.top.tokens[:LOGITS],
        "bottom_logits": record.bottom.tokens[:LOGITS],
        "act_min": number(record.statistics.get("minimum_coefficient", 0.0)),
        "act_max": number(record.statistics["maximum_coefficient"]),
        "quantile_values": [interval.high for interval in intervals],
        "histogram": record.histogram[1:].astype(float).tolist(),
        "activation_frequency": record.statistics["firing_rate"],
    }


def _example(example: Example, token: int) -> dict[str, Any]:
    return {
        "tokens_acts_list": numbers(example.values),
        "train_token_ind": token,
        "is_repeated_datapoint": False,
        "tokens": example.text.tokens,
    }


def _trigger_token(example: Example) -> int:
    """Returns the last token of the trigger prefix; of the empty prefix, the token furthest from 0."""
    return example.position - 1 if example.position else int(np.abs(example.values).argmax())


def units(job: Job) -> list[Unit]:
    """Makes one folder with all files: `features/<set>/<number>.json`."""
    unit = folder_unit(
        f"features/{job.set_name}",
        range(len(job.selection)),
        lambda record: feature_file(record, job.set_name, job.random(record)),
        lambda record: feature_number(record.layer, record.memory),
    )
    return [unit] if unit.places else []


FORMAT = Format(examples=20, sentences=100, units=units, definitions=definitions(__package__, "circuit-tracer"))
