"""How frequent features are by chance, counted in random prefixes of the train split, by the length of the prefixes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from ffkv.branches.keys.features import KINDS, Evidence, Feature, count_places

LENGTH_CLASSES = 7  # 0, 1, 2-3, 4-7, 8-15, 16-31 and more words


@dataclass(frozen=True)
class Background:
    """The features of random prefixes."""

    counts: list[Counter[Feature]]  # number of prefixes that have each feature [length class][feature]
    prefixes: np.ndarray  # number of prefixes [length class]
    places: dict[str, int]  # number of places where a feature of each kind could occur, over all prefixes [kind]
    features: frozenset[Feature]  # all features that occur

    def chance(self, feature: Feature, words: np.ndarray) -> float:
        """Estimates the mean probability that random prefixes of some lengths, `words` [prefix], have a feature.

        A feature that occurs c times in S places has the rate (c + 1) / (S + 1) per place. Short prefixes differ
        from long ones not only in their number of places, because they end near the beginning of a sentence. So
        where the feature is more frequent among background prefixes of similar length, that frequency is used.
        """
        kind, _ = feature
        similar = length_class(words)
        counts = np.array([class_counts[feature] for class_counts in self.counts])
        rate = (counts.sum() + 1) / (self.places[kind] + 1)
        by_places = 1 - (1 - rate) ** np.array([count_places(kind, count) for count in words.tolist()])
        by_length = counts[similar] / np.maximum(self.prefixes[similar], 1)
        return float(np.minimum(np.maximum(by_places, by_length), 1).mean())


def length_class(words: np.ndarray) -> np.ndarray:
    """Returns the length class of prefixes of `words` words [prefix]. Each class is twice as wide as the one before."""
    return np.minimum(np.frexp(words)[1], LENGTH_CLASSES - 1)


def count_background(prefixes: Iterable[Evidence]) -> Background:
    """Counts the features of random prefixes."""
    counts: list[Counter[Feature]] = [Counter() for _ in range(LENGTH_CLASSES)]
    lengths: Counter[int] = Counter()
    for features, length in prefixes:
        counts[min(length.bit_length(), LENGTH_CLASSES - 1)].update(features)
        lengths[length] += 1
    classes = length_class(np.array(list(lengths)))
    return Background(
        counts=counts,
        prefixes=np.bincount(classes, weights=list(lengths.values()), minlength=LENGTH_CLASSES),
        places={kind: sum(count_places(kind, length) * number for length, number in lengths.items()) for kind in KINDS},
        features=frozenset().union(*counts),
    )


def p_value(occurrences: np.ndarray, prefixes: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Probability that at least `occurrences` of `prefixes` random prefixes have a feature. All arrays have one shape.

    This is the binomial tail at the mean probability `chance`. Where the probabilities differ between prefixes, the
    true tail is smaller for every count that exceeds the expected count by 1 or more (Hoeffding 1956, theorem 4).
    """
    return binom.sf(np.asarray(occurrences) - 1, prefixes, chance)
