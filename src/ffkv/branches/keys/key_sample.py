"""Samples: which keys are analysed, in which prefixes, and the random prefixes that are compared with them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ffkv.activations.trigger_file import Triggers
from ffkv.base.streams import Purpose, random_stream
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import words

DRAWS_PER_EXAMPLE = 4  # random prefixes drawn for each one that is needed, because some are from the same sentence


class Examples(NamedTuple):
    """The prefixes of one key, which are analysed together."""

    sample: str  # "trigger" for a key's trigger examples, "random" for random prefixes in their place
    memory: int  # number of the memory in its layer, or number of the random key
    ranks: list[int]  # rank of each prefix among the key's trigger examples, from 0 [prefix]
    prefixes: list[list[str]]  # words of each prefix [prefix][word]


def sample_keys(triggers: Triggers, layer: int, count: int, seed: int) -> np.ndarray:
    """Draws keys of a layer among those that have a trigger, all of them if there are no more than `count`.

    Returns numbers of the memories in the layer, ascending [key].
    """
    alive = np.flatnonzero(triggers.count[triggers.rows(layer)])
    generator = random_stream(seed, Purpose.SAMPLED_KEYS, layer)
    return np.sort(generator.choice(alive, min(count, len(alive)), replace=False))


def sample_examples(
    triggers: Triggers, competing: CompetingPrefixes, layer: int, keys: int, count: int, seed: int
) -> list[Examples]:
    """Draws `keys` keys of a layer, if so many are alive, with `count` trigger examples each; and as many random keys.

    Trigger examples are chosen from the competing prefixes. Random keys are drawn from the same ones.
    """
    count = min(count, triggers.sentence.shape[1])
    memories = sample_keys(triggers, layer, keys, seed)
    return [
        *(trigger_examples(triggers, competing.corpus, layer, memory, count) for memory in memories.tolist()),
        *random_examples(competing, len(memories), count, seed, layer),
    ]


def trigger_examples(triggers: Triggers, corpus: Corpus, layer: int, memory: int, count: int) -> Examples:
    """Returns the first `count` trigger examples of a key that are from different sentences.

    Prefixes of one sentence repeat each other. So only the highest one of each sentence counts as evidence.
    """
    row = triggers.layer_offset[layer] + memory
    sentences = triggers.sentence[row, : triggers.count[row]]
    ranks = first_of_each(sentences)[:count]
    prefixes = prefix_words(corpus, sentences[ranks], triggers.position[row, ranks])
    return Examples("trigger", memory, ranks.tolist(), prefixes)


def random_examples(competing: CompetingPrefixes, keys: int, count: int, seed: int, layer: int) -> list[Examples]:
    """Draws random keys: `count` random prefixes each, all from different sentences, as triggers are.

    A key has fewer than `count` prefixes only if the corpus has hardly more than `count` sentences.
    """
    generator = random_stream(seed, Purpose.RANDOM_EXAMPLES, layer)
    numbers = generator.integers(0, len(competing), (keys, DRAWS_PER_EXAMPLE * count))
    examples = []
    for key, (sentences, positions) in enumerate(zip(*competing.locate(numbers), strict=True)):
        first = first_of_each(sentences)[:count]
        prefixes = prefix_words(competing.corpus, sentences[first], positions[first])
        examples.append(Examples("random", key, list(range(len(first))), prefixes))
    return examples


def first_of_each(sentences: np.ndarray) -> np.ndarray:
    """Returns the places where each sentence occurs for the first time, ascending."""
    return np.sort(np.unique(sentences, return_index=True)[1])


def background_prefixes(competing: CompetingPrefixes, count: int, seed: int) -> list[list[str]]:
    """Draws the words of `count` random competing prefixes, without repeats; all of them if there are no more."""
    generator = random_stream(seed, Purpose.BACKGROUND_PREFIXES)
    total = len(competing)
    numbers = np.sort(generator.choice(total, min(count, total), replace=False))
    return prefix_words(competing.corpus, *competing.locate(numbers))


def prefix_words(corpus: Corpus, sentences: Iterable[int], positions: Iterable[int]) -> list[list[str]]:
    """Returns the words of each prefix [prefix][word]."""
    return [
        words(corpus.prefix_text(sentence, position), corpus.pretokenized)
        for sentence, position in zip(sentences, positions)
    ]


def trigger_prefixes(
    triggers: Triggers, corpus: Corpus, layer: int, keys: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Returns the first `count` triggers of each of some keys of a layer [key], ordered by key and rank.

    These are the memory of each trigger, as a number in the layer [trigger]; its coefficient [trigger]; and its token ids
    without BOS [trigger][token].
    """
    rows = triggers.layer_offset[layer] + keys
    counts = np.minimum(triggers.count[rows], count)
    places = [(row, rank) for row, ranks in zip(rows, counts, strict=True) for rank in range(ranks)]
    ids = [corpus.ids(triggers.sentence[place])[: triggers.position[place]] for place in places]
    coefficients = np.array([triggers.coefficient[place] for place in places], np.float32)
    return np.repeat(keys, counts), coefficients, ids
