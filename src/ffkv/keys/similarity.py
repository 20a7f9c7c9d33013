"""Whether the prefixes of a key are more similar to each other than random prefixes are, apart from shared words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ffkv.keys.chance import LENGTH_CLASSES, length_class
from ffkv.keys.draws import NULL_DRAWS, Pool, draw_blocks, mean_cosine
from ffkv.keys.topics import Space, content_words
from ffkv.streams import Purpose, random_stream

CHANCE = 0.05  # share of random prefixes that are near enough to a key's prefixes to count as members
ROUNDING = 1e-5  # similarities that differ by less are equal

Prefixes = Sequence[Sequence[str]]  # words of each prefix


@dataclass(frozen=True)
class PlacedKey:
    """The prefixes of a key that have words which no other prefix of the key has, in the latent space.

    Attributes:
        numbers: number of each prefix in the key's list [prefix].
        vectors: vectors of length 1 [prefix, dimension].
        classes: length class of each prefix [prefix].
    """

    numbers: np.ndarray
    vectors: np.ndarray
    classes: np.ndarray


def fill_pool(space: Space, prefixes: Prefixes, key_prefixes: int, seed: int) -> Pool:
    """Puts random prefixes into a latent space.

    The prefixes are grouped as random keys and lose the words that they share there, as the prefixes of a key do.

    Args:
        prefixes: words of random prefixes [prefix][word].
        key_prefixes: number of prefixes per key.
    """
    # The same stream as that of the draws of length class 0. Another one would change the numbers of figure 2.
    shuffled = random_stream(seed, Purpose.SIMILARITY).permutation(len(prefixes)).tolist()
    keys = [
        [prefixes[number] for number in shuffled[start : start + key_prefixes]]
        for start in range(0, len(prefixes), key_prefixes)
    ]
    vectors, words = space.locate([content for key in keys for content in unshared_words(key)])
    classes = _length_classes(vectors, np.diff(words.indptr))
    order = np.argsort(classes, kind="stable")
    order = order[classes[order] >= 0]
    return Pool(space, vectors[order], words[order], np.searchsorted(classes[order], np.arange(LENGTH_CLASSES + 1)))


def place_prefixes(keys: Sequence[Prefixes], pool: Pool) -> list[PlacedKey]:
    """Puts the prefixes of keys [key][prefix][word] into the latent space, without words that they share within a key.

    A prefix is left out if it has no known word left, or if the pool has no prefix of its length class.
    """
    vectors, words = pool.space.locate([content for key in keys for content in unshared_words(key)])
    classes = _length_classes(vectors, np.diff(words.indptr))
    usable = (classes >= 0) & (np.diff(pool.starts) > 0)[classes]
    placed, end = [], 0
    for key in keys:
        start, end = end, end + len(key)
        numbers = np.flatnonzero(usable[start:end])
        placed.append(PlacedKey(numbers, vectors[start + numbers], classes[start + numbers]))
    return placed


def unshared_words(key: Prefixes) -> list[list[str]]:
    """The content words of each prefix that no other prefix of the key has [prefix][word].

    Shallow patterns are made of shared words. So prefixes that are similar without them are similar by different words.
    """
    contents = [content_words(prefix) for prefix in key]
    uses = Counter(word for content in contents for word in set(content))
    return [[word for word in content if uses[word] == 1] for content in contents]


def similarity_p_values(keys: Sequence[PlacedKey], pool: Pool, minimum: int, seed: int) -> np.ndarray:
    """Probability that random prefixes are as similar to each other as those of each key [key].

    Each key is compared with `NULL_DRAWS` random keys, which have as many prefixes of each length class. The p-value is
    (1 + number of draws at least as similar) / (1 + number of draws). A key with fewer than `minimum` prefixes has 1.
    """
    counts = np.array([np.bincount(key.classes, minlength=LENGTH_CLASSES) for key in keys], int)
    counts = counts.reshape(-1, LENGTH_CLASSES)
    tested = np.flatnonzero(counts.sum(axis=1) >= minimum).tolist()
    similarity = {key: mean_cosine(keys[key].vectors) for key in tested}
    reached = np.full(len(keys), NULL_DRAWS)
    reached[tested] = 0
    for block in draw_blocks(pool, counts.max(axis=0, initial=0), seed):
        for key in tested:
            reached[key] += np.count_nonzero(block.similarity(counts[key]) >= similarity[key] - ROUNDING)
    return (1 + reached) / (1 + NULL_DRAWS)


def find_members(key: PlacedKey, pool: Pool) -> np.ndarray:
    """Finds the prefixes of a key that belong to its topic, as numbers among those of `key` [member].

    A prefix is a member if it is nearer to the sum of the key's other vectors than a share of 1 - `CHANCE` of the
    pool's prefixes of the same length class.
    """
    others = key.vectors.sum(axis=0) - key.vectors
    nearness = np.einsum("pd,pd->p", key.vectors, others)
    threshold = np.empty(len(nearness))
    with threadpool_limits(1):
        for number in np.unique(key.classes).tolist():
            of_class = key.classes == number
            threshold[of_class] = np.quantile(pool.of_class(number) @ others[of_class].T, 1 - CHANCE, axis=0)
    return np.flatnonzero(nearness > threshold)


def _length_classes(vectors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The class of each prefix by its number of known words: 1, 2, 3-4, 5-8 and so on; -1 if there is none [prefix]."""
    return np.where(vectors.any(axis=1), length_class(np.maximum(words - 1, 0)), -1)
