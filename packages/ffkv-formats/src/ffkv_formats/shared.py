"""What several of these formats share: batches of memories, intervals of coefficients, and tokens that a format can hold."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffkv.run.export.job import Job, Unit, write_json
from ffkv.run.export.records import Example, Record

EMPTY = "∅"  # stands for a token without text, where a format refuses one
BATCH = 128  # memories in a file; Neuronpedia takes no more in a request
NUL = "\N{SYMBOL FOR NULL}"  # stands for U+0000, where a format cannot hold it
INTERVALS = 5


def batch_units(
    job: Job, content: Callable[[int, Iterable[Record]], Any], folder: Callable[[int], str] = str
) -> list[Unit]:
    """Makes a JSON file per `BATCH` memories of a layer: `<folder>/batch-<n>.json`.

    `content`: what a file holds, from the layer and the records of its memories.
    """

    def unit(layer: int, number: int, places: range) -> Unit:
        path = f"{folder(layer)}/batch-{number}.json"
        return Unit(path, places, lambda path, records: write_json(path, content(layer, records)))

    return [
        unit(own.layer, number, group.places)
        for own in job.selection.groups()
        for number, group in enumerate(job.selection.groups(BATCH, own.places))
    ]


def visible_tokens(tokens: list[str]) -> list[str]:
    """Tokens with stand-ins for an empty text and for U+0000."""
    return [token.replace("\0", NUL) or EMPTY for token in tokens]


@dataclass(frozen=True)
class Interval:
    """Examples with a coefficient in an interval."""

    low: float  # lower end, which is not in the interval
    high: float  # upper end, which is in it
    share: float  # share of the tokens of all examples whose coefficient is in it
    examples: list[tuple[Example, int]]  # some examples with such a token, and the token of each


def by_interval(examples: Sequence[Example], generator: np.random.Generator, count: int = 5) -> list[Interval]:
    """Cuts the positive coefficients of examples into equal intervals.

    Those that hold a coefficient are returned, the highest first, with up to `count` random examples each.
    """
    together = np.concatenate([example.values for example in examples]) if examples else np.zeros(0)
    edges = np.linspace(0, max(together.max(initial=0), 0), INTERVALS + 1)
    found = []
    for low, high in zip(edges[-2::-1], edges[:0:-1]):
        inside = [(example.values > low) & (example.values <= high) for example in examples]
        having = [at for at, tokens in enumerate(inside) if tokens.any()]
        if having:
            chosen = generator.choice(having, min(count, len(having)), replace=False).tolist()
            strongest = [int(np.where(inside[at], examples[at].values, -np.inf).argmax()) for at in chosen]
            share = sum(int(tokens.sum()) for tokens in inside) / len(together)
            shown = [(examples[at], token) for at, token in zip(chosen, strongest)]
            found.append(Interval(float(low), float(high), share, shown))
    return found
