"""Random sentences by how strongly a memory reacts to them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffkv.apps.export.records import Example

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
INTERVALS = 5


def by_quantile(examples: Sequence[Example], count: int, generator: np.random.Generator) -> list[list[Example]]:
    """Draws up to `count` examples of each quarter by their highest coefficients, the weakest quarter first."""
    order = np.argsort([example.values.max() for example in examples], kind="stable")
    bounds = [round(quantile * len(order)) for quantile in QUANTILES]
    return [draw([examples[at] for at in order[a:b]], count, generator) for a, b in itertools.pairwise(bounds)]


def draw(examples: Sequence[Example], count: int, generator: np.random.Generator) -> list[Example]:
    """Draws up to `count` different examples."""
    chosen = generator.choice(len(examples), min(count, len(examples)), replace=False) if examples else ()
    return [examples[at] for at in chosen]


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
