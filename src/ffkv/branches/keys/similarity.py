"""Tests whether a key's prefixes speak more for one topic than random ones do, words of shallow patterns apart."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ffkv.branches.keys.chance import LENGTH_CLASSES, length_class
from ffkv.branches.keys.draws import NULL_DRAWS, Pool, draw_blocks, strongest
from ffkv.branches.keys.topics import Topics, content_words

CHANCE = 0.05  # share of random prefixes that speak enough for a key's topic to count as members
ROUNDING = 1e-3  # sums of scores that differ by less are equal

Prefixes = Sequence[Sequence[str]]  # words of each prefix


@dataclass(frozen=True)
class PlacedKey:
    """The prefixes of a key that have known words, apart from those of its shallow patterns."""

    numbers: np.ndarray  # number of each prefix in the key's list [prefix]
    scores: np.ndarray  # how much each prefix speaks for each topic [prefix, topic]
    classes: np.ndarray  # length class of each prefix [prefix]

    @property
    def topic(self) -> int:
        """The topic that the prefixes together speak most for."""
        return int(self.scores.sum(axis=0, dtype=float).argmax())


def fill_pool(topics: Topics, prefixes: Prefixes) -> Pool:
    """Scores random prefixes [prefix][word].

    They keep all their words: random keys hardly ever have a shallow pattern.
    """
    scores, known = topics.score([content_words(prefix, topics.language) for prefix in prefixes])
    classes = _length_classes(known)
    order = np.argsort(classes, kind="stable")
    order = order[classes[order] >= 0]
    return Pool(topics, scores[order], np.searchsorted(classes[order], np.arange(LENGTH_CLASSES + 1)))


def place_prefixes(keys: Sequence[Prefixes], explained: Sequence[Collection[str]], pool: Pool) -> list[PlacedKey]:
    """Scores the prefixes of keys.

    A prefix is left out if it has no known word left, or if the pool has no prefix of its length class.

    Args:
        keys: words of the prefixes of each key [key][prefix][word].
        explained: words of each key that count for no topic, in lower case [key]. See `Topics.score`.
        pool: what random prefixes say.
    """
    topics = pool.topics
    content = [content_words(prefix, topics.language) for key in keys for prefix in key]
    of_key = [words for key, words in zip(keys, explained, strict=True) for _ in key]
    counted, told = (
        [[word for word in own if (word in words) == told] for own, words in zip(content, of_key, strict=True)]
        for told in (False, True)
    )
    scores, known = topics.score(counted, told)
    classes = _length_classes(known)
    usable = (classes >= 0) & (np.diff(pool.starts) > 0)[classes]
    placed, end = [], 0
    for key in keys:
        start, end = end, end + len(key)
        numbers = np.flatnonzero(usable[start:end])
        placed.append(PlacedKey(numbers, scores[start + numbers], classes[start + numbers]))
    return placed


def topic_p_values(keys: Sequence[PlacedKey], pool: Pool, minimum: int, seed: int) -> np.ndarray:
    """Probability that random prefixes speak as much for any one topic as those of each key [key].

    Each key is compared with `NULL_DRAWS` random keys, which have as many prefixes of each length class. The p-value is
    (1 + number of draws that speak at least as much for some topic) / (1 + number of draws). A key with fewer than
    `minimum` prefixes has 1.
    """
    counts = np.array([np.bincount(key.classes, minlength=LENGTH_CLASSES) for key in keys], int)
    counts = counts.reshape(len(keys), LENGTH_CLASSES)
    tested = np.flatnonzero(counts.sum(axis=1) >= minimum).tolist()
    highest = {key: float(keys[key].scores.sum(axis=0).max()) for key in tested}
    reached = np.full(len(keys), NULL_DRAWS)
    reached[tested] = 0
    for block in draw_blocks(pool, counts.max(axis=0, initial=0), seed):
        for key in tested:
            reached[key] += np.count_nonzero(strongest(block, counts[key]) >= highest[key] - ROUNDING)
    return (1 + reached) / (1 + NULL_DRAWS)


def find_members(key: PlacedKey, pool: Pool) -> np.ndarray:
    """Finds the prefixes of a key that belong to its topic, as numbers among those of `key` [member].

    A prefix is a member if it speaks more for the topic than a share of 1 - `CHANCE` of the pool's prefixes of the same
    length class.
    """
    of_topic = key.scores[:, key.topic]
    threshold = np.empty(len(of_topic))
    for number in np.unique(key.classes).tolist():
        threshold[key.classes == number] = np.quantile(pool.of_class(number)[:, key.topic], 1 - CHANCE)
    return np.flatnonzero(of_topic > threshold)


def _length_classes(known: np.ndarray) -> np.ndarray:
    """Returns the class of each prefix [prefix] by its known words: 1, 2, 3-4, 5-8 and so on; -1 without any."""
    return np.where(known > 0, length_class(np.maximum(known - 1, 0)), -1)
