"""Patterns in the trigger examples of a key (paper section 3.2, figure 2), found without an annotator.

The paper's annotators looked for what recurs in at least 3 of a key's 25 trigger examples. Here a pattern is a feature
that recurs in at least as many, and more often than chance explains. A topic is a pattern if a key's prefixes speak more for it than
random ones do, words of shallow patterns apart.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binom

from ffkv.base.files import tables
from ffkv.base.multiple_tests import q_values
from ffkv.base.process.progress import progress
from ffkv.branches.given import Given
from ffkv.branches.keys.features import KINDS, Background, Evidence, Feature, count_background, shallow_evidence
from ffkv.branches.keys.key_sample import Examples, background_prefixes, sample_examples
from ffkv.branches.keys.settings import Keys
from ffkv.branches.keys.tables import BY_PREFIX, PATTERNS
from ffkv.branches.keys.topics import CHANCE, Pool, fill_pool, find_members, fit_topics, place_prefixes, topic_p_values
from ffkv.corpus.competing import CompetingPrefixes


class Pattern(NamedTuple):
    """A feature that recurs in a key's prefixes more often than by chance."""

    feature: Feature  # kind and text
    members: tuple[int, ...]  # the prefixes that have the feature, as numbers from 0 in the key's list
    chance: float  # mean probability that a random prefix has the feature, over the lengths of the key's prefixes
    p_value: float  # probability that random prefixes show the pattern as clearly
    q_value: float  # expected share of false patterns among the layer's patterns that are at least as significant

    @property
    def family(self) -> str:
        """ "shallow" if the pattern is about words, "semantic" if it is about a topic."""
        return KINDS[self.feature[0]].family

    @property
    def label(self) -> str:
        """The pattern in words, such as: ends with “of”."""
        kind, text = self.feature
        return KINDS[kind].phrase.format(text)


class Detector(NamedTuple):
    """Everything that the test for patterns needs besides the keys."""

    background: Background  # the features of random prefixes
    pool: Pool  # how much random prefixes speak for each topic
    minimum_prefixes: int  # minimum number of prefixes per pattern
    false_discovery_rate: float  # Benjamini-Hochberg level per layer and family
    seed: int  # the run's seed


