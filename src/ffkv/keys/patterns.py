"""Patterns in the trigger examples of a key (paper section 3.2, figure 2), found without an annotator.

The paper's annotators looked for what recurs in at least 3 of a key's 25 trigger examples. Here a pattern is a feature
that recurs in as many and does so more often than chance allows.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ffkv.corpus.corpus_file import Corpus
from ffkv.keys.chance import Background, count_background, p_value, q_values
from ffkv.keys.draws import Pool
from ffkv.keys.features import KINDS, Evidence, Feature, shallow_evidence
from ffkv.keys.key_sample import background_prefixes
from ffkv.keys.similarity import CHANCE, fill_pool, members, place, similarity_p_values
from ffkv.keys.topics import fit_space
from ffkv.settings import Keys

CATEGORIES = ("shallow", "shallow and semantic", "semantic", "none")


class Pattern(NamedTuple):
    """A feature that recurs in a key's prefixes more often than by chance.

    members: the prefixes that have it, as numbers from 0 in the key's list. chance: mean probability that a random
    prefix of their lengths has it. q_value: share of false patterns among those at least as significant in the layer.
    """

    feature: Feature
    members: tuple[int, ...]
    chance: float
    p_value: float
    q_value: float

    @property
    def family(self) -> str:
        """Whether it is about words ("shallow") or about a topic ("semantic")."""
        kind, _ = self.feature
        return KINDS[kind].family


class Detector(NamedTuple):
    """What patterns are measured by: what is frequent by chance, and how much is enough.

    background: words of random prefixes. pool: what random prefixes are about. minimum_prefixes: how many prefixes of
    a key a pattern stands in, at least. false_discovery_rate: of the patterns of a layer and family.
    """

    background: Background
    pool: Pool
    minimum_prefixes: int
    false_discovery_rate: float
    seed: int


def prepare(corpus: Corpus, settings: Keys, seed: int) -> Detector:
    """Learns from random prefixes of a corpus what is frequent, and how alike prefixes are, by chance."""
    prefixes = background_prefixes(corpus, settings.background_prefixes, seed)
    return Detector(
        count_background(shallow_evidence(prefix) for prefix in prefixes),
        fill_pool(fit_space(corpus, prefixes, seed), prefixes, settings.pattern_triggers, seed),
        settings.minimum_prefixes,
        settings.false_discovery_rate,
        seed,
    )


def find_patterns(keys: Sequence[Sequence[Sequence[str]]], detector: Detector) -> list[list[Pattern]]:
    """The patterns of the keys of one layer.

    Args:
        keys: words of the prefixes by key. All keys given together are tested together.
    Returns:
        By key: its shallow patterns, the most significant first and none that says the same as another one; then its
        semantic one, if it has one.
    """
    minimum, rate = detector.minimum_prefixes, detector.false_discovery_rate
    of_words = significant([list(map(shallow_evidence, key)) for key in keys], detector.background, minimum, rate)
    return [distinct(in_words) + topic for in_words, topic in zip(of_words, similar(keys, detector), strict=True)]


def similar(keys: Sequence[Sequence[Sequence[str]]], detector: Detector) -> list[list[Pattern]]:
    """The topic of each key whose prefixes are about similar things beyond chance: by key, one pattern or none.

    Benjamini-Hochberg over the keys, each of which is one hypothesis.
    """
    placed = place(keys, detector.pool)
    p = similarity_p_values(placed, detector.pool, detector.minimum_prefixes, detector.seed)
    q = q_values(p, len(keys))
    patterns = [[] for _ in keys]
    for index in np.flatnonzero(q <= detector.false_discovery_rate).tolist():
        key = placed[index]
        together = members(key, detector.pool)
        if len(together) >= detector.minimum_prefixes:
            topic = detector.pool.space.name(key.vectors[together].sum(axis=0))
            found = tuple(key.numbers[together].tolist())
            patterns[index].append(Pattern(("topic", topic), found, CHANCE, float(p[index]), float(q[index])))
    return patterns


def significant(
    keys: Sequence[Sequence[Evidence]], background: Background, minimum: int, rate: float
) -> list[list[Pattern]]:
    """The shallow features that recur beyond chance, by key.

    Benjamini-Hochberg over every key and every feature that occurs in the background or in a key, not only over those
    that were seen to recur: choosing what to test by looking at it would be no test.
    """
    candidates = [(number, *found) for number, key in enumerate(keys) for found in recurring(key, minimum).items()]
    words = [np.array([evidence.words for evidence in key], int) for key in keys]
    chances = np.array([background.chance(feature, words[number]) for number, feature, _ in candidates])
    occurrences = np.array([len(members) for _, _, members in candidates], int)
    prefixes = np.array([len(keys[number]) for number, _, _ in candidates], int)
    p = p_value(occurrences, prefixes, chances)
    possible = background.features.union(*(evidence.features for key in keys for evidence in key))
    q = q_values(p, len(keys) * len(possible))
    patterns = [[] for _ in keys]
    for index in np.flatnonzero(q <= rate).tolist():
        number, feature, members = candidates[index]
        patterns[number].append(Pattern(feature, members, float(chances[index]), float(p[index]), float(q[index])))
    return patterns


def recurring(key: Sequence[Evidence], minimum: int) -> dict[Feature, tuple[int, ...]]:
    """The features that stand in at least `minimum` prefixes of a key, and in which."""
    members = defaultdict(list)
    for number, evidence in enumerate(key):
        for feature in dict.fromkeys(evidence.features):
            members[feature].append(number)
    return {feature: tuple(numbers) for feature, numbers in members.items() if len(numbers) >= minimum}


def distinct(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Shallow patterns without those that say nothing new, the most significant first.

    Of patterns in the same prefixes the most specific stays; after that, a pattern whose prefixes are among those of a
    more significant one goes.
    """
    specific = list(KINDS)
    named = {}
    for pattern in sorted(patterns, key=lambda pattern: specific.index(pattern.feature[0])):
        named.setdefault(pattern.members, pattern)
    kept = []
    for pattern in sorted(named.values(), key=lambda pattern: pattern.p_value):
        if not any(set(pattern.members) <= set(other.members) for other in kept):
            kept.append(pattern)
    return kept


def categories(patterns: Sequence[Pattern], prefixes: int) -> list[str]:
    """The category of each prefix of a key: the union of the families of the patterns that it has (figure 2)."""
    families = [set() for _ in range(prefixes)]
    for pattern in patterns:
        for number in pattern.members:
            families[number].add(pattern.family)
    return [" and ".join(sorted(found, reverse=True)) or "none" for found in families]
