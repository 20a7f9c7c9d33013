"""OpenAI's NeuronRecord, of the neuron explainer and of the transformer debugger: a JSON file per memory and sign.

Fields: `neuron_explainer/activations/activations.py`; encoding: `neuron_explainer/fast_dataclasses.py` of
openai/automated-interpretability.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ffkv.run.export.job import Format, Job, Unit, definitions, folder_unit
from ffkv.run.export.records import Example, Record, number, numbers
from ffkv.run.export.selection import Group
from ffkv.run.results.memory_columns import SIDES

RANDOM = 20  # random sentences of a memory: a reader wants 15 for splits of 5
PER_QUANTILE = 5
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the highest coefficients of random sentences


def neuron_record(record: Record, side: str, generator: np.random.Generator) -> dict[str, Any]:
    """Makes a NeuronRecord; on the side "negative", one of the memory's coefficients times -1."""
    sign, top = (1, record.positive) if side == "positive" else (-1, record.negative)
    sample = [Example(each.text, sign * each.values, each.position) for each in record.sample]
    return {
        "dataclass_name": "NeuronRecord",
        "neuron_id": {"dataclass_name": "NeuronId", "layer_index": record.layer, "neuron_index": record.memory},
        "random_sample": list(map(_activation_record, draw(sample, RANDOM, generator))),
        "random_sample_by_quantile": [
            list(map(_activation_record, group)) for group in by_quantile(sample, PER_QUANTILE, generator)
        ],
        "quantile_boundaries": [*QUANTILES],
        "mean": number(sign * record.statistics["mean_coefficient"]),
        "variance": None,
        "skewness": None,
        "kurtosis": None,
        "most_positive_activation_records": [_activation_record(example, sign) for example in top],
    }


def by_quantile(examples: Sequence[Example], count: int, generator: np.random.Generator) -> list[list[Example]]:
    """Draws up to `count` examples of each quarter by their highest coefficients, the weakest quarter first."""
    order = np.argsort([example.values.max() for example in examples], kind="stable")
    bounds = [round(quantile * len(order)) for quantile in QUANTILES]
    return [draw([examples[at] for at in order[a:b]], count, generator) for a, b in itertools.pairwise(bounds)]


def draw(examples: Sequence[Example], count: int, generator: np.random.Generator) -> list[Example]:
    """Draws up to `count` different examples."""
    chosen = generator.choice(len(examples), min(count, len(examples)), replace=False) if examples else ()
    return [examples[at] for at in chosen]


def _activation_record(example: Example, sign: int = 1) -> dict[str, Any]:
    return {
        "dataclass_name": "ActivationRecord",
        "tokens": example.text.tokens,
        "activations": numbers(sign * example.values + 0.0),  # no -0.0
    }


def units(job: Job) -> list[Unit]:
    """Makes a folder per layer and sign: `<sign>/<layer>/<memory>.json`. Negative ones only of memories with a negative example."""

    def unit(side: str, group: Group) -> Unit:
        def content(record: Record) -> dict[str, Any] | None:
            return neuron_record(record, side, job.random(record)) if side == "positive" or record.negative else None

        return folder_unit(f"{side}/{group.layer}", group.places, content)

    sides = [side for side in SIDES if side == "positive" or job.selection.sentence[side].shape[1]]
    return [unit(side, group) for side in sides for group in job.selection.groups()]


FORMAT = Format(
    examples=20,
    sentences=100,
    units=units,
    definitions=definitions(__package__, "neuron-record", PER_QUANTILE=PER_QUANTILE, RANDOM=RANDOM),
)
