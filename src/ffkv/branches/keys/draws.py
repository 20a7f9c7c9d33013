"""How much random keys speak for a topic. Random keys are drawn from a pool of random prefixes.

A drawn key has as many prefixes of each length class as the real key that it is compared with.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.keys.topics import Topics

NULL_DRAWS = 4000  # random keys that a key is compared with; enough for a single key among 200 to pass at 5 %
DRAWS_PER_BLOCK = 250  # few enough for the sums of their scores to fit into memory beside a model


@dataclass(frozen=True)
class Pool:
    """The scores of random prefixes, ordered by length class."""

    topics: Topics  # the topics of the corpus
    scores: np.ndarray  # the prefixes' scores, see `Topics.score` [prefix, topic]
    starts: np.ndarray  # the first prefix of each length class, and the number of all prefixes [class + 1]

    def of_class(self, length_class: int) -> np.ndarray:
        """Returns the scores of one length class [prefix, topic]."""
        return self.scores[self.starts[length_class] : self.starts[length_class + 1]]


def draw_blocks(pool: Pool, places: np.ndarray, seed: int) -> Iterator[list[np.ndarray]]:
    """Makes `NULL_DRAWS` draws, in blocks.

    The same seed draws the same prefixes into the same places, whatever the number of places.

    Args:
        places: number of places per length class; 0 for a class without a prefix in the pool [class].
    Yields:
        The sum of the scores in the first place, the first two places, and so on [class][place, draw, topic].
    """
    draws = [_draw_prefixes(pool, number, count, seed) for number, count in enumerate(places.tolist())]
    for start in range(0, NULL_DRAWS, DRAWS_PER_BLOCK):
        by_class = [prefixes[:, start : start + DRAWS_PER_BLOCK] for prefixes in draws]
        yield [np.cumsum(pool.scores[prefixes], axis=0) for prefixes in by_class]


def strongest(sums: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Returns the highest sum of scores over all topics, of each draw [draw].

    Args:
        sums: a block of `draw_blocks`.
        counts: number of prefixes per length class that are used, one or more in all [class].
    """
    used = [of_class[count - 1] for of_class, count in zip(sums, counts.tolist(), strict=True) if count]
    return np.sum(used, axis=0).max(axis=1)


def _draw_prefixes(pool: Pool, length_class: int, places: int, seed: int) -> np.ndarray:
    """Draws prefixes of the pool into the places of one length class [place, draw]."""
    generator = random_stream(seed, Purpose.SIMILARITY, length_class)
    low, high = pool.starts[length_class : length_class + 2]
    return generator.integers(low, high, (places, NULL_DRAWS))
