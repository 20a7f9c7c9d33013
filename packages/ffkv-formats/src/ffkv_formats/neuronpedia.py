"""Neuronpedia: the bodies of requests to its door `feature/upload-batch`, a JSON file per request.

Fields and limits: `apps/webapp/app/api/feature/upload-batch/route.tsx` of hijohnnylin/neuronpedia.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ffkv.run.export.job import Format, Job, Unit, definitions
from ffkv.run.export.records import Example, Promoted, Record, number, numbers
from ffkv_formats.shared import EMPTY, NUL, batch_units, by_interval, visible_tokens

TOKENS = 1024  # of an activation, at most
LOGITS = 20  # at each end, at most


def feature(record: Record, generator: np.random.Generator) -> dict[str, Any]:
    """Makes a feature of a request. The memory must have a sentence; `generator` draws those of the intervals."""
    activations = [_activation(example) for example in record.positive]
    for interval in by_interval(record.sample, generator):
        bounds = {
            "quantileMin": number(interval.low),
            "quantileMax": number(interval.high),
            "quantileFraction": interval.share,
        }
        activations += [_activation(example) | bounds for example, _ in interval.examples]
    return {
        "index": record.memory,
        "density": record.statistics["firing_rate"],
        "topLogits": _logits(record.top),
        "bottomLogits": _logits(record.bottom),
        "explanations": [],
        "activations": activations,
    }


def _activation(example: Example) -> dict[str, Any]:
    return {"tokens": visible_tokens(example.text.tokens[:TOKENS]), "values": numbers(example.values[:TOKENS])}


def _logits(promoted: Promoted) -> list[dict[str, Any]]:
    assert promoted.logit is not None
    pairs = zip(visible_tokens(promoted.tokens)[:LOGITS], promoted.logit[:LOGITS].tolist())
    return [{"token": token, "value": number(value)} for token, value in pairs]


def units(job: Job) -> list[Unit]:
    """Makes `<source>/batch-<n>.json`, where a source is a layer of the set, "<layer>-<set>"."""

    def request(layer: int, records: Iterable[Record]) -> dict[str, Any]:
        features = [feature(record, job.random(record)) for record in records if record.positive]
        return {"modelId": job.model_id, "source": f"{layer}-{job.set_name}", "features": features}

    return batch_units(job, request, lambda layer: f"{layer}-{job.set_name}")


FORMAT = Format(
    examples=20,
    sentences=100,
    units=units,
    logits=True,
    left_out=True,
    definitions=definitions(__package__, "neuronpedia", EMPTY=EMPTY, NUL=NUL, TOKENS=TOKENS),
)
