"""Transluce's exemplars: a JSON file per memory with what its class `NeuronExemplars` is made of.

Fields: `lib/activations/activations/exemplars.py` and `activations.py` of TransluceAI/observatory. It is the one format
with exemplars of both signs.
"""

from collections.abc import Sequence
from typing import Any

from ffkv.run.export.job import Format, Job, Unit, definitions, folder_unit
from ffkv.run.export.records import Example, Record, numbers

SPLITS = ("train", "valid", "test")
LEAST = len(SPLITS)  # exemplars of each type: the class takes the maximum of each split


def exemplars(record: Record, dataset: str) -> dict[str, Any]:
    """Makes the arguments of `NeuronExemplars`: exemplars by split and type ("max" or "min"), with their data sets.

    The strongest exemplars of each type are dealt to the splits in turn.
    """
    by_type = {
        "max": _enough(record.positive, sorted(record.sample, key=lambda example: -example.values.max())),
        "min": _enough(record.negative, sorted(record.sample, key=lambda example: example.values.min())),
    }
    splits = {split: {kind: own[at :: len(SPLITS)] for kind, own in by_type.items()} for at, split in enumerate(SPLITS)}
    for at, split in enumerate(SPLITS):
        own = record.sample[at :: len(SPLITS)]
        splits[f"random_{split}"] = {"max": own, "min": own}
    splits = {split: own for split, own in splits.items() if all(own.values())}
    return {
        "activation_records": {
            split: {kind: [_activation_record(example) for example in examples] for kind, examples in own.items()}
            for split, own in splits.items()
        },
        "activation_percentiles": {},
        "dataset_names": {
            split: {kind: [dataset] * len(examples) for kind, examples in own.items()} for split, own in splits.items()
        },
    }


def _enough(examples: Sequence[Example], others: Sequence[Example]) -> list[Example]:
    """Returns the examples, and the strongest random ones if they are too few for the splits."""
    shown = {example.text.sentence for example in examples}
    new = [example for example in others if example.text.sentence not in shown]
    return [*examples, *new[: max(0, LEAST - len(examples))]]


def _activation_record(example: Example) -> dict[str, Any]:
    return {
        "tokens": example.text.tokens,
        "token_ids": example.text.ids.tolist(),
        "activations": numbers(example.values),
    }


def units(job: Job) -> list[Unit]:
    """Makes a folder per layer: `<layer>/<memory>.json`."""
    dataset = job.run.settings.corpus.dataset
    return [
        folder_unit(str(group.layer), group.places, lambda record: exemplars(record, dataset))
        for group in job.selection.groups()
    ]


FORMAT = Format(examples=30, sentences=60, units=units, definitions=definitions(__package__, "transluce", LEAST=LEAST))
