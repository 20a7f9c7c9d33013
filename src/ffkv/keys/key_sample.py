"""Which keys are looked at, in which prefixes, and the random prefixes beside them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ffkv.activations.trigger_file import Triggers
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import words

# What a random choice is for: with the run's seed (and the layer) it makes a stream of its own.
KEYS, RANDOM, BACKGROUND, REMOVAL, SIMILARITY = range(5)
DRAWS = 4  # random prefixes that are drawn for each that is wanted, because some are of one sentence


class Examples(NamedTuple):
    """Prefixes that are looked at together.

    sample: "trigger" for a key's trigger examples, "random" for random prefixes in their place.
    memory: the key's number in its layer, or the number of the random draw.
    ranks: of the triggers in the key's list; prefixes: their words. Same length.
    """

    sample: str
    memory: int
    ranks: list[int]
    prefixes: list[list[str]]


def sampled_keys(triggers: Triggers, layer: int, count: int, seed: int) -> np.ndarray:
    """Random keys of a layer among those that have a trigger, ascending; all of them where there are no more."""
    alive = np.flatnonzero(triggers.count[triggers.rows(layer)])
    generator = np.random.default_rng([seed, KEYS, layer])
    return np.sort(generator.choice(alive, min(count, len(alive)), replace=False))


def sampled_examples(
    triggers: Triggers, corpus: Corpus, layer: int, keys: int, count: int, seed: int
) -> list[Examples]:
    """The trigger examples of up to `keys` random keys of a layer, and as many times random prefixes in their place."""
    count = min(count, triggers.sentence.shape[1])
    chosen = sampled_keys(triggers, layer, keys, seed)
    return [
        *(trigger_examples(triggers, corpus, layer, memory, count) for memory in chosen.tolist()),
        *random_examples(corpus, len(chosen), count, seed, layer),
    ]


def trigger_examples(triggers: Triggers, corpus: Corpus, layer: int, memory: int, count: int) -> Examples:
    """The first `count` trigger examples of a key that are from different sentences.

    Prefixes of one sentence repeat each other, so that only the highest one of each sentence is evidence.
    """
    row = triggers.layer_offset[layer] + memory
    sentences = triggers.sentence[row, : triggers.count[row]]
    ranks = first_of_each(sentences)[:count]
    found = prefix_words(corpus, sentences[ranks], triggers.position[row, ranks])
    return Examples("trigger", memory, ranks.tolist(), found)


def random_examples(corpus: Corpus, keys: int, count: int, seed: int, layer: int) -> list[Examples]:
    """As many random prefixes as `keys` keys would have, drawn as triggers are: each of another sentence.

    They are fewer than `count` only where the corpus has hardly more sentences than that.
    """
    generator = np.random.default_rng([seed, RANDOM, layer])
    drawn = generator.integers(0, prefixes_of(corpus), (keys, DRAWS * count))
    examples = []
    for number, (sentences, positions) in enumerate(zip(*prefixes_at(corpus, drawn), strict=True)):
        chosen = first_of_each(sentences)[:count]
        found = prefix_words(corpus, sentences[chosen], positions[chosen])
        examples.append(Examples("random", number, list(range(len(chosen))), found))
    return examples


def first_of_each(sentences: np.ndarray) -> np.ndarray:
    """Where each sentence occurs for the first time, in order."""
    return np.sort(np.unique(sentences, return_index=True)[1])


def background_prefixes(corpus: Corpus, count: int, seed: int) -> list[list[str]]:
    """The words of different random prefixes of a corpus, all of them where there are no more than `count`."""
    generator = np.random.default_rng([seed, BACKGROUND])
    total = prefixes_of(corpus)
    chosen = np.sort(generator.choice(total, min(count, total), replace=False))
    return prefix_words(corpus, *prefixes_at(corpus, chosen))


def prefixes_of(corpus: Corpus) -> int:
    """How many prefixes a corpus has that are neither empty nor a whole sentence."""
    return len(corpus.tokens) - len(corpus)


def prefixes_at(corpus: Corpus, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sentence and position of the prefixes of these numbers, counted from 0 over the corpus. Any shape."""
    starts = corpus.offsets - np.arange(len(corpus.offsets))
    sentences = np.searchsorted(starts, numbers, side="right") - 1
    return sentences, numbers - starts[sentences] + 1


def prefix_words(corpus: Corpus, sentences: Sequence[int], positions: Sequence[int]) -> list[list[str]]:
    """The words of each prefix."""
    return [
        words(corpus.prefix_text(sentence, position), corpus.pretokenized)
        for sentence, position in zip(sentences, positions)
    ]


def trigger_prefixes(
    triggers: Triggers, corpus: Corpus, layer: int, keys: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The first `count` triggers of each of some keys of a layer.

    Returns:
        Whose trigger each one is, as a number in the layer [trigger], its coefficient [trigger], and its token ids
        without BOS [trigger][token].
    """
    rows = triggers.layer_offset[layer] + keys
    counts = np.minimum(triggers.count[rows], count)
    places = [(row, rank) for row, found in zip(rows, counts, strict=True) for rank in range(found)]
    ids = [corpus.ids(triggers.sentence[place])[: triggers.position[place]] for place in places]
    coefficients = np.array([triggers.coefficient[place] for place in places], np.float32)
    return np.repeat(keys, counts), coefficients, ids


def removal_stream(seed: int, layer: int) -> np.random.Generator:
    """What the random tokens of a layer are chosen by."""
    return np.random.default_rng([seed, REMOVAL, layer])
