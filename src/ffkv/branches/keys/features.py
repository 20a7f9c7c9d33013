"""Features that can recur in the trigger examples of a key: first and last words, word sequences, word classes.

How frequent they are by chance is counted in random prefixes of the train split, by the length of the prefixes.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from ffkv.base.settings.common import ENGLISH
from ffkv.corpus.words import stop_words

LENGTH_CLASSES = 7  # 0, 1, 2-3, 4-7, 8-15, 16-31 and more words


class Kind(NamedTuple):
    """A kind of feature."""

    family: str  # "shallow" (words) or "semantic" (a topic), as in section 3.2 of the paper
    words: int  # number of words of a feature
    anywhere: bool  # True if the feature can occur anywhere in the prefix, False if it has one fixed place
    phrase: str  # how a pattern of this kind is described; "{}" stands for the feature's text


# From the most specific to the least specific: of several patterns in the same prefixes, the first one is kept.
KINDS = {
    "last trigram": Kind("shallow", 3, False, "ends with “{}”"),
    "inner trigram": Kind("shallow", 3, True, "contains “{}”"),
    "last bigram": Kind("shallow", 2, False, "ends with “{}”"),
    "inner bigram": Kind("shallow", 2, True, "contains “{}”"),
    "last word": Kind("shallow", 1, False, "ends with “{}”"),
    "first word": Kind("shallow", 1, False, "starts with “{}”"),
    "word class": Kind("shallow", 1, False, "ends with {}"),
    "topic": Kind("semantic", 1, False, "is about {}"),
}

# The kind (a name in `KINDS`) and the text: words, a word class or a topic. This is a plain tuple because there are
# many features, and the garbage collector does not track plain tuples of strings.
Feature = tuple[str, str]


class Evidence(NamedTuple):
    """A prefix as the test of shallow patterns sees it."""

    features: list[Feature]  # the prefix's features. A feature that occurs twice is listed twice.
    words: int  # number of words of the prefix


_OF_ENGLISH = tomllib.loads(files(__package__).joinpath("english.toml").read_text(encoding="utf-8"))
FUNCTION_WORD = "a function word"  # of a language other than English
CLASS_OF_WORD = {word: name for name, listed in _OF_ENGLISH["words"].items() for word in listed.split()}
# A word belongs to the first class whose form it has.
CLASS_OF_FORM: dict[str, Callable[[str], object]] = {
    "a year": re.compile(r"(1[0-9]|20)\d\d").fullmatch,
    "a number": re.compile(r"[-+]?\d[\d.,:@%–]*").fullmatch,
    "punctuation": re.compile(r"[^\w\s<]+").fullmatch,
    "an identifier": re.compile(r"\w*_\w*|\w{2,}(\.\w{2,})+|[a-z]+[A-Z]\w*").fullmatch,
    "capital letters": lambda word: len(word) > 1 and word.isupper(),
    "a capitalised word": lambda word: word[0].isupper() and re.sub("[-'’]", "", word[1:]).isalpha(),
}
ENGLISH_CLASS_OF_FORM = {name: re.compile(form).fullmatch for name, form in _OF_ENGLISH["forms"].items()}


def word_class(word: str, language: str = ENGLISH) -> str:
    """Returns the class of a word, such as "a year" or "a preposition"; "" for a word without a class.

    Of a language other than English, function words are its stop words, and only forms that many languages have count.
    """
    if language == ENGLISH:
        name, forms = CLASS_OF_WORD.get(word.lower()), CLASS_OF_FORM | ENGLISH_CLASS_OF_FORM
    else:
        name, forms = FUNCTION_WORD if word.lower() in stop_words(language) else None, CLASS_OF_FORM
    return name or next((name for name, has_form in forms.items() if has_form(word)), "")


def shallow_evidence(words: Sequence[str], language: str = ENGLISH) -> Evidence:
    """Lists the shallow features of a prefix, in lower case. `words` are in their original case."""
    lower, features = [word.lower() for word in words], list[Feature]()
    if words:
        features += [("first word", lower[0]), ("last word", lower[-1])]
        features += [("word class", name)] if (name := word_class(words[-1], language)) else []
    for size, name in ((2, "bigram"), (3, "trigram")):
        sequences = [" ".join(lower[start : start + size]) for start in range(len(lower) - size + 1)]
        features += [(f"inner {name}", sequence) for sequence in sequences]
        features += [(f"last {name}", sequence) for sequence in sequences[-1:]]
    return Evidence(features, len(words))


def count_places(kind: str, words: int) -> int:
    """Counts the places where a feature of a kind can occur in a prefix of `words` words."""
    fits = max(0, words - KINDS[kind].words + 1)
    return fits if KINDS[kind].anywhere else min(fits, 1)


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
