"""Whether the prefixes of a key are about similar things, more than random ones are, beyond the words that they share."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from ffkv.keys.chance import LENGTHS, length_class
from ffkv.keys.draws import DRAWS, Pool, blocks, mean_cosine
from ffkv.keys.key_sample import SIMILARITY
from ffkv.keys.topics import Space, content_words

CHANCE = 0.05  # share of random prefixes that are near enough to a key's prefixes to belong to them
ROUNDING = 1e-5  # similarities that differ by less count as equal

Prefixes = Sequence[Sequence[str]]  # their words


@dataclass(frozen=True)
class Placed:
    """The prefixes of a key that say something beyond the words that they share.

    numbers: which of the key's they are [prefix]. vectors: of unit length [prefix, dimension]. classes: of length
    [prefix].
    """

    numbers: np.ndarray
    vectors: np.ndarray
    classes: np.ndarray


def fill_pool(space: Space, prefixes: Prefixes, together: int, seed: int) -> Pool:
    """Puts random prefixes into a latent space, without the words that they share with others, as those of keys.

    Args:
        together: how many prefixes a key has. As many random ones make a random key.
    """
    shuffled = np.random.default_rng([seed, SIMILARITY]).permutation(len(prefixes)).tolist()
    keys = [[prefixes[number] for number in shuffled[at : at + together]] for at in range(0, len(prefixes), together)]
    vectors, words = space.of([content for key in keys for content in unshared(key)])
    classes = _classes(vectors, np.diff(words.indptr))
    order = np.argsort(classes, kind="stable")
    order = order[classes[order] >= 0]
    return Pool(space, vectors[order], words[order], np.searchsorted(classes[order], np.arange(LENGTHS + 1)))


def place(keys: Sequence[Prefixes], pool: Pool) -> list[Placed]:
    """Puts the prefixes of keys into the latent space, without what two or more prefixes of a key share.

    A prefix with no known word left takes no part, nor does one of a class of length of which the pool has none.
    """
    vectors, words = pool.space.of([content for key in keys for content in unshared(key)])
    classes = _classes(vectors, np.diff(words.indptr))
    usable = (classes >= 0) & (np.diff(pool.starts) > 0)[classes]
    placed, end = [], 0
    for key in keys:
        start, end = end, end + len(key)
        numbers = np.flatnonzero(usable[start:end])
        placed.append(Placed(numbers, vectors[start + numbers], classes[start + numbers]))
    return placed


def unshared(key: Prefixes) -> list[list[str]]:
    """The content words of each prefix of a key that no other prefix of it has.

    Shared words are what shallow patterns are made of: what is similar without them is so by different words.
    """
    contents = [content_words(prefix) for prefix in key]
    uses = Counter(word for content in contents for word in set(content))
    return [[word for word in content if uses[word] == 1] for content in contents]


def similarity_p_values(keys: Sequence[Placed], pool: Pool, minimum: int, seed: int) -> np.ndarray:
    """How probable it is that random prefixes are as similar to each other as those of a key are [key].

    Each key is compared with `DRAWS` draws of as many prefixes of each class of length from the pool: (1 + draws at
    least as similar) / (1 + draws). Keys of fewer than `minimum` prefixes have 1.
    """
    counts = np.array([np.bincount(key.classes, minlength=LENGTHS) for key in keys], int).reshape(-1, LENGTHS)
    tested = np.flatnonzero(counts.sum(axis=1) >= minimum).tolist()
    own = {key: mean_cosine(keys[key].vectors) for key in tested}
    reached = np.full(len(keys), DRAWS)
    reached[tested] = 0
    for block in blocks(pool, counts.max(axis=0, initial=0), seed):
        for key in tested:
            reached[key] += np.count_nonzero(block.similarity(counts[key]) >= own[key] - ROUNDING)
    return (1 + reached) / (1 + DRAWS)


def members(key: Placed, pool: Pool) -> np.ndarray:
    """The prefixes that belong together, as numbers among those of `key` [member].

    A member is nearer to the sum of the others than a share of 1 - `CHANCE` of the pool's prefixes of its class is.
    """
    others = key.vectors.sum(axis=0) - key.vectors
    near = np.einsum("pd,pd->p", key.vectors, others)
    enough = np.empty(len(near))
    with threadpool_limits(1):
        for number in np.unique(key.classes).tolist():
            of_class = key.classes == number
            enough[of_class] = np.quantile(pool.of_class(number) @ others[of_class].T, 1 - CHANCE, axis=0)
    return np.flatnonzero(near > enough)


def _classes(vectors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The class of length of prefixes of so many known words: 1, 2, 3-4, 5-8 and so on; -1 for those of none [prefix]."""
    return np.where(vectors.any(axis=1), length_class(np.maximum(words - 1, 0)), -1)