def find_patterns(given: Given, settings: Keys = Keys(), seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Finds patterns in the trigger examples of random keys, and in as many random keys (paper section 3.2).

    `settings`: all but `removal_triggers` are used. Returns the tables `PATTERNS` and `BY_PREFIX`.
    """
    examples, patterns, prefixes = given.triggers, [], []
    competing = CompetingPrefixes(given.train, examples.settings.shared_prefixes_compete == "once")
    with progress(1, "corpora", "what is frequent by chance") as bar:
        detector = prepare_detector(competing, settings, seed)
        bar.update()
    for layer in given.each_layer("patterns"):
        keys = sample_examples(examples, competing, layer, settings.per_layer, settings.pattern_triggers, seed)
        patterns_of_keys = detect_patterns([key.prefixes for key in keys], detector)
        patterns += pattern_rows(layer, keys, patterns_of_keys)
        prefixes += prefix_rows(layer, keys, patterns_of_keys)
    return (
        tables.frame(PATTERNS, patterns, given.train_identity),
        tables.frame(BY_PREFIX, prefixes, given.train_identity),
    )


def prepare_detector(competing: CompetingPrefixes, settings: Keys, seed: int) -> Detector:
    """Measures, in random competing prefixes, how frequent features are by chance, and how much speaks for a topic."""
    prefixes = background_prefixes(competing, settings.background_prefixes, seed)
    return Detector(
        background=count_background(shallow_evidence(prefix, competing.corpus.language) for prefix in prefixes),
        pool=fill_pool(fit_topics(competing.corpus, seed), prefixes),
        minimum_prefixes=settings.minimum_prefixes,
        false_discovery_rate=settings.false_discovery_rate,
        seed=seed,
    )


def detect_patterns(keys: Sequence[Sequence[Sequence[str]]], detector: Detector) -> list[list[Pattern]]:
    """Finds the patterns of the keys of one layer (paper section 3.2).

    `keys`: words of the prefixes of each key [key][prefix][word]. All keys are tested together. Returns the patterns of each
    key [key][pattern]. Shallow patterns come first, ordered by significance and without repetitions; then topics, if any.
    """
    language = detector.pool.topics.language
    evidence = [[shallow_evidence(prefix, language) for prefix in key] for key in keys]
    shallow = detect_shallow(evidence, detector)
    topics = detect_topics(keys, [words_of(patterns) for patterns in shallow], detector)
    return [keep_distinct(patterns) + topic for patterns, topic in zip(shallow, topics, strict=True)]


def words_of(patterns: Sequence[Pattern]) -> frozenset[str]:
    """Returns the words that shallow patterns are made of, in lower case. A word class is made of none."""
    texts = [text for kind, text in (pattern.feature for pattern in patterns) if kind != "word class"]
    return frozenset(word for text in texts for word in text.split())


def detect_topics(
    keys: Sequence[Sequence[Sequence[str]]], explained: Sequence[Collection[str]], detector: Detector
) -> list[list[Pattern]]:
    """Finds the topics of keys whose prefixes speak more for one topic than chance explains.

    Each key is one hypothesis of the Benjamini-Hochberg correction. The prefixes of a key with a topic that do not
    belong to it are tested again, as a key of their own among those of all such keys, until nothing more is found.

    `keys`: words of the prefixes of each key [key][prefix][word]. `explained`: words of each key that count for no topic:
    those of its shallow patterns [key]. Returns the topics of each key, the first one found first; no two share a prefix
    [key][pattern].
    """
    patterns: list[list[Pattern]] = [[] for _ in keys]
    # The prefixes without a topic, of each key to test.
    left = {number: [*range(len(key))] for number, key in enumerate(keys)}
    while left:
        tested = [[keys[number][prefix] for prefix in prefixes] for number, prefixes in left.items()]
        found = _detect_one_topic(tested, [explained[number] for number in left], detector)
        without = {}
        for (number, prefixes), pattern in zip(left.items(), found, strict=True):
            if pattern is not None:
                members = tuple(prefixes[place] for place in pattern.members)
                patterns[number].append(pattern._replace(members=members))
                without[number] = [prefix for prefix in prefixes if prefix not in members]
        left = {number: rest for number, rest in without.items() if len(rest) >= detector.minimum_prefixes}
    return patterns


def _detect_one_topic(
    keys: Sequence[Sequence[Sequence[str]]], explained: Sequence[Collection[str]], detector: Detector
) -> list[Pattern | None]:
    """Finds the clearest topic of each key, if it has any. Arguments as for `detect_topics`."""
    placed = place_prefixes(keys, explained, detector.pool)
    p = topic_p_values(placed, detector.pool, detector.minimum_prefixes, detector.seed)
    q = q_values(p, len(keys))
    patterns: list[Pattern | None] = [None] * len(keys)
    for index in np.flatnonzero(q <= detector.false_discovery_rate).tolist():
        key = placed[index]
        members = find_members(key, detector.pool)
        if len(members) >= detector.minimum_prefixes:
            topic = detector.pool.topics.names[key.topic]
            numbers = tuple(key.numbers[members].tolist())
            patterns[index] = Pattern(("topic", topic), numbers, CHANCE, float(p[index]), float(q[index]))
    return patterns


def detect_shallow(keys: Sequence[Sequence[Evidence]], detector: Detector) -> list[list[Pattern]]:
    """Finds the shallow features that recur more often than chance explains.

    The Benjamini-Hochberg correction counts every feature of the background and of the keys, for every key, as a
    hypothesis. Counting only the features that recur would choose the hypotheses by their result.

    `keys`: features of the prefixes of each key [key][prefix]. Returns the patterns of each key, in the order of their first
    occurrence [key][pattern].
    """
    candidates = [
        (number, feature, members)
        for number, key in enumerate(keys)
        for feature, members in find_recurring(key, detector.minimum_prefixes).items()
    ]
    background = detector.background
    words = [np.array([evidence.words for evidence in key]) for key in keys]
    chances = np.array([background.chance(feature, words[number]) for number, feature, _ in candidates])
    occurrences = np.array([len(members) for _, _, members in candidates])
    prefixes = np.array([len(keys[number]) for number, _, _ in candidates])
    p = p_value(occurrences, prefixes, chances)
    possible = background.features.union(*(evidence.features for key in keys for evidence in key))
    q = q_values(p, len(keys) * len(possible))
    patterns: list[list[Pattern]] = [[] for _ in keys]
    for index in np.flatnonzero(q <= detector.false_discovery_rate).tolist():
        number, feature, members = candidates[index]
        patterns[number].append(Pattern(feature, members, float(chances[index]), float(p[index]), float(q[index])))
    return patterns


def p_value(occurrences: np.ndarray, prefixes: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Probability that at least `occurrences` of `prefixes` random prefixes have a feature. All arrays have one shape.

    This is the binomial tail at the mean probability `chance`. Where the probabilities differ between prefixes, the
    true tail is smaller for every count that exceeds the expected count by 1 or more (Hoeffding 1956, theorem 4).
    """
    return binom.sf(np.asarray(occurrences) - 1, prefixes, chance)


def find_recurring(key: Sequence[Evidence], minimum: int) -> dict[Feature, tuple[int, ...]]:
    """Finds the features that at least `minimum` prefixes of a key have. Maps each one to the prefixes' numbers."""
    members = defaultdict(list)
    for number, evidence in enumerate(key):
        for feature in dict.fromkeys(evidence.features):
            members[feature].append(number)
    return {feature: tuple(numbers) for feature, numbers in members.items() if len(numbers) >= minimum}


def keep_distinct(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Drops shallow patterns that say nothing new, and orders the others by significance.

    Of several patterns in exactly the same prefixes, the most specific kind is kept. Then a pattern is dropped if its
    prefixes are all among those of a more significant pattern.
    """
    specificity = list(KINDS)
    most_specific: dict[tuple[int, ...], Pattern] = {}
    for pattern in sorted(patterns, key=lambda pattern: specificity.index(pattern.feature[0])):
        most_specific.setdefault(pattern.members, pattern)
    kept: list[Pattern] = []
    for pattern in sorted(most_specific.values(), key=lambda pattern: pattern.p_value):
        if not any(set(pattern.members) <= set(other.members) for other in kept):
            kept.append(pattern)
    return kept


def categorize(patterns: Sequence[Pattern], prefixes: int) -> list[str]:
    """Returns the category of each prefix of a key: the families of all patterns that it has (figure 2)."""
    families: list[set[str]] = [set() for _ in range(prefixes)]
    for pattern in patterns:
        for number in pattern.members:
            families[number].add(pattern.family)
    return [" and ".join(sorted(names, reverse=True)) or "none" for names in families]


def pattern_rows(layer: int, keys: Sequence[Examples], patterns: Sequence[Sequence[Pattern]]) -> list[dict[str, Any]]:
    """Returns the rows of `PATTERNS` of a layer, from its keys [key] and their patterns [key][pattern]."""
    return [
        {
            "sample": key.sample,
            "layer": layer,
            "memory": key.memory,
            "pattern": number,
            "kind": pattern.feature[0],
            "family": pattern.family,
            "label": pattern.label,
            "prefixes": len(pattern.members),
            "chance": pattern.chance,
            "p_value": pattern.p_value,
            "q_value": pattern.q_value,
            "ranks": [key.ranks[member] for member in pattern.members],
        }
        for key, patterns_of_key in zip(keys, patterns, strict=True)
        for number, pattern in enumerate(patterns_of_key)
    ]


def prefix_rows(layer: int, keys: Sequence[Examples], patterns: Sequence[Sequence[Pattern]]) -> list[dict[str, Any]]:
    """Returns the rows of `BY_PREFIX` of a layer, from its keys [key] and their patterns [key][pattern]."""
    return [
        {"sample": key.sample, "layer": layer, "memory": key.memory, "rank": rank, "category": category}
        for key, patterns_of_key in zip(keys, patterns, strict=True)
        for rank, category in zip(key.ranks, categorize(patterns_of_key, len(key.ranks)), strict=True)
    ]
