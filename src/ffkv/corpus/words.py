"""Finds the words of a text. "Last word", "stop word" and "fewer than five words" are about words, not about tokens."""

import functools
import importlib
import importlib.util
import re

from ffkv.base.characters import BYTE
from ffkv.base.settings.common import ENGLISH

# A word with the hyphens, apostrophes and dots in it ("state-of-the-art", "don't", "3.14", "os.path"), or one sign.
# The bytes of an unfinished character belong to the word that they end.
LETTERS = rf"(?:\w|{BYTE})+"
RAW_WORD = re.compile(rf"{LETTERS}(?:[-'’.]{LETTERS})*|[^\w\s]")
PRETOKENIZED_WORD = re.compile(r"\S+")


def word_spans(text: str, pretokenized: bool) -> list[tuple[int, int]]:
    """Start and end (exclusive) of each word of a text, in characters. Punctuation marks are words, as in WikiText."""
    return [match.span() for match in (PRETOKENIZED_WORD if pretokenized else RAW_WORD).finditer(text)]


def words(text: str, pretokenized: bool) -> list[str]:
    """Returns the words of a text. If a prefix ends inside a word, its last word is the part that the model has seen."""
    return [text[start:end] for start, end in word_spans(text, pretokenized)]


def word_at(text: str, end: int, pretokenized: bool) -> str:
    """Returns the whole word of the token that ends before character `end`; "" if the token is white space only."""
    spans = word_spans(text, pretokenized)
    return next((text[start:stop] for start, stop in spans if start < end <= stop), "")


@functools.cache
def stop_words(language: str) -> frozenset[str]:
    """Returns the stop words of a language, in lower case; none if spaCy has no list of them.

    English: the 318 stop words of scikit-learn (list of the Glasgow Information Retrieval Group).
    """
    if language == ENGLISH:
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        return ENGLISH_STOP_WORDS
    module = f"spacy.lang.{language}.stop_words"
    if importlib.util.find_spec(module) is None:
        return frozenset()
    return frozenset(word.lower() for word in importlib.import_module(module).STOP_WORDS)
