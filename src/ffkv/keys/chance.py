"""How frequent features are by chance: in random prefixes of the train split, by the prefixes' length."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from ffkv.keys.features import KINDS, Evidence, Feature, places

LENGTHS = 7  # classes of length: 0, 1, 2-3, 4-7, 8-15, 16-31 and more words


@dataclass(frozen=True)
class Background:
    """Features counted in random prefixes.

    counts: how often each feature occurs, by class of length. prefixes: number of prefixes [class of length].
    places: by kind, in how many places a feature could have stood. features: all that occur.
    """

    counts: list[Counter[Feature]]
    prefixes: np.ndarray
    places: dict[str, int]
    features: frozenset[Feature]

    def chance(self, feature: Feature, words: np.ndarray) -> float:
        """Mean probability that random prefixes of given lengths have a feature.

        A feature that was seen c times in S places is given the rate (c + 1) / (S + 1) a place. Short prefixes differ
        from long ones by more than their number of places (they end near the beginning of a sentence): where the
        frequency among background prefixes of similar length is higher, it is taken.

        Args:
            words: number of words of each prefix [prefix].
        """
        kind, _ = feature
        similar = length_class(words)
        counts = np.array([counted[feature] for counted in self.counts])
        rate = (counts.sum() + 1) / (self.places[kind] + 1)
        anywhere = 1 - (1 - rate) ** np.array([places(kind, count) for count in words.tolist()])
        frequency = counts[similar] / np.maximum(self.prefixes[similar], 1)
        return float(np.clip(np.maximum(anywhere, frequency), 0, 1).mean())


def length_class(words: np.ndarray) -> np.ndarray:
    """The class of length of prefixes of so many words: classes double in width [prefix]."""
    return np.minimum(np.frexp(words)[1], LENGTHS - 1)


def count_background(prefixes: Iterable[Evidence]) -> Background:
    """Counts the features of random prefixes."""
    counts = [Counter() for _ in range(LENGTHS)]
    lengths = Counter()
    for features, words in prefixes:
        counts[min(words.bit_length(), LENGTHS - 1)].update(features)
        lengths[words] += 1
    words = np.array(list(lengths), int)
    return Background(
        counts,
        np.bincount(length_class(words), weights=list(lengths.values()), minlength=LENGTHS),
        {kind: sum(places(kind, length) * number for length, number in lengths.items()) for kind in KINDS},
        frozenset().union(*counts),
    )


def p_value(occurrences: np.ndarray, prefixes: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Probability that a feature stands in so many random prefixes or more.

    The binomial tail at the mean probability; where probabilities differ between prefixes the true tail is smaller,
    for all counts that exceed the expected one by 1 (Hoeffding 1956, theorem 4).

    Args:
        occurrences: prefixes that have the feature; prefixes: how many there are; chance: mean probability. Same shape.
    """
    return binom.sf(np.asarray(occurrences) - 1, prefixes, chance)


def q_values(p_values: np.ndarray, hypotheses: int) -> np.ndarray:
    """Benjamini-Hochberg adjusted p-values.

    Args:
        p_values: the smallest p-values, in any order [tested].
        hypotheses: how many there are in all; those that are not given count as 1.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.asarray(p_values, float)[order] * hypotheses / np.arange(1, len(order) + 1)
    result = np.empty(len(order))
    result[order] = np.minimum(np.minimum.accumulate(adjusted[::-1])[::-1], 1)
    return result
